"""Optimisers for ensembles: Adam in the eigenbases of each member's gradients, and each member's least squares."""

import itertools

import numpy as np

from fml_tf import _checks
from fml_tf._tensorflow import keras, tf


@keras.saving.register_keras_serializable(package="fml_tf")
class Soap(keras.optimizers.Optimizer):
    """Run Adam in the eigenbasis of Shampoo's preconditioner (SOAP), for every member of a stacked weight alone.

    For a weight W of a member, with gradient G, averages of G Gᵀ and Gᵀ G are kept; their eigenvectors Q_L and Q_R
    turn the gradient, G' = Q_Lᵀ G Q_R. Adam's second moment is taken of G', where it says more than of G: inputs that
    are nearly collinear, as the entries of a history, are told apart. The bases are renewed once an epoch (`renew`,
    which `FlowMap.fit` calls), so that a step costs little more than Adam's.

    Args:
        learning_rate: a number or a Keras schedule; larger than Adam's, 1e-2 is a good start.
        beta_1: decay of the gradient's average.
        beta_2: decay of the second moment in the turned basis.
        beta_3: decay of the averages of G Gᵀ and Gᵀ G.
        epsilon: added to the root of the second moment.
        **kwargs: as for every Keras optimiser, for instance `name`, `weight_decay`, `clipvalue`.

    Raises:
        ValueError: for a decay outside [0, 1) or an epsilon that is not positive.

    Source: Vyas et al., *SOAP: Improving and Stabilizing Shampoo using Adam*, 2024, https://arxiv.org/abs/2409.11321.
    """

    def __init__(self, learning_rate=1e-2, beta_1=0.95, beta_2=0.95, beta_3=0.95, epsilon=1e-8, name="soap", **kwargs):
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        for label, value in (("beta_1", beta_1), ("beta_2", beta_2), ("beta_3", beta_3)):
            if not 0 <= value < 1:
                raise ValueError(f"{label}={value!r}: expected a decay of at least 0, below 1.")
        if not epsilon > 0:
            raise ValueError(f"epsilon={epsilon!r}: expected a positive number.")
        self.beta_1, self.beta_2, self.beta_3, self.epsilon = beta_1, beta_2, beta_3, epsilon

    def build(self, variables):
        """Create the averages and bases of weights `(member, out, in)`."""
        if self.built:
            return
        super().build(variables)
        for variable in variables:
            if len(variable.shape) != 3:
                raise ValueError(
                    f"Soap is for weights (member, out, in), but {variable.path} has shape {variable.shape}."
                )
        shapes = [tuple(variable.shape) for variable in variables]
        left, right = ([(s[0], s[axis], s[axis]) for s in shapes] for axis in (1, 2))
        self._momentums, self._velocities = self._zeros("momentum", shapes), self._zeros("velocity", shapes)
        self._left, self._right = self._zeros("left", left), self._zeros("right", right)
        self._left_bases, self._right_bases = self._zeros("left_basis", left), self._zeros("right_basis", right)
        for basis in (*self._left_bases, *self._right_bases):
            basis.assign(np.broadcast_to(np.eye(basis.shape[-1]), basis.shape))

    def _zeros(self, name, shapes):
        dtypes = [variable.dtype for variable in self._trainable_variables]
        return [
            self.add_variable(shape=shape, dtype=dtype, initializer="zeros", name=f"{name}_{i}")
            for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
        ]

    def update_step(self, gradient, variable, learning_rate):
        """Update one weight and its averages."""
        i = self._get_variable_index(variable)
        momentum, velocity, left, right = (v[i] for v in (self._momentums, self._velocities, self._left, self._right))
        into, back = self._left_bases[i], self._right_bases[i]
        step, rate = tf.cast(self.iterations + 1, variable.dtype), tf.cast(learning_rate, variable.dtype)
        _average(left, tf.matmul(gradient, gradient, transpose_b=True), self.beta_3)
        _average(right, tf.matmul(gradient, gradient, transpose_a=True), self.beta_3)
        _average(momentum, gradient, self.beta_1)
        _average(velocity, tf.square(_turn(gradient, into, back)), self.beta_2)
        mean = _turn(momentum, into, back) / (1 - self.beta_1**step)
        deviation = tf.sqrt(velocity / (1 - self.beta_2**step))
        update = tf.matmul(tf.matmul(into, mean / (deviation + self.epsilon)), back, transpose_b=True)
        self.assign_sub(variable, rate * update)

    def renew(self):
        """Take new bases from the averages, and carry the second moments over into them."""
        for left, right, into, back, velocity in zip(
            self._left, self._right, self._left_bases, self._right_bases, self._velocities, strict=True
        ):
            new, old = (_eigenvectors(left), _eigenvectors(right)), (into.numpy(), back.numpy())
            if new[0] is None or new[1] is None:
                continue
            turned = [np.square(np.swapaxes(n, 1, 2) @ o) for n, o in zip(new, old, strict=True)]
            velocity.assign(turned[0] @ velocity.numpy() @ np.swapaxes(turned[1], 1, 2))
            into.assign(new[0])
            back.assign(new[1])

    def get_config(self):
        own = {name: getattr(self, name) for name in ("beta_1", "beta_2", "beta_3", "epsilon")}
        return {**super().get_config(), **own}


def _average(variable, value, decay):
    variable.assign(decay * variable + (1 - decay) * value)


def _turn(matrix, into, back):
    """Return Q_Lᵀ G Q_R of every member."""
    return tf.matmul(tf.matmul(into, matrix, transpose_a=True), back)


def _eigenvectors(variable):
    """Return the eigenvectors of symmetric matrices `(member, n, n)` as columns, or None where one is not finite."""
    values = variable.numpy().astype("float64")
    return np.linalg.eigh(values)[1] if np.isfinite(values).all() else None


#: Weights of a member up to which `LevenbergMarquardt` works: for ten members JᵀJ alone takes 720 MB then.
MOST_WEIGHTS = 3000

#: Rows of JᵀJ that are worked out in one product.
STRIP = 256


@keras.saving.register_keras_serializable(package="fml_tf")
class LevenbergMarquardt(keras.optimizers.Optimizer):
    """Fit each member's multi-step residuals by least squares, with damped Gauss-Newton steps in float64.

    Each batch is one step: the Jacobian J of all residuals r by all weights of a member is carried through its
    roll-out, (JᵀJ + λ diag JᵀJ) δ = Jᵀr is solved, and the weights move by -δ where that lowers the loss over the
    batch; where not, λ grows and the step is tried again. Every member has its own λ. Cost and memory grow with the
    square of the number of weights: it is for networks of some hundreds, takes large batches (5,000 bursts) and few
    epochs, and goes on where other optimisers stall. Start it from weights that one of these has found.

    Args:
        damping: first λ of every member.
        increase: factor on λ after a step that did not help.
        decrease: divisor of λ after one that did.
        trials: most tries in one step.
        chunk: bursts whose Jacobian is held at once; memory is members * state * (K + 1) * weights * chunk * 4 bytes.
        **kwargs: Keras's `name`. The learning rate is not used.

    Raises:
        ValueError: for numbers out of range.

    Source: Marquardt, *An algorithm for least-squares estimation of nonlinear parameters*, 1963,
    https://doi.org/10.1137/0111030.
    """

    def __init__(
        self, damping=1e-3, increase=4.0, decrease=5.0, trials=8, chunk=250, name="levenberg_marquardt", **kwargs
    ):
        super().__init__(**{"learning_rate": 1.0, **kwargs}, name=name)
        if not damping > 0:
            raise ValueError(f"damping={damping!r}: expected a positive number.")
        for label, value in (("increase", increase), ("decrease", decrease)):
            if not value > 1:
                raise ValueError(f"{label}={value!r}: expected a factor above 1.")
        for label, value in (("trials", trials), ("chunk", chunk)):
            _checks.count(label, value, 1)
        self.damping, self.increase, self.decrease, self.trials, self.chunk = damping, increase, decrease, trials, chunk

    def build(self, variables):
        """Create each member's λ."""
        if self.built:
            return
        super().build(variables)
        start = keras.initializers.Constant(self.damping)
        self._dampings = self.add_variable((variables[0].shape[0],), start, dtype="float64", name="dampings")

    def check(self, weights, plain):
        """Refuse weights `(member, out, in)` that are too many, or not those of a plain flow map, all trained."""
        if not plain:
            raise ValueError(
                "LevenbergMarquardt knows the derivatives of a plain FlowMap whose layers all train: choose another "
                "optimiser for a subclass with its own advance(), or for frozen layers."
            )
        size = sum(int(np.prod(weight.shape[1:])) for weight in weights)
        if size > MOST_WEIGHTS:
            raise ValueError(
                f"LevenbergMarquardt solves for all of a member's weights at once, and {size:,} are too many (at most "
                f"{MOST_WEIGHTS:,}): choose Soap or Adam, or fewer nodes."
            )

    def step(self, model, bursts):
        """Move the weights of a model by one step on bursts in lanes `(member, burst_length * state, batch)`; returns
        each member's loss before it, `(member,)`."""

        def compiled(function):  # and the rest not: XLA's own factorisation takes forty times TensorFlow's
            if model.run_eagerly:
                return function
            return tf.function(function, jit_compile=model.jit_compile, autograph=False)

        def score(weights):
            return model.roll_out_losses(bursts, model.network(weights=weights))

        bursts = tf.cast(bursts, "float64")
        weights = [tf.cast(weight, "float64") for weight in model.trainable_variables]
        fitted = [weights[0][:, :, : model.input_rank], *weights[1:]]  # the rest of a whitened input has no effect
        unused = weights[0].shape[2] - fitted[0].shape[2]
        score, equations = compiled(score), compiled(_normal_equations)
        matrix, slope, losses = equations(model, fitted, bursts, self.chunk)
        finite = tf.math.is_finite(tf.reduce_sum(matrix, axis=(1, 2)))  # a member that has diverged stays where it is
        identity = tf.eye(matrix.shape[1], dtype="float64")
        matrix, slope = tf.where(finite[:, None, None], matrix, identity), tf.where(finite[:, None], slope, 0)
        diagonal = tf.linalg.diag_part(matrix)
        largest = tf.reduce_max(diagonal, axis=1, keepdims=True)
        diagonal = tf.linalg.diag(diagonal + 1e-12 * largest)
        floor = 1e-16 * largest[..., None] * identity

        def trial(count, done, dampings, best):
            damped = matrix + dampings[:, None, None] * diagonal + floor
            change = tf.linalg.solve(damped, slope[..., None])  # JᵀJ may be a little indefinite by rounding
            first, *others = _unflatten(change, fitted)
            changes = [tf.pad(first, ((0, 0), (0, 0), (0, unused))), *others]
            stored = [
                tf.cast(tf.cast(weight - delta, mine.dtype), "float64")  # as exactly as the model can hold them
                for weight, delta, mine in zip(weights, changes, model.trainable_variables, strict=True)
            ]
            better = (score(stored) < losses) & ~done
            best = [tf.where(better[:, None, None], new, old) for new, old in zip(stored, best, strict=True)]
            moved = tf.where(better, dampings / self.decrease, dampings * self.increase)
            dampings = tf.where(done, dampings, moved)
            return count + 1, done | better, tf.clip_by_value(dampings, 1e-12, 1e12), best

        start = (0, tf.zeros_like(losses, "bool"), tf.convert_to_tensor(self._dampings), weights)
        _, _, dampings, best = tf.while_loop(
            lambda count, done, *_: (count < self.trials) & ~tf.reduce_all(done), trial, start
        )
        self._dampings.assign(dampings)
        for mine, new in zip(model.trainable_variables, best, strict=True):
            mine.assign(tf.cast(new, mine.dtype))
        self.iterations.assign_add(1)
        return tf.cast(losses, model.variable_dtype)

    def get_config(self):
        own = {name: getattr(self, name) for name in ("damping", "increase", "decrease", "trials", "chunk")}
        return {**super().get_config(), **own}


def _normal_equations(model, weights, bursts, chunk):
    """Return JᵀJ `(member, weight, weight)`, Jᵀr `(member, weight)` and the losses of the multi-step residuals."""
    batch = bursts.shape[2]
    samples = tf.cast(batch, "float64")

    def add(part, sums):
        parts = _products(model, weights, part)
        return [total + tf.cast(more, "float64") / samples for total, more in zip(sums, parts, strict=True)]

    size = sum(weight.shape[1] * weight.shape[2] for weight in weights)
    strips = [(end - start, size - start) for start, end in _strips(size)]
    sums = [tf.zeros((model.members, *shape), "float64") for shape in (*strips, (size,), ())]
    whole, shape = batch // chunk, (*bursts.shape[:2], chunk)
    if whole:
        sums = tf.while_loop(
            lambda place, *_: place < whole,
            lambda place, *sums: (place + 1, *add(tf.slice(bursts, (0, 0, place * chunk), shape), sums)),
            (0, *sums),
        )[1:]
    *strips, slope, losses = add(bursts[:, :, whole * chunk :], sums) if batch % chunk else sums
    upper = tf.concat([tf.pad(strip, ((0, 0), (0, 0), (size - strip.shape[2], 0))) for strip in strips], axis=1)
    above = np.triu(np.ones((size, size), "bool"))
    return tf.where(above, upper, tf.linalg.matrix_transpose(upper)), slope, losses


def _strips(size):
    """Return where the rows of JᵀJ are cut: each strip holds what stands right of the diagonal, which is all it takes,
    since the matrix is symmetric."""
    edges = [*range(0, size, STRIP), size]
    return list(itertools.pairwise(edges))


def _products(model, weights, bursts):
    """Return the strips of JᵀJ, Jᵀr and the sum of squares over some bursts, each divided by the number of steps.

    With S_k the derivative of the k-th predicted state by the weights, one `(member, weight, batch)` a variable, and G
    the network's derivative by its window: S_k = (direct part) + sum over the predicted entries j in the window of
    G_j S_j, and S_{k-1} besides where the network is residual.
    """
    width, past, state_dim = (model.memory_steps + 1) * model.state_dim, model.memory_steps + 1, model.state_dim
    window, target = bursts[:, :width], bursts[:, width:]
    steps = target.shape[1] // state_dim
    sums, sensitivities = None, []
    for step in range(steps):
        state, by_weights, by_window = _derivatives(model, weights, window)
        error = state - target[:, step * state_dim : (step + 1) * state_dim]
        for i in range(state_dim):
            for age, known in enumerate(reversed(sensitivities[-past:])):
                for j in range(state_dim):
                    feature = width - (age + 1) * state_dim + j
                    by_weights[i] += by_window[i][:, feature : feature + 1] * known[j]
            if model.residual and sensitivities:
                by_weights[i] += sensitivities[-1][i]
            # One product a variable: summed over a batch axis in one call, XLA on the CPU gets them wrong.
            residual = tf.cast(error[:, i, :, None], "float32")
            rows = by_weights[i]
            parts = [
                *(tf.matmul(rows[:, a:b], rows[:, a:], transpose_b=True) for a, b in _strips(rows.shape[1])),
                tf.matmul(by_weights[i], residual)[..., 0],
                tf.reduce_sum(tf.square(error[:, i]), axis=1),
            ]
            parts = [part / steps for part in parts]
            sums = [a + b for a, b in zip(sums, parts, strict=True)] if sums else parts
        sensitivities.append(by_weights)
        window = model.shift(window, state)
    return sums


def _derivatives(model, weights, window):
    """Return the next states `(member, state, batch)`, and for each variable of it the derivatives of the network's
    output by the weights, `(member, weight, batch)`, and by the window, `(member, feature, batch)`."""
    kernels, biases = weights[::2], weights[1::2]
    inputs, scale = window, tf.ones((model.state_dim, 1), "float64")
    if model.normalization:
        matrix = tf.cast(model.input_matrix[: kernels[0].shape[2]], "float64")
        matrix = tf.repeat(matrix[None], model.members, axis=0)
        inputs = tf.matmul(matrix, window - tf.cast(model.input_mean, "float64"))
        scale = tf.cast(model.output_scale, "float64")
    hidden, slopes = [inputs], []
    for kernel, bias in zip(kernels[:-1], biases[:-1], strict=True):
        before = tf.matmul(kernel, hidden[-1]) + bias
        with tf.GradientTape() as tape:
            tape.watch(before)
            after = model.activation(before)
        hidden.append(after)
        slopes.append(tape.gradient(after, before))
    output = scale * (tf.matmul(kernels[-1], hidden[-1]) + biases[-1])
    if model.normalization:
        output += tf.cast(model.output_mean, "float64")
    if model.skip:
        skip = tf.cast(model.skip_matrix, "float64")
        output += tf.matmul(tf.repeat(skip[None], model.members, axis=0), window)
    state = window[:, -model.state_dim :] + output if model.residual else output
    # The derivatives need no more than float32, in which their products are five times as fast.
    kernels, hidden, slopes = ([tf.cast(value, "float32") for value in values] for values in (kernels, hidden, slopes))
    by_weights, by_window = [], []
    for i in range(model.state_dim):
        unit = tf.one_hot([i], model.state_dim, dtype="float32", axis=0)  # (state, 1)
        back = tf.cast(scale, "float32") * unit * tf.ones_like(hidden[-1][:, :1])  # (member, state, batch)
        parts = []
        for place in reversed(range(len(kernels))):
            by_kernel = back[:, :, None] * hidden[place][:, None]  # (member, out, in, batch)
            parts = [tf.reshape(by_kernel, (model.members, -1, back.shape[-1])), back, *parts]
            back = tf.matmul(kernels[place], back, transpose_a=True)
            if place:
                back *= slopes[place - 1]
        by_weights.append(tf.concat(parts, axis=1))
        if model.normalization:
            back = tf.matmul(tf.cast(matrix, "float32"), back, transpose_a=True)
        by_window.append(back + tf.cast(skip[i, :, None], "float32") if model.skip else back)
    return state, by_weights, by_window


def _unflatten(vector, weights):
    """Cut `(member, weight, 1)` into parts of the weights' shapes."""
    sizes = [weight.shape[1] * weight.shape[2] for weight in weights]
    parts = tf.split(vector[..., 0], sizes, axis=1)
    return [tf.reshape(part, weight.shape) for part, weight in zip(parts, weights, strict=True)]

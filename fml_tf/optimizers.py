"""An optimiser for ensembles: Adam in the eigenbases of each member's gradients."""

import numpy as np

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

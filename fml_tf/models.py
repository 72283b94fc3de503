"""`FlowMap`: an ensemble of residual networks that learn a flow map, trained together in one compiled step.

Inside, arrays are laid out `(member, feature, batch)`: the batch is the contiguous axis and fills the vector lanes,
and a weight `(member, out, in)` holds every member's own. A window is a history flattened to
`((memory_steps + 1) * state_dim)` features, oldest entry first.
"""

import json
import time
import warnings
from collections.abc import Sequence

import numpy as np

from fml_tf import _checks, _engines, _layers, optimizers, polynomials, problems, results
from fml_tf._tensorflow import gpus, keras, tf

#: Steps that one compiled call of a forecast can make, for short forecasts and for all others.
FORECAST_CHUNKS = (16, 500)

#: Principal axes of the history whose deviation is below this fraction of the first one's are left out of a whitened
#: input: they hold nothing but rounding.
WHITENING_CUT = 1e-5

#: Bursts of a batch that go through the network at once on a CPU: the states of more leave the cache near the core.
TILE = 1000

#: Factor on the initial weights of the output layer where inputs are normalised.
FIRST_OUTPUT = 0.1


@keras.saving.register_keras_serializable(package="fml_tf")
class FlowMap(keras.Model):
    """Learn the flow map of an unknown system with an ensemble of residual networks.

    Member m predicts x_{n+1} = x_n + s * N_m(x_n, ..., x_{n-n_M}), with N_m a plain fully connected network and
    s = 1 unless inputs are normalised. All members live in one model and train in one compiled step, each on its
    own order of the samples and from its own initial weights, exactly as if it were alone.

    Args:
        state_dim: d, number of observed variables.
        memory_steps: n_M, past entries the network sees beyond the present one; 0 for a fully observed system.
        hidden: nodes of each hidden layer.
        activation: a Keras activation name or an elementwise function; the paper does not name one.
        members: ensemble size (members 0 to members - 1), or the indices of the members to hold: `members=(3,)` is
            member 3 of any ensemble with the same seed.
        residual: False predicts x_{n+1} = N_m(...) itself, the paper's first form.
        normalization: None for the paper's plain form. "standard" scales each observed variable to mean 0 and deviation
            1 at the input, and the network's output to the root mean square of the one-step increments. "whitened"
            turns the history to its principal axes instead, each scaled to deviation 1: nearly equal entries hide in
            small axes what a network must see. Either is learnt by `adapt` and fixed from then on. Data go in and
            come out in their own units.
        skip: "linear" adds the linear delay map that fits the data best, by least squares in float64 on the history's
            principal axes: x_{n+1} = x_n + A (x_n, ..., x_{n-n_M}) + b + s * N_m(...), s then the root mean square of
            what it misses. Learnt by `adapt` and fixed; it wants a `normalization`. The network starts from zero: a
            linear system is learnt before it trains.
        kernel_initializer: Keras initializer of the weights.
        seed: seed of initial weights and sample order, together with member and epoch.
        time_step: time between entries, in the system's units; kept with the model, not used in computing.
        state_names: names of the observed variables; kept with the model.
        **kwargs: Keras's `name` and `dtype` ("float32" or "float64").

    Raises:
        ValueError: for an argument out of range, or a mixed-precision dtype.

    Example:
        >>> model = FlowMap(2, memory_steps=3, members=5)
        >>> model.compile(keras.optimizers.Adam(1e-3))
        >>> model.fit(bursts, batch_size=200, epochs=100)           # (sample, n_M + K + 2, 2)
        >>> model.forecast(history, steps=1000)                     # (trajectory, 1000, 2)

    Source: paper, Section 3.2 (equations FML and FML1) and Section 4.4.
    """

    #: Steps up to which a roll-out is written out in the graph; a longer one is a compiled loop, which compiles sooner.
    unroll_limit = 32

    def __init__(
        self,
        state_dim: int,
        *,
        memory_steps: int = 0,
        hidden: Sequence[int] = (10, 10, 10),
        activation="tanh",
        members: int | Sequence[int] = 10,
        residual: bool = True,
        normalization: str | None = None,
        skip: str | None = None,
        kernel_initializer="glorot_uniform",
        seed: int = 0,
        time_step: float | None = None,
        state_names: Sequence[str] | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        _checks.elementwise(activation)
        ids = _checks.architecture(
            state_dim, memory_steps, hidden, members, normalization, skip, state_names, seed, self.dtype_policy
        )
        self.state_dim, self.memory_steps, self.hidden = state_dim, memory_steps, tuple(hidden)
        self.activation = keras.activations.get(activation)
        self.members, self.member_ids, self.residual = len(ids), ids, residual
        self.normalization, self.skip, self.seed, self.time_step = normalization, skip, seed, time_step
        self.state_names = None if state_names is None else tuple(state_names)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self._create_layers()
        self._create_variables()
        self.loss_tracker = _layers.MemberMean(self.members, dtype=self.variable_dtype)
        self.optimizer, self._feed, self.programs = None, None, {}
        self.member_losses = np.empty((0, self.members))
        self.epoch_logs = []

    def _create_layers(self):
        width = (self.memory_steps + 1) * self.state_dim
        self.dense_layers = []
        for place, units in enumerate((*self.hidden, self.state_dim)):
            layer = _layers.MemberDense(
                units, member_ids=self.member_ids, seed=self.seed, place=place, dtype=self.dtype_policy,
                kernel_initializer=self.kernel_initializer, name=f"dense_{place}",
            )  # fmt: skip
            layer.build((self.members, width, None))
            self.dense_layers.append(layer)
            width = units
        if self.normalization:  # normalised inputs are large: small first increments keep the first roll-outs in range
            layer.kernel.assign((0.0 if self.skip else FIRST_OUTPUT) * layer.kernel)
        self.built = True

    def _create_variables(self):
        """Create the fixed scales and each member's best weights: variables, so that backups and files hold them."""

        def fixed(name, shape, start):
            return self.add_weight(name=name, shape=shape, initializer=start, trainable=False)

        column = (self.state_dim, 1)
        features = (self.memory_steps + 1) * self.state_dim
        if self.normalization:
            self.input_mean = fixed("input_mean", (features, 1), "zeros")
            self.input_matrix = fixed("input_matrix", (features, features), "identity")
            self.output_mean = fixed("output_mean", column, "zeros")
            self.output_scale = fixed("output_scale", column, "ones")
        if self.skip:
            self.skip_matrix = fixed("skip_matrix", (self.state_dim, features), "zeros")
        self.data_range = fixed("data_range", (2, self.state_dim), "zeros")  # lowest and highest training states
        self.adapted = self.add_weight(name="adapted", shape=(), initializer="zeros", trainable=False, dtype="int32")
        infinite = keras.initializers.Constant(np.inf)
        self.best_losses = fixed("best_losses", (self.members,), infinite)
        self.best_weights = [fixed(f"best_{i}", v.shape, "zeros") for i, v in enumerate(self._weights_of_members())]
        self.shares = fixed("shares", (self.members,), "zeros")
        self.weigh()

    def _weights_of_members(self):
        return [variable for layer in self.dense_layers for variable in (layer.kernel, layer.bias)]

    def _best(self):
        return [self.best_losses, *self.best_weights]

    def _scales(self):
        """Return the variables that all members share."""
        shared = [self.data_range, self.adapted]
        if self.normalization:
            shared += [self.input_mean, self.input_matrix, self.output_mean, self.output_scale]
        if self.skip:
            shared.append(self.skip_matrix)
        return shared

    @property
    def input_rank(self) -> int:
        """Number of inputs that the network sees: (n_M + 1) d, or the axes that a whitened input keeps."""
        features = (self.memory_steps + 1) * self.state_dim
        if self.normalization != "whitened":
            return features
        with tf.init_scope():
            return int(np.any(self.input_matrix.value.numpy(), axis=1).sum())

    @property
    def replicas(self) -> int:
        """Number of devices that share each batch: more than one under a `tf.distribute` strategy."""
        return self._distribute_strategy.num_replicas_in_sync if self._distribute_strategy else 1

    @property
    def distribute_strategy(self):
        """Tell Keras's loops of one device: they would cut data into parts for several, which an epoch does itself."""
        return tf.distribute.get_strategy()

    # One step, many steps ------------------------------------------------------------------------------------

    def network(self, weights=None):
        """Return each layer's kernels and biases, `(member, out, in)` and `(member, out, 1)`, with the normalisation of
        the inputs folded into the first; other `weights` than the model's may be of another float type."""
        weights = [variable.value for variable in self._weights_of_members()] if weights is None else weights
        layers = list(zip(weights[::2], weights[1::2], strict=True))
        if self.normalization:
            kernel, bias = layers[0]
            kernel = tf.matmul(kernel, tf.cast(self.input_matrix, kernel.dtype))
            layers[0] = kernel, bias - tf.matmul(kernel, tf.cast(self.input_mean, kernel.dtype))
        return layers

    def advance(self, window, network=None, *, average=False):
        """Make one step of every member: the next states `(member, state, batch)` of windows `(member or 1, (n_M + 1)
        state, batch)`, or with `average` of all together, `(1, state, batch)`. A loop passes the `network`, so that it
        is put together once.

        The average is of the increments: a mean of states rounds by more than a small increment is worth.
        """
        *hidden_layers, output_layer = network or self.network()
        hidden = window
        for layer in hidden_layers:
            hidden = self.activation(_layers.affine(hidden, *layer))
        output = _layers.affine(hidden, *output_layer)
        if average:
            shares = tf.cast(self.shares, output.dtype)[:, None, None]
            output = tf.reduce_sum(tf.math.multiply_no_nan(output, shares), axis=0, keepdims=True)
        if self.normalization:
            scale, mean = (tf.cast(variable, output.dtype) for variable in (self.output_scale, self.output_mean))
            output = output * scale + mean
        if self.skip:
            output += tf.matmul(tf.cast(self.skip_matrix, output.dtype), window)
        return window[:, -self.state_dim :] + output if self.residual else output

    def shift(self, window, state):
        """Drop a window's oldest entry and append the newest."""
        return tf.concat([window[:, self.state_dim :], state], axis=1) if self.memory_steps else state

    def unroll(self, window, steps, network=None):
        """Roll every member out on its own states: `(member, steps, state, batch)` from windows `(member, (n_M + 1)
        state, batch)`. A gradient goes to the network, not to the window."""
        window, network = tf.stop_gradient(window), network or self.network()
        if steps <= self.unroll_limit:
            first, *others = network
            states = []
            for step in range(steps):
                known = max(window.shape[1] - step * self.state_dim, 0)  # features that are data
                entries = [window[:, -known:]] * (known > 0) + states[-self.memory_steps - 1 :]
                states.append(self.advance(tf.concat(entries, axis=1), [(*first, known), *others]))
            return tf.stack(states, axis=1)

        def body(step, window, states):
            state = self.advance(window, network)
            return step + 1, self.shift(window, state), states.write(step, state)

        states = tf.TensorArray(window.dtype, size=steps)
        loop = tf.while_loop(lambda step, *_: step < steps, body, (0, window, states), maximum_iterations=steps)
        return tf.transpose(loop[2].stack(), (1, 0, 2, 3))

    def call(self, history):
        """Return the ensemble's mean next state `(batch, state)` of histories `(batch, n_M + 1, state)`."""
        window = _to_lanes(tf.ensure_shape(history, (None, self.memory_steps + 1, self.state_dim)))
        return tf.transpose(self.advance(window, average=True)[0])

    # Training ------------------------------------------------------------------------------------------------

    def compile(self, optimizer="adam", *, jit_compile=True, run_eagerly=False, **kwargs):
        """Choose the optimiser; the loss is the paper's multi-step loss.

        Args:
            optimizer: a Keras optimiser or its name. It must treat every weight entry alone.
            jit_compile: compile with XLA (on the CPU too, where Keras's own "auto" would not). Of
                `LevenbergMarquardt` only the parts that gain by it. A model built under a `tf.distribute` strategy of
                several devices does without: TensorFlow cannot compile an exchange between them with XLA.
            run_eagerly: run step by step in Python, to debug.

        Raises:
            ValueError: for an optimiser or option that would couple the members, or a loss, metrics or weights.
        """
        _checks.compile_options(kwargs)
        optimizer = keras.optimizers.get(optimizer)
        _checks.uncoupled(optimizer)
        if isinstance(optimizer, optimizers.LevenbergMarquardt):
            plain = type(self).advance is FlowMap.advance and len(self.trainable_variables) == 2 * len(
                self.dense_layers
            )
            optimizer.check(self.trainable_variables, plain)
        if self.replicas > 1:
            _checks.distributed(optimizer, run_eagerly)
            jit_compile = False
        self.programs = {}
        super().compile(
            optimizer=optimizer, loss=None, jit_compile=jit_compile and not run_eagerly, run_eagerly=run_eagerly
        )
        optimizer.build(self.trainable_variables)

    def get_compile_config(self):
        if self.optimizer is None:
            return None
        options = {"jit_compile": self.jit_compile, "run_eagerly": self.run_eagerly}
        return {"optimizer": keras.optimizers.serialize(self.optimizer), **options}

    def compile_from_config(self, config):
        self.compile(**{**config, "optimizer": keras.optimizers.deserialize(config["optimizer"])})

    @property
    def metrics(self):
        return [self.loss_tracker]

    def burst_losses(self, bursts):
        """Return each member's multi-step loss `(member,)` over bursts in lanes `(member or 1, burst_length * state,
        batch)`: the mean over bursts and K + 1 steps of the squared 2-norm (paper, equation multi_loss)."""
        if bursts.shape[0] == 1:
            bursts = tf.repeat(bursts, self.members, axis=0)
        return self.roll_out_losses(bursts, self.network())

    def roll_out_losses(self, bursts, network):
        """Return the multi-step losses of a `network`, one a member of it, over its bursts in lanes."""
        width = (self.memory_steps + 1) * self.state_dim
        window, target = bursts[:, :width], bursts[:, width:]
        steps = target.shape[1] // self.state_dim
        predicted = self.unroll(window, steps, network)  # (member, step, state, batch)
        target = tf.reshape(target, (target.shape[0], steps, self.state_dim, -1))
        return tf.reduce_mean(tf.reduce_sum(tf.square(predicted - target), axis=2), axis=(1, 2))

    def train_step(self, data, share=1.0):
        """Update all members on one batch: bursts `(batch, burst_length, state)`, or one batch a member in front.

        The gradient is that of the sum of the members' losses, so each member's is its own. Least squares need more
        than a gradient, and make their own step. On several devices each trains on its `share` of the batch, and Keras
        sums the gradients.
        """
        bursts = _to_lanes(data)
        if isinstance(self.optimizer, optimizers.LevenbergMarquardt):
            losses = self.optimizer.step(self, bursts)
        else:
            losses, slopes = self._losses_and_slopes(bursts, share)
            self.optimizer.apply(slopes, self.trainable_variables)
        self.loss_tracker.update_state(losses, tf.shape(bursts)[-1])
        return {"loss": self.loss_tracker.result()}

    def _losses_and_slopes(self, bursts, share):
        """Return each member's loss over bursts in lanes, and the gradient of `share` times the sum of the losses."""

        def of(tile):
            with tf.GradientTape() as tape:
                losses = self.burst_losses(tile)
                total = share * tf.reduce_sum(losses)
            return [losses, *tape.gradient(total, self.trainable_variables)]

        size = bursts.shape[2]
        tiles = 1 if gpus or size is None else _tiles(size)
        if tiles == 1:
            losses, *slopes = of(bursts)
            return losses, slopes

        def body(place, *sums):
            tile = tf.slice(bursts, (0, 0, place * (size // tiles)), (*bursts.shape[:2], size // tiles))
            return place + 1, *(total + value / tiles for total, value in zip(sums, of(tile), strict=True))

        zeros = [tf.zeros(self.members, bursts.dtype), *map(tf.zeros_like, self.trainable_variables)]
        _, losses, *slopes = tf.while_loop(lambda place, *_: place < tiles, body, (0, *zeros))
        return losses, slopes

    def test_step(self, data):
        """Score one batch of bursts `(batch, burst_length, state)`; the twin of `train_step`."""
        bursts = _to_lanes(data)
        self.loss_tracker.update_state(self.burst_losses(bursts), tf.shape(bursts)[-1])
        return {"loss": self.loss_tracker.result()}

    def _train_epoch(self, bursts, order, rest):
        """Run `train_step` over an epoch and keep the best weights: one compiled loop on the device.

        `bursts` (sample, burst_length, state); `order` (step, member, batch) and `rest` (member, remainder) index it.
        """

        def body(step):
            self._train_on(bursts, order[step])
            return (step + 1,)

        tf.while_loop(lambda step: step < order.shape[0], body, [0])
        if rest.shape[1]:
            self._train_on(bursts, rest)
        losses = self.loss_tracker.per_member()
        better = losses < self.best_losses
        self.best_losses.assign(tf.where(better, losses, self.best_losses))
        for best, weight in zip(self.best_weights, self._weights_of_members(), strict=True):
            best.assign(tf.where(better[:, None, None], weight, best))

    def _train_on(self, bursts, index):
        """Run `train_step` on the bursts of an index `(member, batch)`; of several devices, each on its share of it."""
        if self.replicas == 1:
            self.train_step(tf.gather(bursts, index))
            return

        def replica_step():
            place = tf.distribute.get_replica_context().replica_id_in_sync_group
            mine = index[:, place :: self.replicas]
            share = tf.cast(tf.shape(mine)[1] / index.shape[1], self.compute_dtype)
            self.train_step(tf.gather(bursts, mine), share)

        self._distribute_strategy.run(replica_step)

    def make_train_function(self, force=False):
        """Let Keras's loop run a whole epoch as its one step."""

        def train_function(iterator):
            next(iterator)
            order = self._feed.order(self.seed, self.member_ids, len(self.member_losses))
            _engines.train_epoch(self, self._feed.bursts, *order)
            if isinstance(self.optimizer, optimizers.Soap):
                self.optimizer.renew()
            self.member_losses = np.vstack([self.member_losses, self.loss_tracker.per_member()])
            return {"loss": self.loss_tracker.result()}

        self.train_function = train_function

    def make_test_function(self, force=False):
        """Let Keras's loop score batches with the shared program."""

        def test_function(iterator):
            bursts = next(iterator)
            with _engines.borrowed(self) as engine:
                losses = _engines.program(engine, "burst_losses")(_to_lanes(bursts))
            self.loss_tracker.update_state(losses, len(bursts))
            return {"loss": self.loss_tracker.result()}

        self.test_function = self._make_function(self.test_step) if self.run_eagerly else test_function

    def make_predict_function(self, force=False):
        """Let Keras's loop predict batches with the shared program."""
        self.predict_function = lambda batches: tf.concat(
            [tf.transpose(self._roll(_to_lanes(batch), 1, FORECAST_CHUNKS[0])[1][0, 0]) for batch in batches], axis=0
        )

    def fit(
        self,
        x=None,
        y=None,
        batch_size=200,
        epochs=1,
        verbose="auto",
        callbacks=None,
        *,
        validation_data=None,
        validation_batch_size=None,
        validation_freq=1,
        initial_epoch=0,
        restore_best=True,
        **refused,
    ):
        """Train all members on bursts.

        The whole epoch runs on the device in one call. Every member sees every burst once an epoch, in an order of
        its own that follows from (seed, member, epochs trained so far).

        Args:
            x: bursts `(sample, burst_length, state)` in the data's units; burst_length = n_M + K + 2 sets K.
            batch_size: bursts a step; a last smaller batch takes the remainder. The paper's own code uses 200.
            epochs, verbose, callbacks, initial_epoch, validation_freq: as in Keras; callbacks act once an epoch.
            validation_data: bursts to score after an epoch; they may be longer than the training ones. The paper
                advises against choosing a model by it.
            validation_batch_size: by default `batch_size`.
            restore_best: end with each member's weights of its best epoch by mean training loss, as the paper
                advises; False ends with the last ones (`restore_best_members` fetches them later).

        Returns:
            Keras's `History`; `member_losses`, `(epoch, member)`, has each member's own.

        Raises:
            ValueError: for bursts of the wrong shape, too short, or not finite; a batch larger than the data; targets,
                sample weights or callbacks that act on single batches.
        """
        if y is not None or any(value is not None for value in refused.values()):
            names = ["y"] * (y is not None) + [name for name, value in refused.items() if value is not None]
            raise ValueError(
                f"fit() got {', '.join(names)}: it takes bursts alone, which hold their own targets, shuffles them per "
                "member, and runs whole epochs on the device."
            )
        self._assert_compile_called("fit")
        callbacks = _checks.callbacks(callbacks, self.optimizer, restore_best)
        bursts = _checks.bursts(self, x, "x")
        counts = dict(batch_size=batch_size, epochs=epochs, validation_freq=validation_freq)
        for name, value in {**counts, "validation_batch_size": validation_batch_size or batch_size}.items():
            _checks.count(name, value, 1)
        if batch_size > len(bursts):
            raise ValueError(f"batch_size={batch_size} is larger than the data, {len(bursts)} bursts: lower it.")
        least = min(batch_size, len(bursts) % batch_size or batch_size)
        if least < self.replicas:
            raise ValueError(
                f"batch_size={batch_size} leaves a batch of {least} of the {len(bursts)} bursts, too few for "
                f"{self.replicas} devices: choose another batch_size."
            )
        if validation_data is not None:
            validation_data = _checks.bursts(self, validation_data, "validation_data")
            validation_data = _batches(validation_data, validation_batch_size or batch_size)
        if int(self.adapted.numpy()):
            self._widen_range(bursts)
        else:
            self.adapt(bursts)
        self.best_losses.assign(np.full(self.members, np.inf))
        self._feed = _Feed(bursts, batch_size)
        callbacks = [_EpochLogs(), *callbacks]
        self._initial_epoch = None  # Keras would start every later fit where one that was resumed did
        try:
            history = super().fit(
                _untuned(tf.data.Dataset.from_tensors(0)),
                epochs=epochs, verbose=verbose, callbacks=callbacks, initial_epoch=initial_epoch, shuffle=False,
                validation_data=validation_data, validation_freq=validation_freq,
            )  # fmt: skip
        finally:
            self._feed = None
        lost = np.flatnonzero(~np.isfinite(self.best_losses.numpy()))
        if history.epoch and len(lost):
            warnings.warn(
                f"member(s) {', '.join(map(str, lost))} never had a finite loss, and turn the ensemble's mean to NaN: "
                "train with a lower learning rate, or leave them out with members=(...).",
                RuntimeWarning,
                stacklevel=2,
            )
        if restore_best:
            self.restore_best_members()
        if history.epoch and history.epoch[0] > initial_epoch:  # resumed from a backup: History goes on from there
            history.epoch = list(range(initial_epoch, history.epoch[-1] + 1))
            logs = self.epoch_logs[-len(history.epoch) :]
            history.history = {name: [log[name] for log in logs if name in log] for name in history.history}
        return history

    def restore_best_members(self):
        """Give each member the weights of its best epoch in the last `fit`; a member with none keeps its own."""
        known = np.isfinite(self.best_losses)[:, None, None]
        for best, weight in zip(self.best_weights, self._weights_of_members(), strict=True):
            weight.assign(tf.where(known, best, weight))

    def adapt(self, bursts):
        """Learn the range of the data and, where the model normalises, its scales; `fit` does it when still undone.

        Args:
            bursts: training bursts `(sample, burst_length, state)`.
        """
        bursts = _checks.bursts(self, bursts, "bursts").astype("float64")
        states = bursts.reshape(-1, self.state_dim)
        self.data_range.assign(np.stack([states.min(0), states.max(0)]))
        if self.normalization:
            self._learn_scales(bursts)
        self.adapted.assign(1)

    def _learn_scales(self, bursts):
        """Set the input's mean and matrix and the output's mean and scale from bursts in float64."""
        states, features = bursts.reshape(-1, self.state_dim), (self.memory_steps + 1) * self.state_dim
        rounding = 1e-6 * np.abs(states).max(0)  # below it a variable or its increments count as constant

        def scale(values):
            return np.where(values > rounding, values, 1.0)

        mean, deviation = states.mean(0), scale(states.std(0))
        matrix = np.diag(np.tile(1 / deviation, self.memory_steps + 1))
        self.input_mean.assign(np.tile(mean, self.memory_steps + 1)[:, None])
        if self.normalization == "whitened":
            entries = bursts.reshape(len(bursts), -1)
            starts = range(0, entries.shape[1] - features, self.state_dim)
            histories = [entries[:, start : start + features] for start in starts]
            centre = np.mean([history.mean(0) for history in histories], axis=0)
            scaled = [(history - centre) @ matrix for history in histories]
            variances, axes = np.linalg.eigh(sum(h.T @ h for h in scaled) / (len(bursts) * len(scaled)))
            spread = np.sqrt(np.maximum(variances[::-1], 0))
            gain = np.where(spread > WHITENING_CUT * spread[0], 1 / np.maximum(spread, 1e-30), 0)
            matrix = gain[:, None] * axes.T[::-1] @ matrix
            self.input_mean.assign(centre[:, None])
        self.input_matrix.assign(matrix)
        if self.skip:
            self._learn_skip(bursts)
        elif self.residual:
            increments = np.diff(bursts, axis=1).reshape(-1, self.state_dim)
            self.output_scale.assign(scale(np.sqrt((increments**2).mean(0)))[:, None])
        else:
            self.output_scale.assign(deviation[:, None])
            self.output_mean.assign(mean[:, None])

    def _learn_skip(self, bursts):
        """Set the skip path to the linear delay map of least squares, and the output's scale to what it misses."""
        linear = polynomials.PolynomialFlowMap(
            self.state_dim, memory_steps=self.memory_steps, degree=1, tolerance=WHITENING_CUT
        ).fit(bursts)
        matrix = (linear.axes @ linear.coefficients[1:]).T
        offset = linear.coefficients[0] - matrix @ linear.centre
        features, entries = matrix.shape[1], bursts.reshape(len(bursts), -1)
        starts = range(0, entries.shape[1] - features, self.state_dim)
        histories = (entries[:, start : start + features] for start in starts)
        increments = np.diff(bursts[:, self.memory_steps :], axis=1).swapaxes(0, 1)
        missed = [change - h @ matrix.T - offset for h, change in zip(histories, increments, strict=True)]
        if not self.residual:
            matrix[:, -self.state_dim :] += np.eye(self.state_dim)
        scale = np.sqrt(np.mean(np.square(missed), axis=(0, 1)))
        self.skip_matrix.assign(matrix)
        self.output_mean.assign(offset[:, None])
        self.output_scale.assign(np.where(scale > 0, scale, 1)[:, None])

    def _widen_range(self, bursts):
        """Take the states of further training data into the range that forecasts are held against."""
        low, high = self.data_range.numpy()
        self.data_range.assign(np.stack([np.minimum(low, bursts.min((0, 1))), np.maximum(high, bursts.max((0, 1)))]))

    def evaluate(self, x=None, *, batch_size=5000, **kwargs):
        """Return the mean over members of the multi-step loss over bursts `(sample, burst_length, state)`."""
        if not kwargs.get("_use_cached_eval_dataset"):  # which fit sets for validation data it has checked
            _checks.count("batch_size", batch_size, 1)
            x = _batches(_checks.bursts(self, x, "x"), batch_size)
        return super().evaluate(x, **kwargs)

    def evaluate_members(self, bursts, *, batch_size=5000) -> np.ndarray:
        """Return each member's multi-step loss over bursts `(sample, burst_length, state)`, `(member,)`."""
        self.evaluate(bursts, batch_size=batch_size, verbose=0)
        return self.loss_tracker.per_member().numpy()

    # Forecasting ---------------------------------------------------------------------------------------------

    def predict(self, x, *, batch_size=5000, **kwargs):
        """Return the ensemble's mean next state `(trajectory, state)` of histories `(trajectory, n_M + 1, state)`."""
        _checks.count("batch_size", batch_size, 1)
        return super().predict(_batches(_checks.history(self, x), batch_size), **kwargs)

    def forecast(self, history, steps: int, *, average: str | None = "step") -> np.ndarray:
        """Predict the states that follow a history.

        With `average="step"` all members advance from the same window and their mean, with the shares of `weigh`, is
        the next state of all: the paper's ensemble averaging. With `average=None` each member follows its own states.

        Args:
            history: `(trajectory, n_M + 1, state)` in the data's units, oldest entry first.
            steps: steps to predict; any number, without recompiling.
            average: "step" or None.

        Returns:
            The predicted steps only: `(trajectory, steps, state)`, or `(member, trajectory, steps, state)` for None.
            Trajectories that turn non-finite, or leave ten times the range of the training data, are returned as
            they are and reported in a warning with the first such step.

        Raises:
            ValueError: for a history of the wrong shape or not finite, or steps below 1.

        Source: paper, Section 4.4, ensemble averaging.
        """
        _checks.count("steps", steps, 1)
        size = next((size for size in FORECAST_CHUNKS if steps <= size), FORECAST_CHUNKS[-1])
        if average not in ("step", None):
            raise ValueError(f"average={average!r}: expected 'step' (the mean at each step) or None (members apart).")
        window = _to_lanes(tf.convert_to_tensor(_checks.history(self, history)))  # (1, feature, trajectory)
        if average is None:
            window = tf.repeat(window, self.members, axis=0)
        chunks = []
        for start in range(0, int(steps), size):
            count = min(size, int(steps) - start)
            window, states = self._roll(window, count, size)
            chunks.append(states.numpy()[:count])
        states = np.moveaxis(
            np.concatenate(chunks), (0, 1, 2, 3), (2, 0, 3, 1)
        )  # (member or 1, trajectory, step, state)
        _checks.runaways(states, *(self.data_range.numpy() if int(self.adapted.numpy()) else (None, None)))
        return states if average is None else states[0]

    def _roll(self, window, count, size):
        """Run `_forecast_chunk` with the shared program."""
        with _engines.borrowed(self) as engine:
            return _engines.program(engine, "_forecast_chunk")(window, tf.constant(count), size)

    def _forecast_chunk(self, window, count, size):
        """Make `count` steps, at most `size`; returns the last window and (step, member or 1, state, batch)."""
        network, average = self.network(), window.shape[0] != self.members

        def body(step, window, states):
            state = self.advance(window, network, average=average)
            return step + 1, self.shift(window, state), states.write(step, state)

        shape = (window.shape[0], self.state_dim, window.shape[2])
        states = tf.TensorArray(window.dtype, size=size, element_shape=shape)
        _, window, states = tf.while_loop(lambda step, *_: step < count, body, (0, window, states))
        return window, states.stack()

    def jacobian(self, history) -> np.ndarray:
        """Return the derivative of the ensemble's one-step map of histories, `(trajectory, (n_M + 1) state, (n_M + 1)
        state)`: row i is the derivative of entry i of the next history, flattened with its oldest entry first.

        Args:
            history: `(trajectory, n_M + 1, state)` in the data's units, for instance the windows along a forecast.

        Raises:
            ValueError: for a history of the wrong shape or not finite.
        """
        window = _to_lanes(tf.convert_to_tensor(_checks.history(self, history)))
        with _engines.borrowed(self) as engine:
            rows = _engines.program(engine, "_slopes")(window).numpy()  # (state, feature, trajectory)
        features = window.shape[1]
        shifted = np.eye(features, k=self.state_dim)[: features - self.state_dim]
        shifted = np.broadcast_to(shifted, (rows.shape[-1], *shifted.shape))
        return np.concatenate([shifted, np.moveaxis(rows, -1, 0)], axis=1)

    def _slopes(self, window):
        """Return the derivative of each mean next state by each feature, `(state, feature, batch)`."""
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(window)
            states = tf.unstack(self.advance(window, average=True)[0])
        return tf.stack([tape.gradient(state, window)[0] for state in states])

    # Members, files ------------------------------------------------------------------------------------------

    def weigh(self, losses=None) -> None:
        """Set each member's share in the ensemble's mean to the inverse of its loss: the most exact mean there is if
        losses are the sizes of independent errors. Members that fit the data far worse than others then spoil nothing.

        Args:
            losses: of each member, `(member,)`, as `evaluate_members` returns them; one whose loss is not finite is
                left out. None for equal shares: a model starts with them, and the paper has no others.

        Raises:
            ValueError: for losses of another number or below 0, or if none is finite.
        """
        losses = np.ones(self.members) if losses is None else np.asarray(losses, "float64")
        known = np.isfinite(losses)
        if losses.shape != (self.members,) or not known.any() or (losses < 0).any():
            raise ValueError(
                f"losses={losses}: expected one of each of the {self.members} members, 0 or more and not all lost, for "
                "instance evaluate_members(bursts)."
            )
        shares = np.where(known, 1 / np.maximum(losses, 1e-300), 0)
        self.shares.assign(shares / shares.max() / (shares / shares.max()).sum())

    def member(self, index: int | slice | Sequence[int]) -> "FlowMap":
        """Return one member, or some of them, as a model of its own, not compiled.

        Args:
            index: position in this model, 0 to members - 1, a slice of positions, or several different ones.

        Raises:
            ValueError: for a position that this model does not hold, one named twice, or none.
        """
        held = np.arange(self.members)
        chosen = held[index] if isinstance(index, slice) else np.atleast_1d(index)
        whole = chosen.dtype.kind in "iu" and chosen.ndim == 1 and chosen.size
        if not whole or len(np.intersect1d(chosen, held)) < chosen.size:
            raise ValueError(
                f"member({index!r}): this model holds members 0 to {self.members - 1}: expected one of these, a slice "
                "of them, or several, each once."
            )
        some = self._like(chosen)
        for mine, its in zip(self._best(), some._best(), strict=True):
            its.assign(tf.gather(mine, chosen))
        some.shares.assign(some.shares / tf.reduce_sum(some.shares))
        return some

    def without_optimizer(self) -> "FlowMap":
        """Return the same ensemble, not compiled and without its best weights: what is left to forecast with."""
        return self._like(np.arange(self.members))

    def _like(self, positions):
        """Return a model of some of the members, with their weights, the scales and the record."""
        live = {"activation": self.activation, "kernel_initializer": self.kernel_initializer, "name": None}
        ids = [self.member_ids[position] for position in positions]
        other = type(self).from_config({**self.get_config(), **live, "members": ids})
        for mine, its in zip(self._weights_of_members(), other._weights_of_members(), strict=True):
            its.assign(tf.gather(mine, positions))
        for mine, its in zip(self._scales(), other._scales(), strict=True):
            its.assign(mine)
        other.shares.assign(tf.gather(self.shares, positions))
        other.member_losses = self.member_losses[:, positions]
        return other

    def get_config(self):
        names = (
            "state_dim", "memory_steps", "hidden", "residual", "normalization", "skip", "seed", "time_step",
            "state_names",
        )  # fmt: skip
        return {
            "name": self.name,
            "dtype": self.dtype_policy.name,
            **{name: getattr(self, name) for name in names},
            "members": list(self.member_ids),
            "activation": keras.activations.serialize(self.activation),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }

    def save(self, filepath, *args, **kwargs):
        """Save to a `.keras` file, whole: see Keras. Raises ValueError for what could not be loaded again."""
        _checks.savable(filepath, self.activation)
        super().save(filepath, *args, **kwargs)

    def train_on_batch(self, *args, **kwargs):
        """Refuse: an epoch is the least that trains."""
        raise ValueError("a flow map trains in whole epochs: call fit(bursts, epochs=1).")

    def test_on_batch(self, *args, **kwargs):
        """Refuse: see `evaluate`."""
        raise ValueError("call evaluate(bursts), or evaluate_members(bursts) for each member's loss.")

    def predict_on_batch(self, x):
        """Return one step of the ensemble's mean, see `predict`."""
        return self.predict(x, verbose=0)

    def save_own_variables(self, store):
        super().save_own_variables(store)
        store["member_losses"] = self.member_losses
        store["epoch_logs"] = np.frombuffer(json.dumps(self.epoch_logs).encode(), "uint8")

    def load_own_variables(self, store):
        self.member_losses = np.array(store["member_losses"])
        self.epoch_logs = json.loads(np.array(store["epoch_logs"]).tobytes())
        values = {key: store[key] for key in store.keys() if key not in ("member_losses", "epoch_logs")}  # noqa: SIM118
        last = str(len(self.variables) - 1 - 2 * len(self.dense_layers))
        super().load_own_variables({last: self.shares.numpy(), **values})  # files of old have no shares

    def export(self, filepath, **kwargs):
        """Write a SavedModel whose `serve(history, steps)` forecasts, for use without this package.

        Args:
            filepath: folder to write.
            **kwargs: passed to `keras.export.ExportArchive.write_out`.
        """

        def serve(history, steps):
            network = self.network()

            def body(step, window, states):
                state = self.advance(window, network, average=True)
                return step + 1, self.shift(window, state), states.write(step, state)

            window, states = _to_lanes(history), tf.TensorArray(history.dtype, size=steps)
            shapes = (tf.TensorShape([]), tf.TensorShape([1, window.shape[1], None]), tf.TensorShape(None))
            loop = tf.while_loop(lambda step, *_: step < steps, body, (0, window, states), shape_invariants=shapes)
            return tf.transpose(loop[2].stack()[:, 0], (2, 0, 1))

        archive = keras.export.ExportArchive()
        archive.track(self)
        shape = (None, self.memory_steps + 1, self.state_dim)
        signature = [tf.TensorSpec(shape, self.compute_dtype, "history"), tf.TensorSpec((), "int32", "steps")]
        archive.add_endpoint("serve", serve, input_signature=signature)
        archive.write_out(filepath, **kwargs)


class _EpochLogs(keras.callbacks.Callback):
    """Keep each epoch's logs and seconds with the model, ahead of all other callbacks, so that a backup holds them."""

    def on_epoch_begin(self, epoch, logs=None):
        self.start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        values = {name: float(value) for name, value in (logs or {}).items()}
        self.model.epoch_logs.append({**values, "seconds": time.perf_counter() - self.start})


class _Feed:
    """Hold the bursts of a running fit on the device, and draw each epoch's order of them."""

    def __init__(self, bursts, batch_size):
        self.bursts, self.batch_size = tf.constant(bursts), batch_size

    def order(self, seed, member_ids, epoch):
        """Return the epoch's sample numbers, `(step, member, batch)`, and the remainder `(member, rest)`."""
        samples = self.bursts.shape[0]

        def draw(member):
            return np.random.default_rng([seed, member, epoch, 1]).permutation(np.int32(samples))

        orders = np.stack(list(_engines.THREADS.map(draw, member_ids)))
        steps = samples // self.batch_size
        full = orders[:, : steps * self.batch_size].reshape(len(member_ids), steps, self.batch_size)
        return tf.constant(full.swapaxes(0, 1), "int32"), tf.constant(orders[:, steps * self.batch_size :], "int32")


def load(path, **kwargs) -> FlowMap:
    """Load a saved flow map: `keras.saving.load_model` with the class known.

    Args:
        path: a file that `FlowMap.save` wrote.
        **kwargs: passed to Keras, for instance `custom_objects` for an activation of your own.

    Raises:
        ValueError: if the file holds another kind of model.
    """
    model = keras.saving.load_model(path, **kwargs)
    if not isinstance(model, FlowMap):
        raise ValueError(f"{path} holds a {type(model).__name__}, expected a FlowMap saved by model.save('x.keras').")
    return model


def load_pretrained(benchmark: str, preset: str = "standard") -> FlowMap:
    """Load the ensemble behind a committed notebook, ready to forecast.

    Args:
        benchmark: its number in the paper, for instance "5.4.1".
        preset: what it was trained with; only "standard" is committed.

    Raises:
        ValueError: for an unknown benchmark, or where the package is installed without the repository.

    Example:
        >>> model = load_pretrained("5.4.1")
        >>> model.forecast(np.array([[[1.0, 1.0, 20.0]]]), steps=1000).shape
        (1, 1000, 3)
    """
    problems.check_known("benchmark", benchmark, problems.PAPER)
    path = results.committed(benchmark, preset).with_suffix(".keras")
    if not path.exists():
        raise ValueError(
            f"no pretrained ensemble of {benchmark} with the preset {preset!r} at {path}: clone the repository, "
            "install it with 'pip install -e .', and use preset='standard'."
        )
    return load(path)


def _to_lanes(entries):
    """Move `(batch, time, state)` or `(member, batch, time, state)` to lanes `(member or 1, time * state, batch)`."""
    if entries.shape.rank == 3:
        entries = entries[None]
    members, _, times, states = entries.shape
    return tf.transpose(tf.reshape(entries, (members, -1, times * states)), (0, 2, 1))


def _tiles(size):
    """Return how many equal parts a batch is worked off in: one, if none of `TILE` at most divide it."""
    least = -(-size // TILE)
    return next((count for count in range(least, 2 * least) if size % count == 0), 1)


def _batches(array, batch_size):
    """Return an array as a dataset of batches, in its own type: Keras would cast float64 to its default float."""
    return _untuned(tf.data.Dataset.from_tensor_slices(array).batch(batch_size))


def _untuned(dataset):
    """Return a dataset without TensorFlow's autotuning, whose thread sleeps twice as long each time, up to a minute:
    every iterator waits for it to wake before it ends, and an epoch of five seconds may take ten."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)

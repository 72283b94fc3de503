"""The flow map as a Keras tutorial would write it: one member, `Dense` layers, Keras's own training loop."""

from fml_tf.models import keras, tf


class PlainFlowMap(keras.Model):
    """Hold one residual network with the paper's multi-step loss, batch before features."""

    def __init__(self, state_dim, memory_steps, hidden, activation):
        super().__init__()
        self.memory_steps = memory_steps
        layers = [keras.layers.Dense(nodes, activation=activation) for nodes in hidden]
        self.network = keras.Sequential([keras.layers.Flatten(), *layers, keras.layers.Dense(state_dim)])
        self.loss_tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.loss_tracker]

    def call(self, window):
        return window[:, -1] + self.network(window)

    def train_step(self, bursts):
        first = self.memory_steps + 1
        steps = bursts.shape[1] - first
        with tf.GradientTape() as tape:
            window, loss = bursts[:, :first], 0.0
            for step in range(steps):
                state = self(window, training=True)
                loss += tf.reduce_mean(tf.reduce_sum(tf.square(state - bursts[:, first + step]), axis=-1))
                window = tf.concat([window[:, 1:], state[:, None]], axis=1)
            loss /= steps
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}


def build(bursts, *, memory_steps, hidden, activation, jit_compile):
    """Return a built and compiled model for bursts `(sample, burst_length, state)`."""
    model = PlainFlowMap(bursts.shape[-1], memory_steps, hidden, activation)
    model(bursts[:2, : memory_steps + 1])
    model.compile(keras.optimizers.Adam(1e-3), jit_compile=jit_compile)
    return model

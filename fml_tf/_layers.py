"""Parts of the stacked ensemble: a dense layer of all members at once, and the record of their losses.

Arrays are laid out `(member, feature, batch)`: see `fml_tf.models`.
"""

import numpy as np

from fml_tf._tensorflow import keras, tf


@keras.saving.register_keras_serializable(package="fml_tf")
class MemberDense(keras.layers.Layer):
    """Apply one fully connected layer of every member: z_m = W_m h_m + b_m.

    Args:
        units: outputs of the layer.
        member_ids: which members it holds; each draws its initial weights from its own seed.
        seed: seed of the initial weights, with the member and the layer's place.
        place: number of the layer in the network.
        kernel_initializer: any Keras initializer; biases start at zero.
    """

    def __init__(self, units, *, member_ids, seed, place, kernel_initializer="glorot_uniform", **kwargs):
        super().__init__(**kwargs)
        self.units, self.member_ids, self.seed, self.place = units, tuple(member_ids), seed, place
        self.kernel_initializer = keras.initializers.get(kernel_initializer)

    def build(self, input_shape):
        members, features = len(self.member_ids), input_shape[1]
        self.kernel = self.add_weight(
            shape=(members, self.units, features), initializer=self._initial_kernel, name="kernel"
        )
        self.bias = self.add_weight(shape=(members, self.units, 1), initializer="zeros", name="bias")

    def _initial_kernel(self, shape, dtype=None):
        """Draw each member's kernel from (seed, place, member), so that a member is the same in any company."""
        kernels = []
        for member in self.member_ids:
            config = self.kernel_initializer.get_config()
            if "seed" in config:
                config["seed"] = int(np.random.default_rng([self.seed, self.place, member]).integers(2**31))
            draw = type(self.kernel_initializer).from_config(config)
            kernels.append(tf.transpose(tf.convert_to_tensor(draw(shape[:0:-1], dtype=dtype))))  # drawn (in, out)
        return tf.stack(kernels)

    def call(self, inputs):
        """Return the layer's outputs `(member, units, batch)` for inputs `(member or 1, feature, batch)`."""
        return affine(inputs, self.kernel, self.bias)

    def compute_output_shape(self, input_shape):
        return (len(self.member_ids), self.units, input_shape[2])

    def get_config(self):
        initializer = keras.initializers.serialize(self.kernel_initializer)
        own = dict(units=self.units, member_ids=self.member_ids, seed=self.seed, place=self.place)
        return {**super().get_config(), **own, "kernel_initializer": initializer}


def affine(inputs, kernel, bias, known=0):
    """Return W h + b of every member, `(member, out, batch)`, with a backward pass in the shapes XLA does best.

    The first `known` features of the inputs are data, which no gradient goes to. On a CPU, contracting the first axis
    of a small kernel costs twice as much as contracting its last, and a reduction over the batch several times a
    product with ones.
    """
    if inputs.shape[0] != kernel.shape[0]:
        return tf.matmul(kernel, inputs) + bias  # one window for all members: only forecasts do this
    # The product with the identity is exact, and keeps XLA from folding the transpose back into the next product.
    identity = tf.eye(kernel.shape[2], batch_shape=kernel.shape[:1], dtype=kernel.dtype)
    transposed = tf.stop_gradient(tf.matmul(identity, kernel, transpose_b=True))

    @tf.custom_gradient
    def product(kernel, bias, inputs):
        def gradient(upstream):
            ones = tf.ones_like(upstream[:, :1])
            downstream = tf.matmul(transposed[:, known:], upstream)
            return (
                tf.matmul(upstream, inputs, transpose_b=True),
                tf.matmul(upstream, ones, transpose_b=True),
                tf.concat([tf.zeros_like(inputs[:, :known]), downstream], axis=1) if known else downstream,
            )

        return tf.matmul(kernel, inputs) + bias, gradient

    return product(kernel, bias, inputs)


class MemberMean(keras.metrics.Metric):
    """Track the mean loss of every member; its result is their average, the ensemble's logged `loss`."""

    def __init__(self, members, name="loss", **kwargs):
        super().__init__(name=name, **kwargs)
        self.total = self.add_variable((members,), "zeros", dtype=self.dtype, name="total")
        self.count = self.add_variable((), "zeros", dtype=self.dtype, name="count")

    def update_state(self, losses, samples):
        """Add the members' mean losses `(member,)` over a number of samples."""
        samples = tf.cast(samples, self.total.dtype)
        self.total.assign_add(tf.cast(losses, self.total.dtype) * samples)
        self.count.assign_add(samples)

    def per_member(self):
        """Return the mean loss of each member, `(member,)`."""
        return tf.math.divide_no_nan(tf.convert_to_tensor(self.total), tf.convert_to_tensor(self.count))

    def result(self):
        return tf.reduce_mean(self.per_member())

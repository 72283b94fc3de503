"""Soap: Adam where its bases are the identity, better where they matter. Levenberg-Marquardt: its equations, its fall.
Every member alone."""

import numpy as np
import pytest

from fml_tf import models, optimizers, problems
from fml_tf._tensorflow import keras, tf
from fml_tf.data import sample_bursts


def weights(model):
    return [np.array(v) for v in model.trainable_variables]


def test_it_is_adam_until_its_bases_are_renewed(bursts, compiled):
    data = bursts(40)
    models = []
    for kind in (optimizers.Soap, keras.optimizers.Adam):
        model = compiled(optimizer=kind(1e-2, beta_1=0.9, beta_2=0.97, epsilon=1e-12))
        model.fit(data, batch_size=8, epochs=1, verbose=0, restore_best=False)
        models.append(model)
    for mine, adams in zip(weights(models[0]), weights(models[1]), strict=True):
        np.testing.assert_allclose(mine, adams, rtol=1e-5, atol=1e-6)
    for model in models:
        model.fit(data, batch_size=8, epochs=1, verbose=0, restore_best=False)
    assert np.abs(weights(models[0])[0] - weights(models[1])[0]).max() > 1e-4, "and then no more"


def test_renewed_bases_diagonalise_the_averages_and_keep_the_second_moment(bursts, compiled):
    model = compiled(optimizer=optimizers.Soap(1e-3), memory_steps=2)
    model.fit(bursts(40, memory_steps=2), batch_size=8, epochs=2, verbose=0)
    optimizer = model.optimizer
    for average, basis in zip(
        optimizer._left + optimizer._right, optimizer._left_bases + optimizer._right_bases, strict=True
    ):
        basis = basis.numpy()
        turned = np.swapaxes(basis, 1, 2) @ average.numpy() @ basis
        off = turned - turned * np.eye(turned.shape[-1])
        np.testing.assert_allclose(off, 0, atol=1e-12 * np.abs(turned).max())
        identity = np.broadcast_to(np.eye(basis.shape[-1]), basis.shape)
        np.testing.assert_allclose(np.swapaxes(basis, 1, 2) @ basis, identity, atol=1e-12)
    before = [v.numpy().sum() for v in optimizer._velocities]
    optimizer.renew()
    np.testing.assert_allclose([v.numpy().sum() for v in optimizer._velocities], before, rtol=1e-10)


def test_it_tells_nearly_collinear_entries_of_a_history_apart(compiled):
    """Histories of a pendulum through its angle alone, one step ahead: Adam's epochs, a fraction of its loss."""
    problem = problems.get("5.3.3", "quick", n_trajectories=300, trajectory_length=100, multi_steps=0)
    data, losses = sample_bursts(problem), {}
    schedule = keras.optimizers.schedules.CosineDecay(1e-2, 40 * len(data) // 50)
    for optimizer in (optimizers.Soap(schedule), keras.optimizers.Adam(schedule)):
        model = compiled(1, memory_steps=10, normalization="whitened", hidden=(10, 10), optimizer=optimizer)
        model.fit(data, batch_size=50, epochs=40, verbose=0)
        losses[type(optimizer).__name__] = model.evaluate_members(data).mean()
    assert losses["Soap"] < losses["Adam"] / 3


def test_members_stay_independent(bursts, compiled):
    data = bursts(64, memory_steps=1)
    options = dict(memory_steps=1, normalization="whitened", seed=3)
    many = compiled(members=4, optimizer=optimizers.Soap(1e-2), **options)
    alone = compiled(members=(2,), optimizer=optimizers.Soap(1e-2), **options)
    for model in (many, alone):
        model.fit(data, batch_size=8, epochs=6, verbose=0, restore_best=False)
    for mine, its in zip(weights(many), weights(alone), strict=True):
        np.testing.assert_allclose(mine[2], its[0], rtol=1e-9, atol=1e-10)


def test_an_interrupted_training_resumes_to_the_last_bit(bursts, compiled, tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 2:
                raise KeyboardInterrupt

    data = bursts(40)
    whole = compiled(optimizer=optimizers.Soap(1e-2))
    whole.fit(data, batch_size=8, epochs=6, verbose=0)
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(KeyboardInterrupt):
        compiled(optimizer=optimizers.Soap(1e-2)).fit(
            data, batch_size=8, epochs=6, verbose=0, callbacks=[backup, Stop()]
        )
    resumed = compiled(optimizer=optimizers.Soap(1e-2))
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    resumed.fit(data, batch_size=8, epochs=6, verbose=0, callbacks=[backup])
    for mine, its in zip(weights(whole), weights(resumed), strict=True):
        np.testing.assert_array_equal(mine, its)


def test_its_configuration_survives_with_a_schedule(bursts, compiled, tmp_path):
    schedule = keras.optimizers.schedules.CosineDecay(1e-2, 10)
    model = compiled(optimizer=optimizers.Soap(schedule, beta_3=0.9))
    model.fit(bursts(40), batch_size=8, epochs=1, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.optimizer.beta_3 == 0.9
    for mine, its in zip(model.optimizer.variables, again.optimizer.variables, strict=True):
        np.testing.assert_array_equal(mine, its)


def test_bad_values_and_shapes_are_refused():
    with pytest.raises(ValueError, match="beta_2=1: expected a decay"):
        optimizers.Soap(beta_2=1)
    with pytest.raises(ValueError, match="epsilon=0: expected a positive"):
        optimizers.Soap(epsilon=0)
    with pytest.raises(ValueError, match=r"Soap is for weights \(member, out, in\)"):
        optimizers.Soap().build([keras.Variable(np.zeros((2, 3)))])


# Levenberg-Marquardt --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("normalization", "residual", "skip"),
    [(None, True, None), ("standard", False, None), ("whitened", True, None), ("standard", True, "linear")],
)
def test_normal_equations_are_those_of_the_jacobian(bursts, compiled, normalization, residual, skip):
    """Against automatic differentiation, compiled, for chunk sizes that leave a remainder and that do not."""
    data = 2 + bursts(72, memory_steps=2)
    options = dict(memory_steps=2, normalization=normalization, residual=residual, skip=skip)
    model = compiled(optimizer=optimizers.LevenbergMarquardt(), hidden=(24, 24), members=2, **options)
    model.adapt(data)
    lanes = tf.repeat(models._to_lanes(tf.constant(data)), 2, axis=0)
    weights = [tf.convert_to_tensor(v) for v in model.trainable_variables]
    with tf.GradientTape() as tape:
        tape.watch(weights)
        window, target = lanes[:, :6], tf.reshape(lanes[:, 6:], (2, -1, 2, 72))
        residuals = model.unroll(window, target.shape[1], model.network(weights=weights)) - target
    parts = tape.jacobian(residuals, weights)  # (member, step, state, batch) by (member, out, in)
    scale = 1 / np.sqrt(72 * target.shape[1])
    for chunk in (72, 48, 7):
        equations = tf.function(optimizers._normal_equations, jit_compile=True, autograph=False)
        matrix, slope, losses = equations(model, weights, lanes, chunk)
        for member in range(2):
            jacobian = np.concatenate(
                [part[member, ..., member, :, :].numpy().reshape(72 * target.shape[1] * 2, -1) for part in parts],
                axis=1,
            )
            error = residuals[member].numpy().ravel()
            expected = scale**2 * jacobian.T @ jacobian
            np.testing.assert_allclose(matrix[member], expected, atol=1e-5 * expected.max())
            expected = scale**2 * jacobian.T @ error
            np.testing.assert_allclose(slope[member], expected, atol=1e-5 * np.abs(expected).max())
            np.testing.assert_allclose(losses[member], scale**2 * error @ error, rtol=1e-9)


def test_it_goes_on_where_soap_stalls_and_never_up(compiled):
    """A damped pendulum, fully observed: from the same start, on the whole set at once."""
    problem = problems.get("5.3.1", "quick", n_trajectories=200, multi_steps=2)
    data = sample_bursts(problem)
    options = dict(hidden=(8, 8), members=2, normalization="standard", dtype="float32")
    model = compiled(optimizer=optimizers.Soap(3e-3), **options)
    model.fit(data, batch_size=100, epochs=40, verbose=0)
    soap = model.evaluate_members(data)
    model.compile(optimizers.LevenbergMarquardt())
    model.fit(data, batch_size=len(data), epochs=30, verbose=0)
    losses = model.member_losses[40:]
    assert (np.diff(losses, axis=0) <= 1e-6 * losses[:-1]).all()
    assert (model.evaluate_members(data) < soap / 10).all()


def test_its_members_are_independent_and_its_damping_is_saved(bursts, compiled, tmp_path):
    data = bursts(64, memory_steps=1)
    options = dict(memory_steps=1, normalization="whitened", seed=3)
    many = compiled(members=3, optimizer=optimizers.LevenbergMarquardt(1.0), **options)
    alone = compiled(members=(2,), optimizer=optimizers.LevenbergMarquardt(1.0), **options)
    for model in (many, alone):
        model.fit(data, batch_size=32, epochs=1, verbose=0, restore_best=False)
    for mine, its in zip(weights(many), weights(alone), strict=True):  # as far as products in float32 are the same
        np.testing.assert_allclose(mine[2], its[0], rtol=1e-3, atol=1e-4)
    many.fit(data, batch_size=32, epochs=2, verbose=0)
    many.save(tmp_path / "model.keras")
    loaded = models.load(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.optimizer._dampings, many.optimizer._dampings)
    assert np.ptp(np.log(loaded.optimizer._dampings)) > 0, "each member has its own"
    bare = many.without_optimizer()  # whose programs are XLA's
    np.testing.assert_array_equal(bare.forecast(data[:, :2], 20), many.forecast(data[:, :2], 20))


def test_it_runs_eagerly_as_it_does_compiled(bursts, compiled):
    data, losses = bursts(40), []
    for options in ({}, {"jit_compile": False}, {"run_eagerly": True}):
        model = compiled()
        model.compile(optimizers.LevenbergMarquardt(1.0), **options)
        model.fit(data, batch_size=20, epochs=2, verbose=0)
        losses.append(model.member_losses)
    for other in losses[1:]:
        np.testing.assert_allclose(other, losses[0], rtol=1e-3)


def test_it_refuses_what_it_does_not_know(compiled):
    class Own(models.FlowMap):
        def advance(self, window, network=None, *, average=False):
            return super().advance(window, network, average=average)

    own = Own(2, hidden=(4,), members=2)
    frozen = compiled()
    frozen.dense_layers[0].trainable = False
    for model in (own, frozen):
        with pytest.raises(ValueError, match="choose another optimiser"):
            model.compile(optimizers.LevenbergMarquardt())
    with pytest.raises(ValueError, match=r"3,962 are too many .*choose Soap or Adam"):
        compiled(hidden=(60, 60), optimizer=optimizers.LevenbergMarquardt())
    for options, message in (
        (dict(damping=0.0), "damping=0.0: expected a positive number"),
        (dict(increase=1.0), "increase=1.0: expected a factor above 1"),
        (dict(trials=0), "trials=0: expected a whole number"),
    ):
        with pytest.raises(ValueError, match=message):
            optimizers.LevenbergMarquardt(**options)


def test_a_diverged_member_stays_and_the_others_go_on(bursts, compiled):
    data = bursts(64)
    model = compiled(optimizer=optimizers.LevenbergMarquardt())
    model.dense_layers[0].kernel.assign(model.dense_layers[0].kernel * np.array([1, np.nan, 1])[:, None, None])
    before = weights(model)
    with pytest.warns(RuntimeWarning, match=r"member\(s\) 1 never had a finite loss"):
        model.fit(data, batch_size=32, epochs=2, verbose=0, restore_best=False)
    for old, new in zip(before, weights(model), strict=True):
        np.testing.assert_array_equal(old[1], new[1])
        assert (old[[0, 2]] != new[[0, 2]]).any()

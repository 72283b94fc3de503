"""Soap: Adam where its bases are the identity, better where they matter, and every member alone."""

import numpy as np
import pytest

from fml_tf import optimizers, problems
from fml_tf._tensorflow import keras
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

"""Training: schedules at known steps, the loss-decay check, and quiet progress."""

import dataclasses

import numpy as np
import pytest

from fml_tf import data, metrics, problems, training
from fml_tf.models import keras


def test_cosine_falls_from_first_to_final():
    rate = training.learning_rate("cosine", 3e-3, final=1e-6, steps=1000)
    values = [float(rate(step)) for step in (0, 500, 1000, 5000)]
    np.testing.assert_allclose(values, [3e-3, (3e-3 + 1e-6) / 2, 1e-6, 1e-6], rtol=1e-4)


def test_one_cycle_rises_for_three_tenths_and_falls_to_final():
    rate = training.learning_rate("one_cycle", 1e-2, final=1e-6, steps=1000)
    values = [float(rate(step)) for step in (0, 150, 300, 650, 1000)]
    np.testing.assert_allclose(values, [4e-4, 5.2e-3, 1e-2, (1e-2 + 1e-6) / 2, 1e-6], rtol=1e-4)


def test_cyclic_is_a_triangle_between_its_bounds():
    rate = training.learning_rate("cyclic", 1e-3, final=1e-4, steps=100, cycles=5)
    values = [float(rate(step)) for step in (0, 5, 10, 15, 20, 30)]
    np.testing.assert_allclose(values, [1e-4, 5.5e-4, 1e-3, 5.5e-4, 1e-4, 1e-3], rtol=1e-5)


def test_cyclic_survives_serialisation_and_training(bursts, compiled):
    rate = training.CyclicLearningRate(1e-4, 1e-2, 10)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(rate))
    assert again.get_config() == rate.get_config()
    model = compiled(optimizer=keras.optimizers.Adam(rate))
    history = model.fit(bursts(40), batch_size=8, epochs=5, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]


def test_constant_is_the_number():
    assert training.learning_rate("constant", 1e-4, steps=10) == 1e-4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: training.learning_rate("step", 1e-3, steps=10), "expected constant, cosine, one_cycle or cyclic"),
        (lambda: training.learning_rate("cosine", 1e-3, final=1e-2, steps=10), "final=0.01 is above rate=0.001"),
        (lambda: training.learning_rate("constant", -1.0, steps=10), "expected a positive rate"),
        (lambda: training.CyclicLearningRate(1e-3, 1e-4, 10), "expected 0 <= lower < upper"),
        (lambda: training.CyclicLearningRate(1e-4, 1e-3, 1), "at least 2 training steps"),
        (lambda: training.loss_decay([1.0], [1.0, 2.0]), "expected one loss a member"),
        (lambda: training.loss_decay([1.0], [np.nan]), "losses must be positive"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_loss_decay_counts_decades_and_warns_of_members_below_two():
    np.testing.assert_allclose(training.loss_decay([1.0, 10.0], [1e-3, 1e-3]), [3, 4])
    with pytest.warns(UserWarning, match="member\\(s\\) 1, 2 fell by less than 2 decades"):
        training.loss_decay([1.0, 1.0, 1.0], [1e-4, 0.5, 0.02])


def test_progress_prints_a_plain_line_every_so_many_epochs(bursts, compiled, capsys):
    progress = training.Progress(every=4)
    compiled().fit(bursts(40), batch_size=8, epochs=10, verbose=0, callbacks=[progress])
    lines = capsys.readouterr().out.splitlines()
    assert [int(line.split()[1].split("/")[0]) for line in lines] == [1, 4, 8, 10]
    assert all("loss" in line and "learning rate 1.0e-03" in line and "\r" not in line for line in lines)
    assert len(progress.epoch_seconds) == 10
    assert 0 <= progress.compile_seconds <= progress.epoch_seconds[0]


@pytest.mark.parametrize("benchmark", ["5.1.2", "5.4.1"])
def test_a_record_builds_its_model_compiled_with_its_schedule(benchmark):
    problem = problems.get(benchmark, "quick", members=3)
    model = training.build(problem, seed=5)
    for name in ("memory_steps", "hidden", "members", "normalization", "time_step", "state_names"):
        assert getattr(model, name) == getattr(problem, name), name
    assert (model.seed, model.state_dim) == (5, len(problem.observed))
    rate = model.optimizer.learning_rate
    assert float(rate) == pytest.approx(problem.learning_rate)
    model.optimizer.iterations.assign(problem.epochs * problem.n_samples // problem.batch_size)
    assert float(model.optimizer.learning_rate) == pytest.approx(problem.final_learning_rate, rel=1e-3)


def test_a_record_trains_its_stages_first_each_with_its_own_optimizer(capsys):
    """A tiny pendulum: what each fit got, and that scales come from the data as they are."""
    stages = (
        problems.Stage(3, batch_size=50),
        problems.Stage(2, multi_steps=1, optimizer="levenberg_marquardt", batch_size=10**6, noise=0.0),
    )
    problem = problems.get("5.3.3", "quick", n_trajectories=40, epochs=2, batch_size=20, stages=stages, noise=0.5)
    bursts, fits, rough = data.sample_bursts(problem), [], []

    class Watch(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            samples = self.model._feed.bursts.numpy()
            rough.append(np.diff(samples[:, :11], n=2, axis=1).std() / bursts.std())
            fits.append(
                (type(self.model.optimizer).__name__, self.params["epochs"], samples.shape, self.model._feed.batch_size)
            )

    model = training.build(problem)
    training.train(model, problem, bursts, callbacks=[Watch(), training.Progress()])
    assert fits == [
        ("Soap", 3, (600, 12, 1), 50),
        ("LevenbergMarquardt", 2, (600, 13, 1), 600),
        ("Soap", 2, (200, 22, 1), 20),
    ]
    np.testing.assert_allclose(rough, [0.5 * 6**0.5, 0, 0.5 * 6**0.5], atol=0.1, err_msg="the second has no noise")
    large = dataclasses.replace(problem, batch_size=201)
    with pytest.raises(ValueError, match="batch_size=201 is larger than the data, 200 bursts"):
        training.train(training.build(large), dataclasses.replace(large, stages=()), bursts)
    clean = training.build(problem)
    clean.adapt(bursts)
    np.testing.assert_array_equal(model.input_matrix, clean.input_matrix)
    assert model.member_losses.shape == (7, 2)
    lines = capsys.readouterr().out.splitlines()
    assert ["learning rate" in line for line in lines] == [True] * 3 + [False] * 2 + [True] * 2


@pytest.mark.parametrize("averaging", ["equal", "inverse_loss"])
def test_a_record_says_how_members_are_averaged(averaging):
    problem = problems.get("5.1.1", "quick", members=3, n_trajectories=50, epochs=2, averaging=averaging)
    bursts = data.sample_bursts(problem, seed=0)
    model = training.build(problem)
    training.train(model, problem, bursts)
    losses = model.evaluate_members(bursts)
    expected = np.ones(3) if averaging == "equal" else 1 / losses
    np.testing.assert_allclose(model.shares, expected / expected.sum(), rtol=1e-5)


def test_an_interrupted_training_goes_on_to_the_same_weights(tmp_path):
    """Stopped in its second stage: the first is not trained again, and the backup is gone at the end."""
    stages = (problems.Stage(3, batch_size=20), problems.Stage(4, multi_steps=1, batch_size=20))
    problem = problems.get("5.1.2", "quick", n_trajectories=40, members=2, epochs=2, batch_size=20, stages=stages)
    bursts, seen = data.sample_bursts(problem), []

    class Stop(keras.callbacks.Callback):
        def __init__(self, last):
            super().__init__()
            self.left = last

        def on_epoch_end(self, epoch, logs=None):
            seen.append(epoch)
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt

    whole = training.build(problem)
    assert training.train(whole, problem, bursts) > 0
    backup = tmp_path / "a b" / "backup"
    with pytest.raises(KeyboardInterrupt):
        training.train(training.build(problem), problem, bursts, callbacks=[Stop(5)], backup=backup)
    assert [path.name for path in backup.glob("*/*")] == ["0.weights.h5"]
    other = training.build(problem, seed=1)
    training.train(other, problem, bursts, backup=backup)
    assert other.member_losses.shape == (9, 2), "another training starts anew"
    seen.clear()
    resumed = training.build(problem)
    seconds = training.train(resumed, problem, bursts, callbacks=[Stop(99)], backup=backup)
    assert seen == [0, 1, 2, 3, 0, 1]
    assert seconds == pytest.approx(sum(log["seconds"] for log in resumed.epoch_logs))
    assert len(resumed.epoch_logs) == 9
    for one, two in zip(whole.variables, resumed.variables, strict=True):
        np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(whole.member_losses, resumed.member_losses)
    assert not list(backup.iterdir())


def test_a_backup_that_cannot_be_written_is_refused_before_training(tmp_path):
    problem = problems.get("5.1.1", "quick", n_trajectories=20, members=1, batch_size=20)
    (tmp_path / "file").touch()
    model = training.build(problem)
    with pytest.raises(ValueError, match=r"cannot make the folder .*file.*: give another backup"):
        training.train(model, problem, data.sample_bursts(problem), backup=tmp_path / "file")
    assert not len(model.member_losses)


def test_a_backup_holds_the_epochs_of_a_minute(tmp_path, monkeypatch):
    """A minute passes with every look at the clock: stopped within a stage, the epochs before are not lost."""
    clock = iter(range(0, 10**6, 61))
    monkeypatch.setattr(training.time, "monotonic", lambda: next(clock))
    problem = problems.get("5.1.1", "quick", n_trajectories=40, members=2, epochs=6, batch_size=20)
    bursts, left = data.sample_bursts(problem), [4]

    def stop(epoch, logs):
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    whole = training.build(problem)
    training.train(whole, problem, bursts)
    callback = keras.callbacks.LambdaCallback(on_epoch_end=stop)
    with pytest.raises(KeyboardInterrupt):
        training.train(training.build(problem), problem, bursts, callbacks=[callback], backup=tmp_path)
    left[0] = 99
    resumed = training.build(problem)
    training.train(resumed, problem, bursts, callbacks=[callback], backup=tmp_path)
    assert left == [96], "three epochs were left"
    for one, two in zip(whole.variables, resumed.variables, strict=True):
        np.testing.assert_array_equal(one, two)
    again = resumed.fit(bursts, batch_size=20, epochs=2, verbose=0)
    assert again.epoch == [0, 1], "a later fit starts from its own first epoch"


@pytest.mark.parametrize("benchmark", ["5.1.1", "5.1.2", "5.2.1", "5.2.2"])
def test_a_linear_skip_learns_a_linear_system_from_data_in_single_precision(benchmark):
    record = problems.get(benchmark, n_trajectories=2000, members=2, normalization="standard", skip="linear")
    record = dataclasses.replace(record, dtype="float64", n_test=20)
    model = training.build(record)
    model.adapt(data.sample_bursts(record).astype("float32"))
    history, truth = np.split(data.sample_trajectories(record, seed=1), [record.memory_steps + 1], axis=1)
    assert metrics.score(record, model.forecast(history, record.horizon), truth) < 1e-7

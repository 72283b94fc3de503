"""FlowMap: the loss, independence of members, forecasts, files, and what it refuses."""

import concurrent.futures
import csv
import json
import signal
import subprocess
import sys
import textwrap

import h5py
import numpy as np
import pytest
from scipy.linalg import expm

from fml_tf import _engines, metrics, models, optimizers
from fml_tf._tensorflow import keras, tf

REPEATED = {"batch_size": 8, "verbose": 0}


def numpy_advance(model, member, window):
    """Make one step of a member by hand: window (batch, n_M + 1, state) → next state (batch, state)."""
    hidden = window.reshape(len(window), -1)
    if model.normalization:
        hidden = (hidden - np.ravel(model.input_mean)) @ np.asarray(model.input_matrix).T
    for layer in model.dense_layers:
        hidden = hidden @ np.asarray(layer.kernel)[member].T + np.asarray(layer.bias)[member, :, 0]
        hidden = np.tanh(hidden) if layer is not model.dense_layers[-1] else hidden
    if model.normalization:
        hidden = hidden * np.ravel(model.output_scale) + np.ravel(model.output_mean)
    if model.skip:
        hidden += window.reshape(len(window), -1) @ np.asarray(model.skip_matrix).T
    return window[:, -1] + hidden if model.residual else hidden


def numpy_forecast(model, history, steps):
    """Roll the ensemble out by hand with the mean at each step."""
    window, states = np.array(history), []
    for _ in range(steps):
        each = [numpy_advance(model, m, window) for m in range(model.members)]
        states.append(np.average(each, axis=0, weights=model.shares))
        window = np.concatenate([window[:, 1:], states[-1][:, None]], axis=1)
    return np.stack(states, axis=1)


def numpy_loss(model, member, bursts):
    """Compute the multi-step loss by hand, as the paper writes it."""
    n = model.memory_steps
    window, total = bursts[:, : n + 1], 0.0
    steps = bursts.shape[1] - n - 1
    for k in range(steps):
        state = numpy_advance(model, member, window)
        total += np.sum((bursts[:, n + 1 + k] - state) ** 2)
        window = np.concatenate([window[:, 1:], state[:, None]], axis=1)
    return total / (len(bursts) * steps)


def run_python(code, *arguments):
    """Run code in a fresh process and return what it printed."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


# The loss ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory_steps", [0, 3])
@pytest.mark.parametrize("multi_steps", [0, 4])
@pytest.mark.parametrize("state_dim", [1, 3])
def test_multi_step_loss_equals_a_numpy_loop(bursts, compiled, memory_steps, multi_steps, state_dim):
    data = bursts(11, memory_steps, multi_steps, state_dim)
    for dtype in ("float64", "float32"):
        model = compiled(state_dim, memory_steps=memory_steps, dtype=dtype)
        expected = [numpy_loss(model, m, data) for m in range(3)]
        np.testing.assert_allclose(model.evaluate_members(data), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {"normalization": "standard"},
        {"normalization": "whitened"},
        {"residual": False},
        {"residual": False, "normalization": "whitened"},
        {"normalization": "standard", "skip": "linear"},
        {"residual": False, "normalization": "whitened", "skip": "linear"},
    ],
)
def test_other_forms_equal_a_numpy_loop(bursts, compiled, options):
    data = 3 + 5 * bursts(11, 3, 4)
    model = compiled(memory_steps=3, **options)
    model.adapt(data)
    expected = [numpy_loss(model, m, data) for m in range(3)]
    np.testing.assert_allclose(model.evaluate_members(data), expected, rtol=1e-10)


def test_a_long_unroll_is_a_loop_with_the_same_loss_and_gradient(bursts, compiled, monkeypatch):
    data, results = bursts(8, 1, 6), []
    for limit in (models.FlowMap.unroll_limit, 3):
        monkeypatch.setattr(models.FlowMap, "unroll_limit", limit)
        model = compiled(memory_steps=1)
        model.fit(data, epochs=2, **REPEATED)
        results.append([*model.member_losses.ravel(), *np.ravel(model.dense_layers[0].kernel)])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-12)


def test_gradient_is_that_of_the_loss(bursts, compiled):
    model, data = compiled(memory_steps=2), bursts(6, 2, 3)
    lanes = models._to_lanes(tf.constant(data))
    for layer in (model.dense_layers[0], model.dense_layers[-1]):
        for variable in (layer.kernel, layer.bias):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model.burst_losses(lanes))
            analytic = tape.gradient(loss, variable.value)
            index, start, h = (1, 0, 0), variable.numpy(), 1e-6
            moved = []
            for sign in (1, -1):
                shifted = start.copy()
                shifted[index] += sign * h
                variable.assign(shifted)
                moved.append(float(tf.reduce_sum(model.burst_losses(lanes))))
            variable.assign(start)
            assert float(analytic[index]) == pytest.approx((moved[0] - moved[1]) / (2 * h), rel=1e-6)


def test_history_loss_equals_a_hand_computed_mean(bursts, compiled):
    """Without learning, the epoch's mean is the mean over all bursts, the smaller last batch weighted by its size."""
    data = bursts(43)
    model = compiled(optimizer=keras.optimizers.SGD(0.0))
    history = model.fit(data, batch_size=10, epochs=2, verbose=0)
    expected = np.array([numpy_loss(model, m, data) for m in range(3)])
    np.testing.assert_allclose(history.history["loss"], [expected.mean()] * 2, rtol=1e-12)
    np.testing.assert_allclose(model.member_losses, [expected] * 2, rtol=1e-12)


def test_history_loss_is_the_mean_over_batches_while_learning(bursts, compiled):
    """One epoch in Keras's own loop, batch by batch on the same order, gives the same loss and weights."""
    data, batch = bursts(40), 8
    model, twin = compiled(members=1), compiled(members=1)
    history = model.fit(data, batch_size=batch, verbose=0, restore_best=False)
    order = models._Feed(data, batch).order(0, (0,), 0)[0].numpy()[:, 0]
    losses = []
    for samples in order:
        losses.append(numpy_loss(twin, 0, data[samples]))
        twin.train_step(tf.constant(data[samples]))
    assert history.history["loss"][0] == pytest.approx(np.mean(losses), rel=1e-12)
    np.testing.assert_allclose(model.dense_layers[1].kernel.numpy(), twin.dense_layers[1].kernel.numpy(), rtol=1e-12)


# Members ----------------------------------------------------------------------------------------------------


def test_member_of_ten_equals_the_same_member_trained_alone(bursts, compiled):
    data = bursts(100, 1)
    ten = compiled(memory_steps=1, members=10)
    ten.fit(data, batch_size=10, epochs=5, verbose=0)  # 50 steps
    for index in (0, 3, 9):
        alone = compiled(memory_steps=1, members=(index,))
        alone.fit(data, batch_size=10, epochs=5, verbose=0)
        for together, single in zip(ten.dense_layers, alone.dense_layers, strict=True):
            np.testing.assert_allclose(together.kernel.numpy()[index], single.kernel.numpy()[0], atol=1e-10)
        np.testing.assert_allclose(ten.member_losses[:, index], alone.member_losses[:, 0], rtol=1e-10)


def test_members_differ_in_weights_and_order():
    model = models.FlowMap(2, members=3)
    kernel = model.dense_layers[0].kernel.numpy()
    assert len(np.unique(kernel[:, 0, 0])) == 3
    orders = models._Feed(np.zeros((30, 2, 2)), 10).order(0, (0, 1, 2), 0)[0].numpy()
    assert sorted(orders[:, 1].ravel()) == list(range(30))
    assert not np.array_equal(orders[:, 0], orders[:, 1])


def test_a_diverging_member_leaves_the_others_alone(bursts, compiled):
    data = bursts(40)
    model, healthy = compiled(), compiled()
    kernel = model.dense_layers[0].kernel.numpy()
    kernel[1] = np.nan
    model.dense_layers[0].kernel.assign(kernel)
    with pytest.warns(RuntimeWarning, match="member\\(s\\) 1 never had a finite loss"):
        model.fit(data, epochs=3, **REPEATED)
    healthy.fit(data, epochs=3, **REPEATED)
    np.testing.assert_array_equal(model.member_losses[:, [0, 2]], healthy.member_losses[:, [0, 2]])
    assert np.isnan(model.member_losses[:, 1]).all()


def test_each_member_ends_with_the_weights_of_its_best_epoch(bursts, compiled):
    """At a rate that makes the loss jump, weights after every epoch are kept by hand and compared."""
    data, kept = bursts(40), []
    model = compiled(learning_rate=0.3)
    record = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: kept.append(model.dense_layers[1].kernel.numpy())
    )
    model.fit(data, epochs=12, callbacks=[record], **REPEATED)
    best = model.member_losses.argmin(axis=0)
    assert (best < 11).any(), "the test needs a member whose best epoch is not the last"
    for member, epoch in enumerate(best):
        np.testing.assert_array_equal(model.dense_layers[1].kernel.numpy()[member], kept[epoch][member])


def test_restore_best_false_keeps_the_last_weights_until_asked(bursts, compiled):
    data = bursts(40)
    last, best = compiled(learning_rate=0.3), compiled(learning_rate=0.3)
    last.fit(data, epochs=12, restore_best=False, **REPEATED)
    best.fit(data, epochs=12, **REPEATED)
    assert not np.array_equal(last.dense_layers[0].kernel.numpy(), best.dense_layers[0].kernel.numpy())
    last.restore_best_members()
    np.testing.assert_array_equal(last.dense_layers[0].kernel.numpy(), best.dense_layers[0].kernel.numpy())


@pytest.mark.parametrize(("members", "state_dim"), [(4, 2), (2, 2), (2, 3), (3, 3), (1, 1)])
def test_member_is_a_model_of_its_own(bursts, compiled, members, state_dim, tmp_path):
    data = 2 + bursts(40, 1, state_dim=state_dim)
    options = dict(memory_steps=1, normalization="standard", members=members, activation=lambda x: tf.sin(x))
    model = compiled(state_dim, **options)
    model.adapt(data)
    apart = model.forecast(data[:5, :2], 7, average=None)
    for index in range(members):
        alone = model.member(index)
        assert alone.member_ids == (index,)
        np.testing.assert_allclose(alone.forecast(data[:5, :2], 7), apart[index], rtol=1e-12)
        assert alone.member_losses.shape == (0, 1)
    with pytest.raises(ValueError, match=f"members 0 to {members - 1}"):
        model.member(members)
    with pytest.raises(ValueError, match="lambda as activation"):
        model.save(tmp_path / "model.keras")


def test_some_members_are_an_ensemble(bursts, compiled):
    model, history = compiled(members=4), bursts(10)[:, :1]
    some = model.member(slice(1, 3))
    assert some.member_ids == (1, 2)
    expected = model.forecast(history, 1, average=None)[1:3].mean(axis=0)
    np.testing.assert_allclose(some.forecast(history, 1), expected, rtol=1e-6)
    some = model.member([3, 0])
    assert some.member_ids == (3, 0)
    np.testing.assert_allclose(
        some.forecast(history, 1, average=None), model.forecast(history, 1, average=None)[[3, 0]]
    )
    for none in (slice(4, 6), slice(2, 2), "1", -1, [0, 4], [1, 1], [], [0.0], [[0, 1]], [True, False], None):
        with pytest.raises(ValueError, match="members 0 to 3"):
            model.member(none)


@pytest.mark.parametrize("options", [{}, {"normalization": "standard", "residual": False, "memory_steps": 1}])
def test_a_member_of_less_loss_has_more_of_the_mean(bursts, compiled, options, tmp_path):
    model, data = compiled(members=3, **options), 2 + bursts(40, 1)
    history = data[:5, : model.memory_steps + 1]
    model.adapt(data)
    np.testing.assert_allclose(model.shares, [1 / 3] * 3)
    losses = np.array([1e-20, 4e-20, 2e-20])
    model.weigh(losses)
    np.testing.assert_allclose(model.shares, [4 / 7, 1 / 7, 2 / 7])
    np.testing.assert_allclose(model.forecast(history, 7), numpy_forecast(model, history, 7), rtol=1e-12)
    np.testing.assert_allclose(model.predict(history, verbose=0), model.forecast(history, 1)[:, 0], rtol=1e-12)
    np.testing.assert_allclose(model.member([2, 0]).shares, [1 / 3, 2 / 3])
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(models.load(tmp_path / "model.keras").shares, model.shares)
    np.testing.assert_array_equal(model.without_optimizer().shares, model.shares)
    model.weigh()
    np.testing.assert_allclose(model.shares, [1 / 3] * 3)


@pytest.mark.parametrize("lost", [np.nan, np.inf])
def test_a_lost_member_is_left_out_of_the_mean(bursts, compiled, lost):
    model, history = compiled(members=3), bursts(10)[:, :1]
    kernel = model.dense_layers[0].kernel.numpy()
    kernel[1] = np.nan
    model.dense_layers[0].kernel.assign(kernel)
    with pytest.warns(RuntimeWarning, match="non-finite"):
        model.forecast(history, 3)
    model.weigh([0.2, lost, 0.2])
    np.testing.assert_allclose(model.forecast(history, 3), model.member([0, 2]).forecast(history, 3), rtol=1e-12)


@pytest.mark.parametrize("losses", [[1.0, 2.0], [1.0, -1.0, 2.0], [np.nan] * 3, [[1.0, 2.0, 3.0]], 1.0])
def test_losses_that_no_shares_come_from_are_refused(compiled, losses):
    model = compiled(members=3)
    with pytest.raises(ValueError, match="expected one of each of the 3 members"):
        model.weigh(losses)
    np.testing.assert_allclose(model.shares, [1 / 3] * 3)


def test_a_file_without_shares_loads_with_equal_ones(bursts, compiled, tmp_path):
    model, history = compiled(members=2, normalization="standard"), bursts(10)[:, :1]
    path = tmp_path / "model.weights.h5"
    model.save_weights(path)
    with h5py.File(path, "r+") as file:
        stored = file["vars"]
        last = str(max(int(name) for name in stored if name.isdigit()))
        np.testing.assert_allclose(stored[last], model.shares)
        del stored[last]
    other = compiled(members=2, normalization="standard", seed=1)
    other.load_weights(path)
    np.testing.assert_array_equal(other.forecast(history, 3), model.forecast(history, 3))


def test_a_model_that_was_never_compiled_saves_and_loads(bursts, compiled, tmp_path):
    model = compiled(members=4).member(1)
    model.save(tmp_path / "member.keras")
    history = bursts(5)[:, :1]
    np.testing.assert_array_equal(
        models.load(tmp_path / "member.keras").forecast(history, 5), model.forecast(history, 5)
    )


# Shared programs ------------------------------------------------------------------------------------------


def eager_twin(compiled, model, **options):
    """Return a model equal to another one, that runs step by step in Python and shares no program."""
    twin = compiled(optimizer=type(model.optimizer).from_config(model.optimizer.get_config()), **options)
    twin.compile(twin.optimizer, run_eagerly=True)
    return twin


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.Adam(1e-2),
        lambda: keras.optimizers.AdamW(1e-2, weight_decay=0.1),
        lambda: keras.optimizers.SGD(1e-2, momentum=0.9, nesterov=True),
        lambda: keras.optimizers.RMSprop(1e-2, clipvalue=0.01),
        lambda: keras.optimizers.Lion(1e-3),
    ],
)
def test_first_and_second_model_of_a_structure_equal_an_eager_one(bursts, compiled, optimizer):
    data = bursts(24)
    slow = eager_twin(compiled, compiled(optimizer=optimizer()))
    slow.fit(data, epochs=2, **REPEATED)
    for _ in range(2):
        fast = compiled(optimizer=optimizer())
        fast.fit(data, epochs=2, **REPEATED)
        np.testing.assert_allclose(fast.member_losses, slow.member_losses, rtol=1e-9)


def test_frozen_layers_stay_and_subclasses_keep_their_own_forward_pass(bursts, compiled):
    class Damped(models.FlowMap):
        gain = 1.0

        def advance(self, window, network=None, *, average=False):
            return self.gain * super().advance(window, network, average=average)

    compiled().fit(bursts(24), **REPEATED)  # an engine of this structure exists
    frozen = compiled()
    frozen.dense_layers[0].trainable = False
    frozen.compile("adam")
    before = [layer.kernel.numpy() for layer in frozen.dense_layers]
    frozen.fit(bursts(24), epochs=2, **REPEATED)
    moved = [np.abs(layer.kernel.numpy() - b).max() for layer, b in zip(frozen.dense_layers, before, strict=True)]
    assert moved[0] == 0
    assert min(moved[1:]) > 1e-4
    damped = Damped(2, hidden=(5, 4), members=3, dtype="float64")
    damped.gain = 0.0
    assert (damped.forecast(bursts(5)[:, :1], 3) == 0).all()


def test_models_of_one_structure_may_run_in_several_threads(bursts, compiled):
    history = bursts(5)[:, :1]
    crowd = [compiled(seed=seed) for seed in range(4)]
    expected = [model.forecast(history, 30) for model in crowd]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = list(
            pool.map(lambda i: np.array_equal(crowd[i % 4].forecast(history, 30), expected[i % 4]), range(80))
        )
    assert all(results)


# Determinism, interruption ----------------------------------------------------------------------------------

FIT = """
    import sys, numpy as np
    from fml_tf import models
    from fml_tf._tensorflow import keras
    bursts = np.random.default_rng(0).uniform(-1, 1, (60, 7, 2))
    rate = keras.optimizers.schedules.CosineDecay(1e-2, 60, alpha=1e-2)
    model = models.FlowMap(2, memory_steps=1, members=3, hidden=(6, 6), seed=5)
    model.compile(keras.optimizers.Adam(rate))
"""


def test_same_seed_gives_identical_weights_in_a_new_process(tmp_path):
    code = (
        FIT
        + """
    model.fit(bursts, batch_size=8, epochs=4, verbose=0)
    np.savez(sys.argv[1], model.member_losses, *[v.numpy() for v in model.trainable_variables])
    """
    )
    paths = [tmp_path / "first.npz", tmp_path / "second.npz"]
    for path in paths:
        run_python(code, path)
    first, second = map(np.load, paths)
    assert len(first.files) == 7
    for name in first.files:
        np.testing.assert_array_equal(first[name], second[name])


@pytest.mark.parametrize("how", ["exception", "kill"])
def test_interrupted_and_resumed_equals_uninterrupted(tmp_path, how):
    """Both processes write weights, best weights, record and history; the resumed one must match to the last bit."""
    end = """
    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 5 and sys.argv[3] == "exception":
                raise RuntimeError("interrupted")
            if epoch == 5 and sys.argv[3] == "kill":
                import os, signal
                os.kill(os.getpid(), signal.SIGKILL)
    backup = keras.callbacks.BackupAndRestore(sys.argv[2])
    history = model.fit(bursts, batch_size=8, epochs=10, verbose=0, callbacks=[backup, Stop()], restore_best=False)
    kept = [v.numpy() for v in [*model.variables, *model.optimizer.variables]]
    np.savez(sys.argv[1], history.epoch, history.history["loss"], model.member_losses, *kept)
    """
    whole, resumed = tmp_path / "whole.npz", tmp_path / "resumed.npz"
    run_python(FIT + end, whole, tmp_path / "backup_a", "never")
    command = [sys.executable, "-c", textwrap.dedent(FIT + end), resumed, tmp_path / "backup_b", how]
    stopped = subprocess.run(list(map(str, command)), capture_output=True, timeout=300)
    assert stopped.returncode == (-signal.SIGKILL if how == "kill" else 1)
    assert not resumed.exists()
    run_python(FIT + end, resumed, tmp_path / "backup_b", "never")
    first, second = np.load(whole), np.load(resumed)
    assert first["arr_0"].tolist() == list(range(10))
    assert second["arr_0"].tolist() == list(range(10)), "History continues"
    assert len(first.files) == len(second.files) > 20
    for name in first.files[1:]:
        np.testing.assert_array_equal(first[name], second[name])


def test_two_fits_of_five_epochs_see_the_orders_of_one_of_ten(bursts, compiled):
    data = bursts(40)
    once, twice = compiled(), compiled()
    once.fit(data, epochs=10, restore_best=False, **REPEATED)
    for _ in range(2):
        twice.fit(data, epochs=5, restore_best=False, **REPEATED)
    np.testing.assert_array_equal(once.member_losses, twice.member_losses)


def test_memory_stays_flat_over_models_built_fitted_and_dropped():
    """Peak memory after twenty models, against that after five, in a fresh process."""
    code = """
    import gc, resource, numpy as np
    from fml_tf import models
    bursts = np.random.default_rng(0).uniform(-1, 1, (2000, 7, 2)).astype("float32")
    for number in range(20):
        model = models.FlowMap(2, members=4, seed=number)
        model.compile("adam")
        model.fit(bursts, epochs=2, verbose=0)
        model.forecast(bursts[:50, :1], 600)
        del model
        gc.collect()
        if number in (4, 19):
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    """
    early, late = map(int, run_python(code).split())
    assert late - early < 60_000, f"{(late - early) / 15:.0f} kB a model stay behind"


# Forecasts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory_steps", [0, 3])
@pytest.mark.parametrize("members", [1, 3])
def test_forecast_equals_a_numpy_roll_out(bursts, compiled, memory_steps, members):
    model = compiled(memory_steps=memory_steps, members=members)
    history = bursts(5, memory_steps)[:, : memory_steps + 1]
    np.testing.assert_allclose(model.forecast(history, 60), numpy_forecast(model, history, 60), rtol=1e-9)


def test_step_averaging_differs_from_averaging_roll_outs(bursts, compiled):
    """The first step is the same, since all start from one history; from the second on the two averages part."""
    model, history = compiled(), bursts(5)[:, :1]
    step, apart = model.forecast(history, 40), model.forecast(history, 40, average=None)
    assert apart.shape == (3, 5, 40, 2)
    np.testing.assert_allclose(step[:, 0], apart.mean(0)[:, 0], rtol=1e-12)
    assert np.abs(step[:, -1] - apart.mean(0)[:, -1]).max() > 1e-6


def test_the_ensemble_averages_increments(bursts, compiled):
    """At a state of 4096, where float32 resolves no less than 2**-11, increments of 1 to 16 such units in ten members
    average to the exact mean of the increments, rounded once."""
    model = compiled(members=10, dtype="float32", hidden=(4,))
    unit, increments = 2.0**-11, np.array([1, 2, 3, 5, 8, 13, 16, 4, 9, 11])
    *_, kernel, bias = model.trainable_variables
    kernel.assign(np.zeros(kernel.shape))
    bias.assign(np.broadcast_to(unit * increments[:, None, None], bias.shape))
    history = np.full((1, 1, 2), 4096.0)
    expected = 4096 + np.round(increments.mean()) * unit * np.arange(1, 4)
    np.testing.assert_array_equal(model.forecast(history, 3)[0, :, 0], expected)
    np.testing.assert_array_equal(model.predict(history, verbose=0)[0, 0], expected[0])


def test_an_ensemble_of_one_averages_nothing(bursts, compiled):
    model, history = compiled(members=1), bursts(5)[:, :1]
    np.testing.assert_array_equal(model.forecast(history, 9), model.forecast(history, 9, average=None)[0])


@pytest.fixture
def in_parts(monkeypatch):
    """Return a function that has ensembles train in so many parts from here on, with engines of their own."""

    def of(count):
        monkeypatch.setattr(_engines, "cores", lambda: count)
        monkeypatch.setattr(_engines, "_ENGINES", {})

    return of


@pytest.mark.parametrize("name", ["adam", "soap"])
def test_parts_train_as_the_whole_ensemble(bursts, compiled, in_parts, name):
    """Four members in two threads, which share a program, or five in two unequal parts, are those that train in
    one."""
    cosine = keras.optimizers.schedules.CosineDecay(1e-2, 9)
    for members in (4, 5):
        trained = []
        for parts in (1, 2):
            in_parts(parts)
            optimizer = keras.optimizers.Adam(cosine) if name == "adam" else optimizers.Soap()
            options = dict(members=members, hidden=(3,), normalization="standard", memory_steps=1)
            model = compiled(optimizer=optimizer, **options)
            model.fit(bursts(20, 1, 2), epochs=3, **REPEATED)
            assert len(_engines._ENGINES) == parts
            compiled_parts = [engine for engine in _engines._ENGINES.values() if "_train_epoch" in engine.programs]
            assert len(compiled_parts) == (2 if (members, parts) == (5, 2) else 1)
            assert int(model.optimizer.iterations) == 9
            values = [*model.variables, *model.optimizer.variables, model.member_losses, model.best_losses]
            trained.append([np.asarray(value, "float64") for value in values])
        for one, two in zip(*trained, strict=True):
            np.testing.assert_allclose(two, one, rtol=1e-9, atol=1e-12)


def test_a_part_that_fails_leaves_the_model_as_it_was(bursts, compiled, in_parts, monkeypatch):
    in_parts(2)
    model, data = compiled(members=4, hidden=(3,)), bursts(20)
    model.fit(data, epochs=1, **REPEATED)
    before, job = [v.numpy() for v in model._weights_of_members()], _engines._job
    engines = dict(_engines._ENGINES)

    def failing(parts, engine, arguments):
        run = job(parts, engine, arguments)

        def fail():
            run()
            raise MemoryError("no room")

        return fail if engine is parts[1][0] else run

    with monkeypatch.context() as change:
        change.setattr(_engines, "_job", failing)
        with pytest.raises(MemoryError, match="no room"):
            model.fit(data, epochs=1, **REPEATED)
    for weight, start in zip(model._weights_of_members(), before, strict=True):
        np.testing.assert_array_equal(weight, start)
    assert engines == _engines._ENGINES
    model.fit(data, epochs=1, **REPEATED)
    assert model.member_losses.shape == (2, 4)


def test_a_batch_in_tiles_trains_as_a_whole(bursts, compiled, monkeypatch):
    assert [models._tiles(size) for size in (1, 1000, 1001, 1500, 5000, 1009, 50_000)] == [1, 1, 1, 2, 5, 1, 50]
    trained = []
    for tile in (60, 10, 20):
        monkeypatch.setattr(models, "TILE", tile)
        monkeypatch.setattr(_engines, "_ENGINES", {})
        model = compiled(memory_steps=1)
        model.fit(bursts(120, 1, 2), batch_size=60, epochs=2, verbose=0)
        trained.append([*model.member_losses.ravel(), *np.ravel(model.dense_layers[0].kernel)])
    for other in trained[1:]:
        np.testing.assert_allclose(other, trained[0], rtol=1e-9)


def test_any_number_of_steps_compiles_nothing_new_and_agrees(bursts, compiled):
    """One program for a few steps, one for all other numbers of them."""
    short, chunk = models.FORECAST_CHUNKS
    model, history = compiled(memory_steps=1, hidden=(3,)), bursts(5, 1)[:, :2]
    longest = model.forecast(history, np.int64(2 * chunk + 7))
    for steps in (1, 2, short, short + 1, 50, 51, chunk, chunk + 1):
        np.testing.assert_allclose(model.forecast(history, steps), longest[:, :steps], rtol=1e-12)
    with _engines.borrowed(model) as engine:
        assert engine.programs["_forecast_chunk"].experimental_get_tracing_count() == 2


def test_runaway_forecasts_are_reported_with_the_first_bad_step(bursts, compiled):
    data = bursts(40)
    model = compiled(members=1)
    model.fit(data, epochs=1, **REPEATED)
    for layer in model.dense_layers:
        layer.kernel.assign(np.zeros(layer.kernel.shape))
        layer.bias.assign(np.zeros(layer.bias.shape))
    model.forecast(data[:4, :1], 100)  # stands still: nothing to report
    model.dense_layers[-1].bias.assign([[[1.0], [0.0]]])  # one unit of x1 a step; the data range is about 2
    low, high = model.data_range.numpy()[:, 0]
    room = (low + high) / 2 + 10 * (high - low) - data[:4, 0, 0]
    first = int(np.floor(room.min())) + 1
    first_one = np.flatnonzero(np.floor(room) + 1 == first)[0]
    with pytest.warns(RuntimeWarning, match=rf"4 of 4 forecasts .* \(trajectory {first_one}\) at step {first}\."):
        model.forecast(data[:4, :1], 100)
    model.dense_layers[-1].bias.assign([[[np.nan], [0.0]]])
    with pytest.warns(RuntimeWarning, match="non-finite"):
        model.forecast(data[:4, :1], 3)


def test_float64_is_kept_end_to_end(bursts, compiled):
    for dtype in ("float64", "float32"):
        model = compiled(memory_steps=1, dtype=dtype, normalization="standard")
        model.fit(bursts(40, 1), epochs=1, **REPEATED)
        assert {v.dtype for v in model.variables if v.name != "adapted"} == {dtype}
        assert model.forecast(bursts(3, 1)[:, :2], 3).dtype == dtype
        assert model.predict(bursts(3, 1)[:, :2], verbose=0).dtype == dtype


# What Keras users know --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_no_iterator_waits_for_an_autotuning_thread(method, bursts, compiled, monkeypatch):
    """Its thread sleeps for up to a minute, and the iterator's end waits for it."""
    seen, original = [], getattr(keras.Model, method)

    def watched(self, x, *args, **kwargs):
        seen.append(x.options().autotune.enabled)
        return original(self, x, *args, **kwargs)

    monkeypatch.setattr(keras.Model, method, watched)
    model, data = compiled(), bursts(33)
    getattr(model, method)(data[:, : model.memory_steps + 1] if method == "predict" else data, batch_size=10, verbose=0)
    assert seen == [False]


def test_predict_is_one_step_of_the_ensemble_mean(bursts, compiled):
    model, history = compiled(memory_steps=2), bursts(7, 2)[:, :3]
    np.testing.assert_allclose(model.predict(history, verbose=0), model.forecast(history, 1)[:, 0], rtol=1e-12)


def test_evaluate_is_the_mean_over_members(bursts, compiled):
    model, data = compiled(), bursts(33)
    expected = np.mean([numpy_loss(model, m, data) for m in range(3)])
    assert model.evaluate(data, batch_size=10, verbose=0) == pytest.approx(expected, rel=1e-6)


def test_summary_lists_layers_and_weights(compiled, capsys):
    model = compiled()
    model.summary()
    out = capsys.readouterr().out
    assert "dense_0" in out
    assert "dense_2" in out
    assert f"{3 * (2 * 5 + 5 + 5 * 4 + 4 + 4 * 2 + 2):,}" in out


def test_validation_data_may_be_longer_bursts(bursts, compiled):
    model = compiled()
    longer = bursts(20, multi_steps=12, seed=1)
    history = model.fit(bursts(40), epochs=3, validation_data=longer, restore_best=False, **REPEATED)
    assert history.history["val_loss"][-1] == pytest.approx(model.evaluate(longer, verbose=0), rel=1e-6)


def test_early_stopping_csv_logger_and_tensorboard_work(bursts, compiled, tmp_path):
    model = compiled(optimizer=keras.optimizers.SGD(0.0))

    class Keep(keras.callbacks.ModelCheckpoint):
        """A subclass that leaves the hooks of its Keras base alone is welcome."""

    stop = keras.callbacks.EarlyStopping("loss", patience=2, min_delta=1e-9)
    log = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    board = keras.callbacks.TensorBoard(tmp_path / "board")
    history = model.fit(bursts(40), epochs=50, callbacks=[stop, log, board, Keep(tmp_path / "m.keras")], **REPEATED)
    assert len(history.epoch) == 3
    assert (tmp_path / "m.keras").exists()
    with open(tmp_path / "log.csv") as file:
        assert [float(row["loss"]) for row in csv.DictReader(file)] == pytest.approx(history.history["loss"])
    assert any((tmp_path / "board").rglob("events*"))


def test_run_eagerly_gives_the_same_losses(bursts, compiled):
    data, fast, slow = bursts(20), compiled(), compiled()
    slow.compile(keras.optimizers.Adam(1e-3), run_eagerly=True)
    for model in (fast, slow):
        model.fit(data, epochs=2, **REPEATED)
    np.testing.assert_allclose(fast.member_losses, slow.member_losses, rtol=1e-10)


# Files ------------------------------------------------------------------------------------------------------


def test_saved_model_forecasts_identically_in_a_new_process(bursts, compiled, tmp_path):
    data = bursts(40, 1)
    options = dict(normalization="standard", time_step=0.1, state_names=("a", "b"), activation="gelu")
    model = compiled(memory_steps=1, **options)
    model.fit(data, epochs=3, **REPEATED)
    model.save(tmp_path / "model.keras")
    np.save(tmp_path / "history.npy", data[:5, :2])
    np.save(tmp_path / "expected.npy", model.forecast(data[:5, :2], 30))
    code = """
    import json, sys, numpy as np
    import fml_tf.models, keras
    folder = sys.argv[1]
    for load in (fml_tf.models.load, keras.saving.load_model):
        model = load(folder + "/model.keras")
        forecast = model.forecast(np.load(folder + "/history.npy"), 30)
        np.testing.assert_array_equal(forecast, np.load(folder + "/expected.npy"))
    model.fit(np.random.default_rng(0).uniform(-1, 1, (40, 7, 2)), batch_size=8, verbose=0)  # compiled state came along
    print(json.dumps([model.time_step, model.state_names, model.member_losses.tolist(), model.compute_dtype]))
    """
    time_step, names, losses, dtype = json.loads(run_python(code, tmp_path))
    assert (time_step, names, dtype) == (0.1, ["a", "b"], "float64")
    np.testing.assert_array_equal(losses[:3], model.member_losses)
    assert len(losses) == 4, "one more epoch was added to the record"


def test_export_forecasts_without_this_package(bursts, compiled, tmp_path):
    data = bursts(40, 1)
    model = compiled(memory_steps=1)
    model.fit(data, epochs=1, **REPEATED)
    model.export(tmp_path / "exported", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "exported")
    served = loaded.serve(tf.constant(data[:5, :2]), 20)
    np.testing.assert_allclose(served, model.forecast(data[:5, :2], 20), rtol=1e-10)


def test_load_refuses_another_model(tmp_path):
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).save(tmp_path / "other.keras")
    with pytest.raises(ValueError, match="Sequential, expected a FlowMap"):
        models.load(tmp_path / "other.keras")


# Bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(state_dim=0), "state_dim=0: expected a whole number, 1 or more"),
        (dict(memory_steps=-1), "memory_steps=-1: expected a whole number, 0 or more"),
        (dict(memory_steps=1.5), "memory_steps=1.5"),
        (dict(members=0), "members=0: expected at least one"),
        (dict(members=(1, 1)), "distinct indices"),
        (dict(hidden=(10, 0)), "hidden=0"),
        (dict(hidden=10), "hidden=10: expected the nodes of each"),
        (dict(normalization="minmax"), "expected None .* 'standard' or 'whitened'"),
        (dict(skip="linear"), "skip='linear' with normalization=None: expected None, or 'linear' with a normalization"),
        (dict(skip="cubic", normalization="standard"), "skip='cubic'"),
        (dict(state_names=("a",)), "expected 2 names"),
        (dict(dtype="mixed_float16"), "half precision"),
        (dict(dtype="float16"), "half precision"),
        (dict(seed=-1), "seed=-1"),
        (dict(members="abc"), "members='abc'"),
        (dict(members=(1.7, 2)), "distinct indices"),
        (dict(members=True), "members=True"),
        (dict(hidden=None), "hidden=None"),
        (dict(state_names="ab"), "expected 2 names"),
        (dict(activation="softmax"), "not elementwise"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    arguments = {"state_dim": 2, **change}
    with pytest.raises(ValueError, match=message):
        models.FlowMap(arguments.pop("state_dim"), **arguments)


def _with(array, value):
    array[3, 2, 1] = value
    return array


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda b: b[0], r"x has shape \(6, 2\), expected \(sample, burst_length, state\)"),
        (lambda b: b[:0], r"x has shape \(0, 6, 2\)"),
        (lambda b: b[..., :1], "x has 1 states, but the model was built for 2"),
        (lambda b: b[:, :2], "bursts of 2 entries, but memory_steps=1 needs at least n_M \\+ 2 = 3"),
        (lambda b: _with(b, np.nan), r"x holds 1 values that are NaN or infinite .* index \(3, 2, 1\)"),
        (lambda b: _with(b, np.inf), r"NaN or infinite"),
        (lambda b: _with(b.astype("float64"), 1e300), r"NaN or infinite in float32"),
        (lambda b: b.astype(str), "x has type <U.*: expected real numbers"),
        (lambda b: tf.data.Dataset.from_tensors(b), "expected an array"),
        (lambda b: None, "x is a NoneType: expected an array"),
    ],
)
def test_bad_bursts_are_refused(bursts, compiled, bad, message):
    model = compiled(memory_steps=1, dtype="float32")
    with pytest.raises(ValueError, match=message):
        model.fit(bad(bursts(40, 1, 3)), **REPEATED)
    assert len(model.member_losses) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(batch_size=41), "batch_size=41 is larger than the data, 40 bursts"),
        (dict(batch_size=0), "batch_size=0"),
        (dict(epochs=-1), "epochs=-1"),
        (dict(epochs=2.0), "epochs=2.0"),
        (dict(validation_freq=0), "validation_freq=0"),
        (dict(callbacks=["a"]), "expected Keras callbacks"),
        (dict(callbacks=[keras.callbacks.EarlyStopping("loss", restore_best_weights=True)]), "its own best epoch"),
        (dict(y=np.zeros(40)), "fit\\(\\) got y: it takes bursts alone"),
        (dict(sample_weight=np.ones(40)), "fit\\(\\) got sample_weight"),
        (dict(validation_data=np.zeros((4, 6, 3))), "validation_data has 3 states"),
    ],
)
def test_bad_fit_options_are_refused(bursts, compiled, options, message):
    with pytest.raises(ValueError, match=message):
        compiled().fit(bursts(40), **{**REPEATED, **options})


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda h: h[0], r"history has shape \(3, 2\), .*history\[None\]"),
        (lambda h: h[:, :2], "history holds 2 entries a trajectory, but memory_steps=2 needs n_M \\+ 1 = 3"),
        (lambda h: h[..., :1], "history has 1 states"),
        (lambda h: h * np.nan, "history holds 24 values that are NaN"),
    ],
)
def test_bad_histories_are_refused(bursts, compiled, bad, message):
    model = compiled(memory_steps=2)
    with pytest.raises(ValueError, match=message):
        model.forecast(bad(bursts(4, 2)[:, :3]), 5)
    with pytest.raises(ValueError, match="steps=0"):
        model.forecast(bursts(4, 2)[:, :3], 0)
    with pytest.raises(ValueError, match="average='trajectory': expected 'step'"):
        model.forecast(bursts(4, 2)[:, :3], 5, average="trajectory")


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (lambda: keras.optimizers.Adam(clipnorm=1.0), "clipnorm .* couples the members"),
        (lambda: keras.optimizers.Adam(global_clipnorm=1.0), "global_clipnorm .* couples the members"),
        (lambda: keras.optimizers.Lamb(), "Lamb .* couples the members"),
        (lambda: keras.optimizers.Adafactor(), "Adafactor .* couples the members"),
        (lambda: keras.optimizers.Muon(), "Muon .* couples the members"),
        (lambda: keras.optimizers.SGD(loss_scale_factor=10.0), "loss scaling"),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(clipnorm=1.0)), "loss scaling"),
    ],
)
def test_optimizers_that_couple_members_are_refused(compiled, optimizer, message):
    with pytest.raises(ValueError, match=message):
        compiled(optimizer=optimizer())


def test_loss_and_metrics_are_refused_at_compile(compiled):
    with pytest.raises(ValueError, match=r"compile\(\) got loss: .*multi-step loss"):
        compiled().compile("adam", loss="mse")
    with pytest.raises(ValueError, match="compile\\(\\) got metrics"):
        compiled().compile("adam", metrics=["mae"])
    with pytest.raises(ValueError, match="does not know 'jit_compil'"):
        compiled().compile("adam", jit_compil=True)


def test_what_keras_has_and_a_flow_map_has_not_is_refused(bursts, compiled, tmp_path):
    model, data = compiled(), bursts(40)
    averaged = compiled(optimizer=keras.optimizers.Adam(use_ema=True))
    for call, message in [
        (lambda: model.train_on_batch(data), "whole epochs"),
        (lambda: model.test_on_batch(data), "evaluate"),
        (lambda: model.evaluate(), "x is a NoneType"),
        (lambda: model.evaluate(tf.data.Dataset.from_tensors(data)), "expected an array"),
        (lambda: model.evaluate(data, batch_size=0), "batch_size=0"),
        (lambda: model.predict(data[:, :1], batch_size=-1), "batch_size=-1"),
        (lambda: model.save(tmp_path / "a.h5"), "ends with .keras"),
        (lambda: averaged.fit(data, **REPEATED), "restore_best=False"),
        (lambda: model.fit([data[0], data[1, :3]], **REPEATED), "its parts differ in shape"),
        (lambda: model.fit(np.ma.masked_greater(data, 0.5), **REPEATED), "masked entries"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
    averaged.fit(data, restore_best=False, **REPEATED)


def test_normalisation_copes_with_drift_constants_and_further_data(bursts, compiled):
    time = 0.1 * np.arange(40 * 6).reshape(40, 6, 1)
    model = compiled(normalization="standard", members=1)
    model.adapt(np.concatenate([time, np.full_like(time, 0.5)], axis=2))
    np.testing.assert_allclose(model.output_scale.numpy().ravel(), [0.1, 1.0])
    np.testing.assert_allclose(model.input_matrix.numpy(), np.diag([1 / time.std(), 1.0]))
    np.testing.assert_allclose(model.input_mean.numpy().ravel(), [time.mean(), 0.5])
    plain = compiled(members=1)
    plain.fit(0.01 * bursts(40), epochs=1, **REPEATED)
    plain.fit(bursts(40), epochs=1, **REPEATED)
    assert np.ptp(plain.data_range.numpy()) > 1.9


def test_standard_inputs_have_mean_zero_and_deviation_one(bursts, compiled):
    data = 3 + 5 * bursts(400, memory_steps=2, state_dim=2)
    model = compiled(memory_steps=2, normalization="standard")
    model.adapt(data)
    states = data.reshape(-1, 2)
    np.testing.assert_allclose(model.input_matrix.numpy(), np.diag(np.tile(1 / states.std(0), 3)), rtol=1e-12)
    np.testing.assert_allclose(model.input_mean.numpy()[:, 0], np.tile(states.mean(0), 3), rtol=1e-12)


def test_whitened_histories_are_uncorrelated_and_rounding_is_left_out(compiled):
    """Histories of a two-dimensional linear system seen through one variable have exactly two axes."""
    rng, step = np.random.default_rng(0), expm(0.05 * np.array([[-0.1, 1.0], [-1.0, -0.1]]))
    states = [rng.uniform(0, 2, (500, 2))]
    for _ in range(12):
        states.append(states[-1] @ step.T)
    data = np.stack(states, axis=1)[:, :, :1]
    model = compiled(state_dim=1, memory_steps=9, normalization="whitened")
    model.adapt(data)
    histories = np.concatenate([data[:, start : start + 10, 0] for start in range(3)])
    inputs = (histories - model.input_mean.numpy()[:, 0]) @ model.input_matrix.numpy().T
    expected = np.zeros((10, 10))
    expected[[0, 1], [0, 1]] = 1
    np.testing.assert_allclose(inputs.T @ inputs / len(inputs), expected, atol=2e-3)
    assert not model.input_matrix.numpy()[2:].any()


@pytest.mark.parametrize("residual", [True, False])
def test_a_linear_skip_is_the_least_squares_and_the_network_learns_the_rest(bursts, compiled, tmp_path, residual):
    data = 3 + 5 * bursts(200, memory_steps=2)
    model = compiled(memory_steps=2, normalization="standard", skip="linear", residual=residual)
    model.adapt(data)
    windows = np.concatenate([data[:, k : k + 3].reshape(200, -1) for k in range(5)])
    targets = np.concatenate([data[:, k + 3] - residual * data[:, k + 2] for k in range(5)])
    known = np.c_[windows, np.ones(len(windows))]
    expected = np.linalg.lstsq(known, targets)[0]
    np.testing.assert_allclose(np.r_[model.skip_matrix.numpy().T, model.output_mean.numpy().T], expected, atol=1e-10)
    missed = targets - known @ expected
    np.testing.assert_allclose(model.output_scale.numpy()[:, 0], np.sqrt((missed**2).mean(0)), rtol=1e-10)
    assert not model.dense_layers[-1].kernel.numpy().any(), "the network starts from zero"
    model.fit(data, epochs=1, **REPEATED)
    model.save(tmp_path / "skip.keras")
    again, history = models.load(tmp_path / "skip.keras"), data[:5, :3]
    np.testing.assert_array_equal(again.forecast(history, 20), model.forecast(history, 20))
    np.testing.assert_allclose(model.forecast(history, 20), numpy_forecast(model, history, 20), rtol=1e-9)


def test_ensemble_without_optimizer_forecasts_alike_and_holds_no_more(bursts, compiled, tmp_path):
    model = compiled(memory_steps=1, normalization="whitened", seed=4)
    data = bursts(40, memory_steps=1)
    model.fit(data, epochs=2, **REPEATED)
    bare = model.without_optimizer()
    np.testing.assert_array_equal(bare.forecast(data[:, :2], 9), model.forecast(data[:, :2], 9))
    np.testing.assert_array_equal(bare.member_losses, model.member_losses)
    assert bare.optimizer is None
    assert not np.isfinite(bare.best_losses).any()
    np.testing.assert_array_equal(bare.data_range, model.data_range)


def test_pretrained_ensembles_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match=r"unknown benchmark '5.4'.*Did you mean '5.4"):
        models.load_pretrained("5.4")
    with pytest.raises(ValueError, match=r"no pretrained ensemble of 5\.1\.1 with the preset 'paper'"):
        models.load_pretrained("5.1.1", "paper")


def test_callbacks_that_act_on_batches_or_fight_a_schedule_are_refused(bursts, compiled, tmp_path):
    class PerBatch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            pass

    per_batch = [
        PerBatch(),
        keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None),
        keras.callbacks.BackupAndRestore(tmp_path, save_freq=10),
        keras.callbacks.TensorBoard(tmp_path, update_freq="batch"),
    ]
    for callback in per_batch:
        with pytest.raises(ValueError, match=f"{type(callback).__name__} acts on single batches"):
            compiled().fit(bursts(40), callbacks=[callback], **REPEATED)
    model = compiled(optimizer=keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(1e-3, 10)))
    with pytest.raises(ValueError, match="ReduceLROnPlateau sets the learning rate"):
        model.fit(bursts(40), callbacks=[keras.callbacks.ReduceLROnPlateau("loss")], **REPEATED)
    plain = compiled()
    plain.fit(bursts(40), callbacks=[keras.callbacks.ReduceLROnPlateau("loss")], **REPEATED)


@pytest.mark.parametrize("memory_steps", [0, 2])
def test_jacobian_is_the_derivative_of_the_next_history(bursts, compiled, memory_steps):
    model, values = compiled(memory_steps=memory_steps, normalization="standard"), bursts(40, memory_steps=memory_steps)
    model.fit(values, batch_size=20, epochs=2, verbose=0)
    histories = values[:3, : memory_steps + 1]

    def step(flat):
        shape = flat.shape[:-1]
        given = flat.reshape(-1, memory_steps + 1, 2)
        state = model.forecast(given, 1)
        return np.concatenate([given[:, 1:], state], axis=1).reshape(*shape, -1)

    found, expected = model.jacobian(histories), metrics.jacobian(step, histories.reshape(3, -1))
    assert found.shape == (3, 2 * (memory_steps + 1), 2 * (memory_steps + 1))
    np.testing.assert_allclose(found, expected, atol=1e-8)
    with pytest.raises(ValueError, match="history holds 9 entries"):
        model.jacobian(np.zeros((1, 9, 2)))

"""Several devices, and a GPU where there is one."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from fml_tf import _engines, devices, models
from fml_tf._tensorflow import gpus, keras, tf

ON_TWO_DEVICES = """
import numpy as np
from fml_tf._tensorflow import keras, tf

device = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 2)
from fml_tf import models, optimizers


def build(optimizer):
    model = models.FlowMap(2, memory_steps=2, members=3, hidden=(6, 6), normalization="standard")
    model.compile(optimizer)
    return model


bursts = 0.1 * np.cumsum(np.random.default_rng(0).normal(size=(105, 8, 2)), axis=1).astype("float32")
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
for make in (lambda: keras.optimizers.Adam(1e-2), lambda: optimizers.Soap(1e-2)):
    one = build(make())
    with strategy.scope():
        two = build(make())
    assert (one.replicas, two.replicas, two.jit_compile) == (1, 2, False)
    for model in (one, two):  # 105 = 5 * 20 + 5: batches that two devices cannot halve evenly
        history = model.fit(bursts, batch_size=20, epochs=4, verbose=0)
    np.testing.assert_allclose(two.member_losses, one.member_losses, rtol=1e-5)
    np.testing.assert_allclose(history.history["loss"], one.member_losses.mean(axis=1), rtol=1e-5)
    given = bursts[:7, :3]
    np.testing.assert_allclose(two.forecast(given, 50), one.forecast(given, 50), atol=1e-5)
    np.testing.assert_allclose(two.predict(given, verbose=0), one.predict(given, verbose=0), atol=1e-6)
    np.testing.assert_allclose(two.evaluate_members(bursts), one.evaluate_members(bursts), rtol=1e-5)
    two.save("two.keras")
    np.testing.assert_array_equal(models.load("two.keras").forecast(given, 5), two.forecast(given, 5))

for arguments, message in (
    (dict(optimizer=optimizers.LevenbergMarquardt()), "on one device"),
    (dict(optimizer="adam", run_eagerly=True), "works on one device"),
):
    try:
        with strategy.scope():
            build("adam").compile(**arguments)
    except ValueError as error:
        assert message in str(error), error
    else:
        raise AssertionError(message)
try:
    two.fit(bursts, batch_size=26, epochs=1)
except ValueError as error:
    assert "leaves a batch of 1 of the 105 bursts, too few for 2 devices" in str(error), error
else:
    raise AssertionError("a batch of one")
print("same")
"""


def test_mirrored_strategy_trains_as_one_device_does(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", ON_TWO_DEVICES], cwd=tmp_path, capture_output=True, text=True, timeout=600,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "same" in done.stdout


@pytest.mark.skipif(not gpus, reason="no GPU here: the compiled step ran on the CPU alone")
def test_the_compiled_epoch_runs_on_the_gpu_and_agrees_with_the_cpu():
    bursts = 0.1 * np.cumsum(np.random.default_rng(0).normal(size=(200, 8, 2)), axis=1).astype("float32")
    losses, forecasts = [], []
    for device in ("GPU:0", "CPU:0"):
        with tf.device(device):
            model = models.FlowMap(2, memory_steps=2, members=3)
            model.compile(keras.optimizers.Adam(1e-2), jit_compile=device == "GPU:0")
            model.fit(bursts, batch_size=20, epochs=3, verbose=0)
            assert device in model.dense_layers[0].kernel.value.device
            losses.append(model.member_losses)
            forecasts.append(model.forecast(bursts[:5, :3], 20))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-3)
    np.testing.assert_allclose(forecasts[0], forecasts[1], atol=1e-3)


def test_threads_are_those_that_tensorflow_was_told(monkeypatch):
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    allowed = _engines.cores()
    assert allowed >= 1
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")
    assert _engines.cores() == 1
    assert devices.describe()["threads"] == "1"
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", str(allowed + 5))
    assert _engines.cores() == allowed


def test_the_self_check_sees_wrong_arithmetic(monkeypatch):
    assert 0 < devices.check() < 1e-5
    right = models.FlowMap.forecast
    monkeypatch.setattr(models.FlowMap, "forecast", lambda *given: right(*given) * 1.001)
    assert devices.check() > 1e-4


@pytest.mark.parametrize(
    ("seen", "present", "built", "platform", "hidden", "expected"),
    [
        ([], False, True, "linux", None, None),
        (["GPU:0"], True, True, "linux", None, None),
        ([], True, True, "linux", None, r"tensorflow\[and-cuda\]"),
        ([], True, True, "linux", "-1", "CUDA_VISIBLE_DEVICES hides it"),
        ([], True, False, "linux", None, "built for CPUs alone"),
        ([], True, True, "win32", None, "use WSL 2"),
    ],
)
def test_advice_is_given_where_a_gpu_is_present_but_not_seen(
    monkeypatch, seen, present, built, platform, hidden, expected
):
    monkeypatch.setattr(devices, "gpus", seen)
    monkeypatch.setattr(devices, "gpu_present", lambda: present)
    monkeypatch.setattr(devices.tf.test, "is_built_with_cuda", lambda: built)
    monkeypatch.setattr(devices.sys, "platform", platform)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    advice = devices.advice()
    assert len(advice) == (expected is not None)
    assert expected is None or re.search(expected, advice[0])


def test_a_gpu_is_found_by_the_drivers_command(monkeypatch, tmp_path):
    command = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(devices, "DRIVER", tmp_path / "none")
    assert not devices.gpu_present()
    for text, found in (("echo 'GPU 0: H200'", True), ("exit 9", False), ("echo 'No devices were found'", False)):
        command.write_text(f"#!/bin/sh\n{text}\n")
        command.chmod(0o755)
        assert devices.gpu_present() == found
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "0000:01:00.0").touch()
    assert devices.gpu_present()

"""Shared fixtures: small bursts of a known linear system, and a model fitted on them."""

import numpy as np
import pytest

from fml_tf import models, problems
from fml_tf._tensorflow import keras


@pytest.fixture(scope="session")
def quick():
    """The quick record of 5.1.1."""
    return problems.get("5.1.1", "quick")


@pytest.fixture
def bursts():
    """Make bursts of random numbers, `(sample, n_M + K + 2, state)`, of order one."""

    def make(samples=40, memory_steps=0, multi_steps=4, state_dim=2, seed=0, dtype="float64"):
        shape = (samples, memory_steps + multi_steps + 2, state_dim)
        return np.random.default_rng(seed).uniform(-1, 1, shape).astype(dtype)

    return make


@pytest.fixture
def compiled():
    """Build and compile a small float64 flow map."""

    def make(state_dim=2, learning_rate=1e-3, dtype="float64", optimizer=None, **kwargs):
        kwargs = {"hidden": (5, 4), "members": 3, "dtype": dtype, **kwargs}
        model = models.FlowMap(state_dim, **kwargs)
        model.compile(optimizer or keras.optimizers.Adam(learning_rate))
        return model

    return make

"""Plots: the data drawn are the data given, and axes come back."""

import matplotlib as mpl
import numpy as np
import pytest

mpl.use("Agg")
import matplotlib.pyplot as plt

from fml_tf import memory, plots


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def line(ax, label):
    """Return the y data of a labelled line."""
    return next(item.get_ydata() for item in ax.get_lines() if item.get_label() == label)


def test_loss_draws_members_mean_and_the_decades():
    losses = np.array([[1.0, 3.0], [0.1, 0.3], [1e-3, 1e-2]])
    ax = plots.loss(losses)
    assert ax.get_yscale() == "log"
    np.testing.assert_allclose(line(ax, "mean of members"), losses.mean(axis=1))
    np.testing.assert_allclose(line(ax, "2 decades below the first epoch"), 0.02)


def test_error_draws_the_mean_over_trajectories_on_a_log_scale():
    errors = np.abs(np.random.default_rng(0).normal(size=(20, 30))) + 1e-3
    ax = plots.error(np.arange(30), errors, baselines={"persistence": 10 * errors}, train_end=15)
    assert ax.get_yscale() == "log"
    np.testing.assert_allclose(line(ax, "flow map, mean"), errors.mean(axis=0))
    np.testing.assert_allclose(line(ax, "persistence, mean"), 10 * errors.mean(axis=0))
    assert line(ax, "end of training trajectories") is not None


def test_trajectories_draw_one_panel_a_variable():
    truth, times = np.random.default_rng(0).normal(size=(30, 3)), np.arange(30)
    axes = plots.trajectories(times, truth, truth + 1, members=np.stack([truth, truth]), names=("a", "b", "c"))
    assert [ax.get_ylabel() for ax in axes] == ["a", "b", "c"]
    np.testing.assert_array_equal(line(axes[0], "truth"), truth[:, 0])
    np.testing.assert_array_equal(line(axes[0], "flow map"), truth[:, 0] + 1)
    assert len(axes[1].get_lines()) == 4


def test_phase_plane_draws_on_given_axes():
    ax = plt.subplots()[1]
    states = np.random.default_rng(0).normal(size=(4, 30, 2))
    assert plots.phase_plane(states, states, domain=((0, 2), (0, 2)), ax=ax) is ax
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["truth", "flow map", "initial conditions"]


def test_the_style_is_found():
    with mpl.rc_context():
        plots.use_style()
        assert mpl.rcParams["axes.spines.top"] is False


def test_memory_draws_change_error_and_choice():
    rows = [
        {"memory_steps": n, "memory_time": 0.1 * n, "error": e, "change": c, "seconds": 1.0}
        for n, e, c in ((0, 0.5, None), (1, 0.02, 0.5), (3, 0.01, 0.015))
    ]
    ax = plots.memory(memory.MemoryChoice(1, 0.1, 0.05, tuple(rows)))
    np.testing.assert_array_equal(line(ax, "error of the forecast"), [0.5, 0.02, 0.01])
    np.testing.assert_array_equal(line(ax, "change from the one before"), [0.5, 0.015])
    assert next(item.get_xdata() for item in ax.get_lines() if item.get_label() == "chosen")[0] == 1
    assert len(plots.memory(memory.MemoryChoice(None, None, 0.05, tuple(rows))).get_lines()) == 3

"""Figures of a flow map: arrays in, axes out. Each takes `ax=None` and returns the axes it drew on."""

import pathlib

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

STYLE = str(pathlib.Path(__file__).with_name("fml.mplstyle"))
TRUTH, MEAN, BASELINE, MARK = "black", "#0072B2", "#D55E00", "0.45"
BASELINE_STYLES = ("--", ":", "-.")


def use_style():
    """Use the package's style for all figures that follow."""
    mpl.style.use(STYLE)


def loss(member_losses, *, decades: float = 2.0, stage_end: int = 0, ax=None):
    """Draw each member's training loss against the epoch, and the paper's two decades below the start.

    Args:
        member_losses: `(epoch, member)`, see `FlowMap.member_losses`.
        decades: fall of the loss to mark, from the mean of the first epoch; 0 marks none.
        stage_end: epoch after which another loss was trained, marked by a dotted line; 0 marks none.
        ax: axes to draw on; new ones by default.
    """
    ax = ax or plt.subplots()[1]
    member_losses = np.asarray(member_losses)
    epochs = np.arange(1, len(member_losses) + 1)
    ax.semilogy(epochs, member_losses, color=MEAN, alpha=0.35, linewidth=0.7)
    ax.semilogy(epochs, member_losses.mean(axis=1), color=MEAN, label="mean of members")
    if decades:
        mark = member_losses[0].mean() / 10**decades
        ax.axhline(mark, color=MARK, linestyle="--", linewidth=1, label=f"{decades:g} decades below the first epoch")
    if stage_end:
        ax.axvline(stage_end + 0.5, color=MARK, linestyle=":", linewidth=1, label="one-step, then multi-step loss")
    ax.set(xlabel="epoch", ylabel="training loss" if stage_end else "multi-step loss")
    ax.legend(loc="upper right")
    return ax


def trajectories(times, truth, prediction=None, *, members=None, names=None, train_end=None, axes=None):
    """Draw one trajectory's variables against time, one panel each.

    Args:
        times: `(time,)`.
        truth: `(time, state)`.
        prediction: `(time, state)` of the ensemble, or None.
        members: `(member, time, state)` of members on their own, drawn thin, or None.
        names: names of the variables.
        train_end: time where the training trajectories end, marked by a dashed line.
        axes: one axes a variable; new ones by default.
    """
    truth = np.asarray(truth)
    if axes is None:
        axes = plt.subplots(1, truth.shape[1], figsize=(3.5 * truth.shape[1], 3.2), squeeze=False)[1][0]
    names = names or [f"x{i + 1}" for i in range(truth.shape[1])]
    for i, (ax, name) in enumerate(zip(axes, names, strict=True)):
        ax.plot(times, truth[:, i], color=TRUTH, label="truth")
        if members is not None:
            lines = ax.plot(times, np.asarray(members)[:, :, i].T, color=MEAN, alpha=0.3, linewidth=0.6)
            lines[0].set_label("members alone")
        if prediction is not None:
            ax.plot(times, np.asarray(prediction)[:, i], color=MEAN, linestyle="--", label="flow map")
        _mark_end(ax, train_end)
        ax.set(xlabel="time", ylabel=name)
    axes[0].legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)  # above the panel, where it covers no curve
    return axes


def phase_plane(states, prediction=None, *, names=("x1", "x2"), domain=None, ax=None):
    """Draw trajectories in the plane of two variables.

    Args:
        states: true trajectories `(trajectory, time, 2)`.
        prediction: forecasts of the same shape, or None.
        names: names of the two variables.
        domain: ((low, high), (low, high)) of the initial conditions, drawn as a box.
        ax: axes to draw on; new ones by default.
    """
    ax = ax or plt.subplots(figsize=(4, 3.6))[1]
    states = np.asarray(states)
    for i, path in enumerate(states):
        ax.plot(*path.T, color=TRUTH, linewidth=0.9, label="truth" if i == 0 else None)
        ax.plot(*path[0], color=TRUTH, marker="o", markersize=2.5)
        if prediction is not None:
            label = "flow map" if i == 0 else None
            ax.plot(*np.asarray(prediction)[i].T, color=MEAN, linestyle="--", linewidth=1.4, label=label)
    if domain is not None:
        (left, right), (bottom, top) = domain
        box = plt.Rectangle((left, bottom), right - left, top - bottom, fill=False, color=MARK, linestyle=":")
        ax.add_patch(box).set_label("initial conditions")
    ax.set(xlabel=names[0], ylabel=names[1])
    ax.legend()
    return ax


def error(times, errors, *, baselines=None, train_end=None, ax=None):
    """Draw the mean l2 error against time on a log scale, with the 10 to 90 % band over trajectories.

    Args:
        times: `(time,)`.
        errors: `(trajectory, time)`, see `metrics.l2_error`.
        baselines: name → errors `(trajectory, time)` of other forecasts, drawn as dashed means.
        train_end: time where the training trajectories end, marked by a dashed line.
        ax: axes to draw on; new ones by default.
    """
    ax = ax or plt.subplots()[1]
    errors = np.asarray(errors)
    with np.errstate(invalid="ignore"):  # of infinite errors
        low, high = np.percentile(errors, [10, 90], axis=0)
    ax.fill_between(times, low, high, color=MEAN, alpha=0.2, linewidth=0, label="10 to 90 % of trajectories")
    ax.semilogy(times, errors.mean(axis=0), color=MEAN, label="flow map, mean")
    for i, (name, other) in enumerate((baselines or {}).items()):
        style = BASELINE_STYLES[i % len(BASELINE_STYLES)]
        ax.semilogy(times, np.asarray(other).mean(axis=0), color=BASELINE, linestyle=style, label=f"{name}, mean")
    _mark_end(ax, train_end)
    ax.set(xlabel="time", ylabel="ℓ2 error")
    ax.legend()
    return ax


def _mark_end(ax, train_end):
    if train_end is not None:
        ax.axvline(train_end, color=MARK, linestyle="--", linewidth=1, label="end of training trajectories")


def memory(choice, *, ax=None):
    """Draw how forecasts change with more memory, and their error, on a log scale.

    Args:
        choice: see `memory.choose_memory`.
        ax: axes to draw on; new ones by default.
    """
    ax = ax or plt.subplots()[1]
    steps = [row["memory_steps"] for row in choice.table]
    ax.semilogy(steps, [row["error"] for row in choice.table], "o-", color=TRUTH, label="error of the forecast")
    ax.semilogy(
        steps[1:], [row["change"] for row in choice.table[1:]], "s--", color=MEAN, label="change from the one before"
    )
    ax.axhline(choice.tolerance, color=MARK, linestyle=":", linewidth=1, label="tolerance")
    if choice.memory_steps is not None:
        ax.axvline(choice.memory_steps, color=MARK, linestyle="--", linewidth=1, label="chosen")
    ax.set(xlabel="memory steps $n_M$", ylabel="relative to the data's deviation")
    ax.legend()
    return ax


def spread(x, values, *, label=None, ax=None):
    """Draw the median of several values at each place, the band from the least to the largest, and the values as dots.

    Places and values are on log scales where they span a wide range.

    Args:
        x: `(place,)`, numbers or names.
        values: for each place its values, any number of them.
        label: of the line.
        ax: axes to draw on; new ones by default.
    """
    ax = ax or plt.subplots()[1]
    numbers = all(isinstance(place, int | float) for place in x)
    order = np.argsort(x) if numbers else np.arange(len(x))
    x, values = [x[i] for i in order], [np.asarray(values[i], "float64") for i in order]
    x = x if numbers else [str(place) for place in x]
    finite = [found[np.isfinite(found)] for found in values]
    middle, low, high = ([f(found) if len(found) else np.nan for found in finite] for f in (np.median, np.min, np.max))
    (line,) = ax.plot(x, middle, "-", label=label)
    ax.fill_between(x, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    for place, found in zip(x, finite, strict=True):
        ax.plot([place] * len(found), found, "o", color=line.get_color(), markersize=3)
    shown = np.concatenate([line.get_ydata() for line in ax.get_lines()])
    shown = shown[np.isfinite(shown)]
    if len(shown) and shown.min() > 0 and shown.max() / shown.min() > 10:
        ax.set_yscale("log")
    if numbers:
        _scale_places(ax, sorted({place for line in ax.get_lines() for place in line.get_xdata()}))
    return ax


def _scale_places(ax, x):
    """Give places that span a wide range a log scale, linear from 0 to the first where 0 is one, and ticks at them."""
    first = min((place for place in x if place > 0), default=np.inf)
    if min(x) < 0 or max(x) / first < 20:
        return
    if min(x) > 0:
        ax.set_xscale("log")
    else:
        ax.set_xscale("symlog", linthresh=first, linscale=0.4)
        ax.set_xlim(left=-first / 4)
    if len(x) <= 10:
        ax.set_xticks(x, [f"{place:g}" for place in x])
        ax.set_xticks([], minor=True)


def heat_map(x, y, values, *, names, label, ax=None):
    """Draw values over two parameters as colours, on a log scale where they span more than a factor of ten.

    Args:
        x, y: values of the two parameters, rising.
        values: `(len(y), len(x))`; what is not finite stays blank.
        names: names of the two parameters.
        label: of the values.
        ax: axes to draw on; new ones by default.
    """
    ax = ax or plt.subplots()[1]
    values = np.ma.masked_invalid(values)
    wide = values.count() and values.min() > 0 and values.max() / values.min() > 10
    mesh = ax.pcolormesh(values, norm="log" if wide else "linear", cmap="viridis")
    ax.figure.colorbar(mesh, ax=ax, label=label)
    ax.set_xticks(np.arange(len(x)) + 0.5, [f"{value:g}" for value in x])
    ax.set_yticks(np.arange(len(y)) + 0.5, [f"{value:g}" for value in y])
    ax.set(xlabel=names[0], ylabel=names[1])
    ax.grid(False)
    return ax

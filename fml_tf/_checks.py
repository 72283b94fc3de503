"""Checks of what comes in, each naming the argument, what came, what was expected, and the remedy; and of forecasts."""

import warnings

import numpy as np

#: Optimisers whose update of a weight depends on the whole weight, and so on the other members in it.
COUPLING_OPTIMIZERS = ("Lamb", "Adafactor", "Muon")


def count(name, value, low):
    """Refuse anything but a whole number of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < low:
        raise ValueError(f"{name}={value!r}: expected a whole number, {low} or more.")


def architecture(state_dim, memory_steps, hidden, members, normalization, skip, state_names, seed, policy):
    """Check a flow map's arguments; return the indices of its members."""
    for name, value, low in [("state_dim", state_dim, 1), ("memory_steps", memory_steps, 0), ("seed", seed, 0)]:
        count(name, value, low)
    if not isinstance(hidden, list | tuple) or not len(hidden):
        raise ValueError(f"hidden={hidden!r}: expected the nodes of each hidden layer, for instance (10, 10, 10).")
    for nodes in hidden:
        count("hidden", nodes, 1)
    if isinstance(members, int | np.integer) and not isinstance(members, bool):
        ids = tuple(range(members))
    else:
        ids = tuple(members) if isinstance(members, list | tuple | range) else ()
    whole = all(isinstance(i, int | np.integer) and not isinstance(i, bool) and i >= 0 for i in ids)
    if not ids or not whole or len(set(ids)) < len(ids):
        raise ValueError(f"members={members!r}: expected at least one member, or distinct indices from 0 on.")
    ids = tuple(int(i) for i in ids)
    if normalization not in (None, "standard", "whitened"):
        raise ValueError(
            f"normalization={normalization!r}: expected None (the paper's plain form), 'standard' or 'whitened'."
        )
    if skip not in (None, "linear") or (skip and not normalization):
        raise ValueError(
            f"skip={skip!r} with normalization={normalization!r}: expected None, or 'linear' with a normalization: the "
            "network's output is scaled to what the linear delay map misses."
        )
    variable_names(state_names, state_dim)
    if policy.compute_dtype != policy.variable_dtype or policy.compute_dtype not in ("float32", "float64"):
        raise ValueError(
            f"dtype {policy.name!r} computes in {policy.compute_dtype}: use 'float32' or 'float64'; a flow "
            "map's increments are lost in half precision."
        )
    return ids


def variable_names(state_names, state_dim):
    """Refuse names of the observed variables that are not one for each."""
    if state_names is not None and (isinstance(state_names, str) or len(state_names) != state_dim):
        raise ValueError(f"state_names={state_names!r}: expected {state_dim} names, one for each variable.")


def runaways(states, low=None, high=None):
    """Warn of forecasts `(member or 1, trajectory, step, state)` that are not finite, or leave ten times the range of
    the training data, where that is known."""
    bad = ~np.isfinite(states)
    if low is not None:
        low, high = np.asarray(low, "float64"), np.asarray(high, "float64")
        width = np.maximum(high - low, 1e-3 * max(np.abs([low, high]).max(), 1e-30))  # a constant has none of its own
        with np.errstate(invalid="ignore"):
            bad |= np.abs(states - (low + high) / 2) > 10 * width
    bad = bad.any(axis=(0, 3))  # (trajectory, step)
    if bad.any():
        first = np.where(bad.any(axis=1), bad.argmax(axis=1), bad.shape[1])
        warnings.warn(
            f"{int(bad.any(axis=1).sum())} of {len(bad)} forecasts turned non-finite or left ten times the range "
            f"of the training data, the first (trajectory {int(first.argmin())}) at step {int(first.min()) + 1}.",
            RuntimeWarning,
            stacklevel=3,
        )


def elementwise(activation):
    """Refuse activations that look beyond one entry: on the batch axis they would mix trajectories."""
    name = activation if isinstance(activation, str) else getattr(activation, "__name__", "")
    if name in ("softmax", "log_softmax", "sparsemax", "glu"):
        raise ValueError(f"activation={name!r} is not elementwise: use tanh, gelu, relu, silu or the like.")


def compile_options(given):
    """Refuse options of Keras's compile that do not apply, and names that it does not know."""
    known = ("loss", "loss_weights", "metrics", "weighted_metrics", "steps_per_execution", "auto_scale_loss")
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"compile() does not know {name!r}: it takes optimizer, jit_compile and run_eagerly.")
        if name == "steps_per_execution" and value not in (None, 1):
            raise ValueError("steps_per_execution is not needed: fit runs a whole epoch in one call.")
        if name != "auto_scale_loss" and value not in (None, [], 1):
            raise ValueError(
                f"compile() got {name}: a flow map's loss is the multi-step loss of the paper; it takes no other. "
                "Compare forecasts with fml_tf.metrics."
            )


def savable(filepath, activation):
    """Refuse to write a file that could not be loaded again."""
    if not str(filepath).endswith(".keras"):
        raise ValueError(f"cannot save to {filepath}: expected a name that ends with .keras.")
    if getattr(activation, "__name__", "") == "<lambda>":
        raise ValueError(
            "a file cannot hold a lambda as activation: define a function, register it with "
            "keras.saving.register_keras_serializable, and build the model with it."
        )


def bursts(model, values, name):
    """Return bursts as an array of the model's type, `(sample, burst_length, state)`."""
    if not hasattr(values, "shape") and not isinstance(values, list | tuple):
        raise ValueError(f"{name} is a {type(values).__name__}: expected an array (sample, burst_length, state).")
    array = _finite(values, name, model.compute_dtype)
    if array.ndim != 3 or not len(array):
        raise ValueError(
            f"{name} has shape {array.shape}, expected (sample, burst_length, state): see fml_tf.data.cut_bursts."
        )
    _states(model, array, name)
    if array.shape[1] < model.memory_steps + 2:
        raise ValueError(
            f"{name} has bursts of {array.shape[1]} entries, but memory_steps={model.memory_steps} needs at least "
            f"n_M + 2 = {model.memory_steps + 2}, and n_M + K + 2 for K extra steps in the loss: cut longer bursts."
        )
    return array


def history(model, values):
    """Return a history as an array of the model's type, `(trajectory, n_M + 1, state)`."""
    array, needed = _finite(values, "history", model.compute_dtype), model.memory_steps + 1
    if array.ndim != 3 or not len(array):
        raise ValueError(
            f"history has shape {array.shape}, expected (trajectory, n_M + 1, state) = (trajectory, {needed}, "
            f"{model.state_dim}); put a single history in an array of one: history[None]."
        )
    _states(model, array, "history")
    if array.shape[1] != needed:
        raise ValueError(
            f"history holds {array.shape[1]} entries a trajectory, but memory_steps={model.memory_steps} needs "
            f"n_M + 1 = {needed}: give the last {needed} observed entries."
        )
    return array


def _states(model, array, name):
    if array.shape[-1] != model.state_dim:
        raise ValueError(f"{name} has {array.shape[-1]} states, but the model was built for {model.state_dim}.")


def _finite(values, name, dtype):
    if np.ma.is_masked(values):
        raise ValueError(f"{name} has masked entries: cut the trajectories there, the model bridges no gaps.")
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name} is no array, its parts differ in shape: {error}.") from error
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name} has type {array.dtype}: expected real numbers.")
    with np.errstate(over="ignore"):
        array = array.astype(dtype)
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        raise ValueError(
            f"{name} holds {len(bad)} values that are NaN or infinite in {dtype}, the first at index "
            f"{tuple(map(int, bad[0]))}: leave those trajectories out."
        )
    return array


def uncoupled(optimizer):
    """Refuse optimisers and options that look at a whole stacked weight, and so couple the members."""
    if type(optimizer).__name__ in ("LossScaleOptimizer", "MultiOptimizer") or optimizer.loss_scale_factor:
        raise ValueError(
            f"{type(optimizer).__name__}: loss scaling, or several optimisers in one, are not supported; it serves "
            "half precision, which a flow map does not use. Give one plain optimiser."
        )
    for option in ("clipnorm", "global_clipnorm"):
        if getattr(optimizer, option, None):
            raise ValueError(
                f"{option} clips by a norm over all members at once, which couples the members: use clipvalue, which "
                "acts on each entry, or train members alone with members=(i,)."
            )
    for name in {base.__name__ for base in type(optimizer).__mro__} & set(COUPLING_OPTIMIZERS):
        raise ValueError(
            f"{name} scales an update by the whole weight, which couples the members stacked in it: use Adam, Nadam, "
            "RMSprop, Lion or SGD, or train members alone with members=(i,)."
        )


def distributed(optimizer, run_eagerly):
    """Refuse what does not work on several devices at once."""
    if type(optimizer).__name__ == "LevenbergMarquardt":
        raise ValueError(
            "LevenbergMarquardt solves for all weights of a member on one device: build the model outside of the "
            "strategy's scope, or choose Adam or Soap."
        )
    if run_eagerly:
        raise ValueError("run_eagerly=True works on one device: build the model outside of the strategy's scope.")


def callbacks(given, optimizer, restore_best):
    """Return callbacks as a list; refuse those that act on single batches, or fight a schedule."""
    from fml_tf._tensorflow import keras  # this module also serves those that do without TensorFlow

    given = getattr(given, "callbacks", given)  # a CallbackList
    given = list(given) if isinstance(given, list | tuple) else [given] if given else []
    hooks = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
    base, schedules = keras.callbacks.Callback, keras.optimizers.schedules
    scheduled = isinstance(getattr(optimizer, "_learning_rate", None), schedules.LearningRateSchedule)
    if restore_best and getattr(optimizer, "use_ema", False):
        raise ValueError("use_ema averages the last weights, restore_best replaces them: fit with restore_best=False.")
    for callback in given:
        kind = type(callback)
        if not isinstance(callback, base):
            raise ValueError(
                f"callbacks hold {callback!r}: expected Keras callbacks, called as in EarlyStopping('loss')."
            )
        if getattr(callback, "restore_best_weights", False):
            raise ValueError(
                f"{kind.__name__}(restore_best_weights=True) goes by the mean over members: leave it out, each member "
                "already ends with the weights of its own best epoch."
            )
        owners = [next(c for c in kind.__mro__ if hook in vars(c)) for hook in hooks]
        per_batch = not all(owner.__module__.startswith("keras.") for owner in owners)
        per_batch |= isinstance(callback, keras.callbacks.LambdaCallback) and any(h in vars(callback) for h in hooks)
        frequencies = [getattr(callback, name, "epoch") for name in ("save_freq", "update_freq")]
        if per_batch or any(f not in ("epoch", False) for f in frequencies):
            raise ValueError(
                f"{kind.__name__} acts on single batches, but a whole epoch runs on the device in one call: use its "
                "per-epoch hooks or settings (on_epoch_end, save_freq='epoch', update_freq='epoch')."
            )
        if scheduled and isinstance(
            callback, keras.callbacks.ReduceLROnPlateau | keras.callbacks.LearningRateScheduler
        ):
            raise ValueError(
                f"{kind.__name__} sets the learning rate, but the optimiser already follows a schedule: compile with a "
                "plain number, or leave the callback out."
            )
    return given

"""Compiled programs, shared between models of the same structure.

XLA keeps a compiled program for as long as the process lives. Models that differ only in their values (weights, seed,
which members, a plain learning rate) therefore run the programs of one of them, the engine, with their own state
copied in: the second such model compiles nothing, and building models in a loop costs no memory. Each new structure
(another network, optimiser or learning-rate schedule) does cost its programs. Copying some forty small arrays takes a
millisecond or two a call.

A model that may hold more than its configuration tells (a subclass, frozen layers, an optimiser of the user's own) is
its own engine and shares nothing.
"""

import contextlib
import json
import threading

from fml_tf import optimizers
from fml_tf._tensorflow import keras, tf

_ENGINES = {}
_LOCK = threading.RLock()  # an engine serves one model at a time


@contextlib.contextmanager
def borrowed(model):
    """Lend the engine of a model, with the model's state in it, to the block."""
    with _LOCK:
        engine = _of(model)
        engine.copy_state(model)
        yield engine


def _of(model):
    """Return the engine of a model's structure, built at the first call."""
    if model.run_eagerly or model.replicas > 1 or not _is_plain(model):
        return model
    key = _structure(model)
    if key not in _ENGINES:
        config = {**model.get_config(), "members": model.members, "activation": model.activation}
        engine = type(model).from_config({**config, "kernel_initializer": "zeros"})
        if model.optimizer:
            clone = type(model.optimizer).from_config(model.optimizer.get_config())
            engine.compile(clone, jit_compile=model.jit_compile)
        _ENGINES[key] = engine
    return _ENGINES[key]


def _is_plain(model):
    """Say whether a model's configuration and variables are all there is to it."""
    optimizer = model.optimizer
    own_class = not type(model).__module__.startswith("fml_tf.")
    frozen = not model.trainable or not all(layer.trainable for layer in model.dense_layers)
    custom = optimizer is not None and (
        not type(optimizer).__module__.startswith(("keras.", "fml_tf."))
        or bool(getattr(optimizer, "_exclude_from_weight_decay", None))
        or bool(getattr(optimizer, "_exclude_from_weight_decay_pattern", None))
    )
    rate = getattr(optimizer, "_learning_rate", None)
    foreign = callable(rate) and not type(rate).__module__.startswith(("keras.", "fml_tf."))
    return not (own_class or frozen or custom or foreign)


def state(model):
    """Return all variables that a program reads or writes."""
    optimizer = model.optimizer.variables if model.optimizer else []
    return [variable.value for variable in (*model.variables, *model.loss_tracker.variables, *optimizer)]


@tf.function(autograph=False)
def copy(sources, targets):
    """Assign variables to others of the same shapes in one call: one by one, they would take ten times as long."""
    for source, target in zip(sources, targets, strict=True):
        target.assign(source)


copy._omit_frequent_tracing_warning = True  # traced once for each structure


def program(model, name, *, jit_compile=True):
    """Return a method of a model, compiled at the first call; without `jit_compile` as a graph, never by XLA."""
    if model.run_eagerly:
        return getattr(model, name)
    if name not in model.programs:
        jit = model.jit_compile if model.optimizer else model.replicas == 1
        model.programs[name] = tf.function(getattr(model, name), jit_compile=jit and jit_compile, autograph=False)
        # Every structure needs its own; TensorFlow would take them for one function that is traced too often.
        model.programs[name]._omit_frequent_tracing_warning = True
    return model.programs[name]


def _structure(model):
    """Return what decides a model's programs, and leaves out what is only a value in them."""
    config, optimizer = model.get_config(), None
    for value in ("name", "seed", "members", "time_step", "state_names", "activation", "kernel_initializer"):
        config.pop(value)
    if model.optimizer:
        optimizer = keras.optimizers.serialize(model.optimizer)
        optimizer["config"].pop("name")
        if not isinstance(optimizer["config"]["learning_rate"], dict):  # no schedule, but a variable
            optimizer["config"].pop("learning_rate")
    # Least squares solve for the weights of the inputs in use, whose number the data decide.
    rank = model.input_rank if isinstance(model.optimizer, optimizers.LevenbergMarquardt) else None
    structure = json.dumps([config, optimizer, model.members, rank], default=str)
    return type(model), model.activation, model.jit_compile, model.unroll_limit, structure

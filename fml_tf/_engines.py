"""Compiled programs, shared between models of the same structure.

XLA keeps a compiled program for as long as the process lives. Models that differ only in their values (weights, seed,
which members, a plain learning rate) therefore run the programs of one of them, the engine, with their own state copied
in: the second such model compiles nothing, and building models in a loop costs no memory. Copying some forty small
arrays takes about a millisecond a call.
"""

import json

from fml_tf._tensorflow import keras, tf

_ENGINES = {}


def of(model):
    """Return the engine of a model's structure, built at the first call; a model that runs eagerly is its own."""
    if model.run_eagerly:
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


def state(model):
    """Return all variables that a program reads or writes."""
    optimizer = model.optimizer.variables if model.optimizer else []
    return [*model.variables, *model.loss_tracker.variables, *optimizer]


def program(model, name):
    """Return a method of a model, compiled at the first call."""
    if model.run_eagerly:
        return getattr(model, name)
    if name not in model.programs:
        jit = model.jit_compile if model.optimizer else True
        model.programs[name] = tf.function(getattr(model, name), jit_compile=jit, autograph=False)
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
    structure = json.dumps([config, optimizer, model.members], default=str)
    return type(model), model.activation, model.jit_compile, model.unroll_limit, structure

"""Compiled programs, shared between models of the same structure.

XLA keeps a compiled program for as long as the process lives. Models that differ only in their values (weights, seed,
which members, a plain learning rate) therefore run the programs of one of them, the engine, with their own state
copied in: the second such model compiles nothing, and building models in a loop costs no memory. Each new structure
(another network, optimiser or learning-rate schedule) does cost its programs. Copying some forty small arrays takes a
few milliseconds a call.

On a CPU an ensemble trains in parts, an engine and a thread for each: threads that share nothing keep the cores busier
than XLA does that splits one program between them.

A model that may hold more than its configuration tells (a subclass, frozen layers, an optimiser of the user's own) is
its own engine and shares nothing.
"""

import contextlib
import functools
import itertools
import json
import os
import threading
from concurrent import futures

from fml_tf import _cores, optimizers
from fml_tf._tensorflow import gpus, keras, tf

#: Parts that an ensemble trains in at most, and the least members of one: each compiles a program of its own.
MOST_PARTS, LEAST_MEMBERS = 4, 2

_ENGINES = {}
_LOCK = threading.RLock()  # an engine serves one model at a time
THREADS = futures.ThreadPoolExecutor(MOST_PARTS, thread_name_prefix="fml_tf")


@contextlib.contextmanager
def borrowed(model):
    """Lend the engine of a model, with the model's state in it, to the block."""
    with _LOCK:
        engine = _of(model)
        _deal(model, [engine])
        yield engine


@contextlib.contextmanager
def borrowed_parts(model):
    """Lend the engines that train a model, with their members' state in them: pairs of an engine and its members."""
    with _LOCK:
        whole = gpus or not model.jit_compile or _least_squares(model) or not _shares(model)
        count = 1 if whole else max(1, min(cores(), MOST_PARTS, model.members // LEAST_MEMBERS))
        edges = [round(place * model.members / count) for place in range(count + 1)]
        parts = [slice(*edge) for edge in itertools.pairwise(edges)]
        engines = [_of(model, part.stop - part.start, place) for place, part in enumerate(parts)]
        _deal(model, engines)
        yield list(zip(engines, parts, strict=True))


def train_epoch(model, bursts, order, rest):
    """Run `_train_epoch` of a model on an order of the bursts, `(step, member, batch)` and `(member, rest)`, in parts
    side by side; the model has the state that results. Should a part fail, the model is as it was before."""
    with borrowed_parts(model) as parts:
        run_parts(parts, bursts, order, rest)
        _collect([engine for engine, _ in parts], model)


def run_parts(parts, bursts, order, rest):
    """Run `_train_epoch` of the engines of `borrowed_parts`, each in a thread, and wait for all of them."""
    if len(parts) == 1:
        engine = parts[0][0]
        program(engine, "_train_epoch", jit_compile=not _least_squares(engine))(bursts, order, rest)
        return
    jobs = [_job(parts, engine, (bursts, order[:, members], rest[members])) for engine, members in parts]
    running = [THREADS.submit(job) for job in jobs]
    try:
        for part in running:
            part.result()
    except BaseException:
        kept = _ENGINES.copy()
        _ENGINES.clear()  # a second interrupt while waiting leaves the engines to their threads
        futures.wait(running)
        _ENGINES.update(kept)
        raise


def _job(parts, engine, arguments):
    """Return the call of `_train_epoch` for one part. Parts of one size run the program of the first of them, with
    variables of their own in place of those it captured: it is compiled once."""
    first = next(other for other, _ in parts if other.members == engine.members)
    epoch = program(first, "_train_epoch").get_concrete_function(*arguments)
    own = {id(theirs.handle): mine.handle for theirs, mine in zip(state(first), state(engine), strict=True)}
    captured = tuple(own.get(id(handle), handle) for handle in epoch.captured_inputs)
    return functools.partial(epoch._call_flat, arguments, captured)  # TensorFlow has no public way to it


def _least_squares(model):
    """Say whether a model trains by least squares, which compile parts of their own and need no other split."""
    return isinstance(model.optimizer, optimizers.LevenbergMarquardt)


def cores():
    """Return the number of cores that this process may use: those it is bound to, or fewer where TensorFlow was told
    so, by its own call or by its environment variable."""
    allowed = _cores.allowed()
    told = tf.config.threading.get_intra_op_parallelism_threads() or os.environ.get("TF_NUM_INTRAOP_THREADS", "")
    return min(allowed, int(told or 0) or allowed)


def _shares(model):
    """Say whether engines of its structure can stand in for a model."""
    return not model.run_eagerly and model.replicas == 1 and _is_plain(model)


def _of(model, members=None, place=0):
    """Return an engine of a model's structure, or of so many members of it, built at the first call; engines of
    another place are others."""
    if not _shares(model):
        return model
    members = members or model.members
    key = *_structure(model), members, place
    if key not in _ENGINES:
        config = {**model.get_config(), "members": members, "activation": model.activation}
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


def _deal(model, engines):
    """Give the engines of a model its state, each that of its members."""
    if engines != [model]:
        _split([state(engine) for engine in engines], state(model))


def _collect(engines, model):
    """Give a model the state of its engines: the reverse of `_deal`."""
    if engines != [model]:
        _join([state(engine) for engine in engines], state(model))


@tf.function(autograph=False)
def _split(parts, whole):
    """Assign variables to those of the parts: along the first axis to each its members', whole what all share. In one
    call, since one by one they would take ten times as long."""
    for source, *targets in zip(whole, *parts, strict=True):
        start = 0
        for target in targets:
            shared = source.shape == target.shape
            target.assign(source if shared else source[start : start + target.shape[0]])
            start += target.shape[0] if target.shape.rank else 0


@tf.function(autograph=False)
def _join(parts, whole):
    """Assign the variables of all parts to the whole's: the reverse of `_split`."""
    for target, *sources in zip(whole, *parts, strict=True):
        target.assign(sources[0] if sources[0].shape == target.shape else tf.concat(sources, axis=0))


for function in (_split, _join):
    function._omit_frequent_tracing_warning = True  # traced once for each structure


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
    rank = model.input_rank if _least_squares(model) else None
    structure = json.dumps([config, optimizer, rank], default=str)
    return type(model), model.activation, model.jit_compile, model.unroll_limit, structure

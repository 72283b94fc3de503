"""Ask how much the result of a standard recipe owes to the luck of its ten members, on 5.1 to 5.3.

    python benchmarks/training/pool.py [5.1.1 ...]
    python benchmarks/training/pool.py --tables      # only renew docs/accuracy.md from the file

Thirty more members train beside the ten committed ones, on the same data. Seventy times ten of the forty are drawn and
forecast together, with equal shares and with shares by their losses: how far apart are their errors? Over ten times the
horizon, does any ensemble run away, does any member? Numbers go to `results/pool.json`; what stands there is kept. The
forty are kept under runs/, where a training is backed up and goes on after an interruption.
"""

import argparse
import functools

import compare
import numpy as np

from fml_tf import data, metrics, problems, results

OUT = results.ROOT / "results" / "pool.json"
PAGE = results.ROOT / "docs" / "accuracy.md"
BENCHMARKS = tuple(name for name in problems.PAPER if name < "5.4")
MEMBERS, CHOSEN, DRAWS, LONGER = 40, 10, 70, 10


def grow(record):
    """Return the committed ensemble with thirty more members, trained as it was, or what was kept of that before."""
    from fml_tf import models, training  # here alone is TensorFlow needed

    folder = results.run_folder("pool")
    kept = folder / f"{record.id}.keras"
    if kept.exists():
        return models.load(kept)
    committed, bursts = models.load_pretrained(record.id), data.sample_bursts(record, seed=0)
    more = models.FlowMap.from_config(
        {**committed.get_config(), "name": None, "members": list(range(committed.members, MEMBERS))}
    )
    training.train(more, record, bursts, backup=folder / record.id)
    pool = join(bursts, committed, more)
    results.replace(kept, pool.save)
    return pool


def join(bursts, *ensembles):
    """Return one ensemble of the members of several that agree in all else, training data included."""
    ids = [number for ensemble in ensembles for number in ensemble.member_ids]
    pool = type(ensembles[0]).from_config({**ensembles[0].get_config(), "name": None, "members": ids})
    pool.adapt(bursts)
    for layer, *parts in zip(pool.dense_layers, *(ensemble.dense_layers for ensemble in ensembles), strict=True):
        for name in ("kernel", "bias"):
            getattr(layer, name).assign(np.concatenate([getattr(part, name).numpy() for part in parts]))
    return pool


def judge(record, pool, losses):
    """Return errors of tens over the horizon, with equal shares and by losses, and the fraction of long forecasts that
    stay bounded, of each ten and of each member."""
    history, truth = np.split(data.sample_trajectories(record, seed=1), [record.memory_steps + 1], axis=1)
    low, high = pool.data_range.numpy()
    steps, rng = LONGER * record.horizon, np.random.default_rng(0)
    found = {"errors": [], "weighed": [], "bounded": [], "members": []}
    for _ in range(DRAWS):
        drawn = rng.choice(pool.members, CHOSEN, replace=False)
        ten = pool.member(drawn)
        ten.weigh()  # equally
        forecast = ten.forecast(history, steps)
        found["errors"].append(metrics.score(record, forecast[:, : record.horizon], truth))
        found["bounded"].append(metrics.bounded_fraction(forecast, low, high))
        ten.weigh(losses[drawn])
        found["weighed"].append(metrics.score(record, ten.forecast(history, record.horizon), truth))
    for member in range(pool.members):
        forecast = pool.member(member).forecast(history, steps)
        found["members"].append(metrics.bounded_fraction(forecast, low, high))
    return found


def measure(benchmark):
    record = problems.get(benchmark)
    pool = grow(record)
    pool.compile()
    return judge(record, pool, pool.evaluate_members(data.sample_bursts(record, seed=0)))


def tables(found):
    """Return the spread of the tens and the fate of the members as a Markdown table."""
    head = (
        "benchmark, equal shares, largest over least, of nine tenths, shares by loss, their largest over least, "
        "their nine tenths, tens bounded"
    )
    rows = [[*head.split(", "), "members bounded", "worst member"]]
    for benchmark in (name for name in BENCHMARKS if name in found):
        values, row = found[benchmark], [benchmark]
        for key in ("errors", "weighed"):
            ratios = [np.quantile(values[key], 1 - part) / np.quantile(values[key], part) for part in (0, 0.05)]
            row += [f"{np.median(values[key]):.1e}", *(f"{ratio:.1f}" for ratio in ratios)]
        tens, members = (np.count_nonzero(np.equal(values[key], 1)) for key in ("bounded", "members"))
        row += [f"{tens} of {DRAWS}", f"{members} of {MEMBERS}", f"{100 * min(values['members']):.0f} %"]
        rows.append(row)
    return {"pool": results.markdown(rows)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("benchmarks", nargs="*", default=BENCHMARKS, help=f"of {', '.join(BENCHMARKS)}; by default all")
    parser.add_argument("--tables", action="store_true", help="only renew the page")
    given = parser.parse_args()
    if unknown := set(given.benchmarks) - set(BENCHMARKS):
        parser.error(f"{', '.join(sorted(unknown))}: expected some of {', '.join(BENCHMARKS)}")
    found = compare.known(OUT)
    for benchmark in [] if given.tables else given.benchmarks:
        if benchmark not in found:
            print(f"{benchmark}: training", flush=True)
            found[benchmark] = compare.alone(functools.partial(measure, benchmark))
            print(tables({benchmark: found[benchmark]})["pool"].splitlines()[-1], flush=True)
            compare.keep(OUT, found)
    results.write_tables(PAGE, tables(found))


if __name__ == "__main__":
    main()

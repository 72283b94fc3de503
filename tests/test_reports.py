"""Reports of sweeps: the tables' arithmetic, and what kind of figure is drawn."""

import itertools
import json

import numpy as np
import pytest

from fml_tf import reports


def row(swept, seed=0, state="done", **found):
    """Make a row as a sweep gives it."""
    values = {"id": "0", "repeat": 0, "parameters": {}, "reason": "", "seconds": 1.0, "host": "here"}
    return {**values, "swept": swept, "seed": seed, "state": state, "results": found}


def grid(*axes, names=("a", "b")):
    """Make a row for each combination of values, two seeds of each."""
    return [
        row(
            dict(zip(names, values, strict=False)),
            seed,
            mean_error=10.0 ** -sum(map(len, map(str, values))) * (1 + seed),
        )
        for values in itertools.product(*axes)
        for seed in (0, 1)
    ]


@pytest.fixture
def folder(tmp_path):
    """Write rows as the folder of a sweep."""

    def make(rows):
        for place, given in enumerate(rows):
            given["id"] = str(place)
            run = tmp_path / "runs" / given["id"]
            run.mkdir(parents=True)
            (run / "state.json").write_text(
                json.dumps({k: given[k] for k in ("state", "reason", "seconds", "host", "results")})
            )
        (tmp_path / "manifest.json").write_text(json.dumps({"rows": rows}))
        return tmp_path

    return make


def test_the_summary_holds_mean_median_and_spread_of_what_is_there():
    rows = [row({"a": 1}, 0, x=1.0), row({"a": 1}, 1, x=3.0), row({"a": 1}, 2, x=None), row({"a": 2}, 0, y=5.0)]
    first, second = reports.summary(rows, ["x", "y"])
    assert (first["a"], first["runs"], first["x_mean"], first["x_min"], first["x_max"]) == (1, 3, 2.0, 1.0, 3.0)
    assert first["x_std"] == pytest.approx(np.sqrt(2))
    (skewed,) = reports.summary([row({"a": 1}, seed, x=x) for seed, x in enumerate((1.0, 2.0, 9.0))], ["x"])
    assert (skewed["x_mean"], skewed["x_median"]) == (4.0, 2.0)
    assert (first["y_mean"], first["y_std"]) == (None, None)
    assert (second["y_mean"], second["y_std"], second["x_mean"]) == (5.0, None, None)


def test_the_table_has_a_row_for_every_run_and_a_column_for_every_result(folder):
    rows = [row({"a": 1}, x=1.0, seconds_train=2.0), row({"b": "c"}, state="failed"), row({"a": 2}, y=2.0)]
    table = reports.table(rows)
    assert list(table[0]) == [
        "run",
        "a",
        "b",
        "seed",
        "repeat",
        "state",
        "reason",
        "x",
        "y",
        "seconds_train",
        "seconds",
        "host",
    ]
    assert [line["state"] for line in table] == ["done", "failed", "done"]
    written = reports.write(folder(rows))
    assert [path.name for path in written] == ["results.csv", "summary.csv", "figure.png"]
    assert (written[0]).read_text().splitlines()[2].startswith("1,,c,0,0,failed")
    assert written[1].read_text().splitlines()[0].startswith("a,runs,x_mean")


@pytest.mark.parametrize(
    ("axes", "lines", "meshes", "scales", "across"),
    [
        (([1, 10, 100, 1000],), 1, 0, ("log", "log"), "a"),
        (([0, 1, 5, 60],), 1, 0, ("symlog", "log"), "a"),
        ((["relu", "tanh"],), 1, 0, ("linear", "linear"), "a"),
        (([1, 2, 3], ["relu", "tanh"]), 2, 0, ("linear", "linear"), "a"),
        ((["adam", "soap"], [1, 2, 3]), 2, 0, ("linear", "linear"), "b"),
        (([1, 2], [1, 2, 3]), 2, 0, ("linear", "linear"), "b"),
        (([1, 2, 3, 4], [10, 20, 30, 400]), 0, 1, ("linear", "linear"), "a"),
    ],
)
def test_one_parameter_gives_lines_and_two_of_many_numbers_a_map(axes, lines, meshes, scales, across):
    figure = reports.draw(grid(*axes), ["a", "b"][: len(axes)], "mean_error")
    ax = figure.axes[0]
    assert [line.get_linestyle() for line in ax.get_lines()].count("-") == lines
    assert len(figure.axes) - 1 == meshes == len(ax.collections) * meshes
    assert (ax.get_xscale(), ax.get_yscale()) == scales
    assert ax.get_xlabel() == across


def test_a_map_shows_the_median_where_it_belongs():
    rows = grid([1, 2, 3, 4], [5, 6, 7, 80])
    far = [row(given["swept"], 2 + i, mean_error=value) for given in rows[::2] for i, value in enumerate((1e-9, 1.0))]
    figure = reports.draw(rows + far, ["a", "b"], "mean_error")
    mesh = np.asarray(figure.axes[0].collections[0].get_array())
    np.testing.assert_allclose(mesh[0], 1.5e-2)
    np.testing.assert_allclose(mesh[3], 1.5e-3)


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ([row({"a": 1}, state="failed")], {}, "no run in .* is done"),
        ([row({"a": 1}, x=1.0)], {"metric": "y"}, "unknown metric 'y': the runs report x"),
        ([row({"a": 1}, x=1.0)], {"out": "/dev/null/x"}, "cannot make the folder"),
    ],
)
def test_reports_that_cannot_be_made_are_refused(folder, rows, options, message):
    with pytest.raises(ValueError, match=message):
        reports.write(folder(rows), **options)


def test_three_swept_parameters_have_tables_and_no_figure(folder):
    written = reports.write(folder(grid([1], [2], [3], names="abc")))
    assert [path.name for path in written] == ["results.csv", "summary.csv"]


def test_names_that_meet_are_kept_apart():
    table = reports.table([row({"a": 1, "state": "x"}, a=9.0, run=5, repeat=7, host=3)])
    assert table[0]["a"] == 1
    assert table[0]["parameter_state"] == "x"
    assert (table[0]["run"], table[0]["seed"], table[0]["state"], table[0]["host"]) == ("0", 0, "done", "here")
    assert [table[0][f"result_{name}"] for name in ("a", "run", "repeat", "host")] == [9.0, 5, 7, 3]


def test_values_of_any_kind_have_rows_and_places_of_their_own(folder):
    values = [1, True, [1, 2], {"b": 1}, None, "$x"]
    rows = [row({"a": value}, seed, mean_error=1.0 + seed) for value in values for seed in (0, 1)]
    assert [line["runs"] for line in reports.summary(rows, ["mean_error"])] == [2] * len(values)
    written = reports.write(folder(rows))
    assert [path.name for path in written] == ["results.csv", "summary.csv", "figure.png"]

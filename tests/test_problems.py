"""Problems: the paper's numbers, the presets, and what is refused."""

import math

import pytest

from fml_tf import problems, systems

HALF_PI = math.pi / 2

#: The key-parameter lists of the paper, typed anew from its Section 5. All share N = 50,000, K = 10, five bursts, 10^4
#: epochs at 1e-4 and ten models.
COMMON = dict(
    n_trajectories=10_000, n_bursts=5, n_samples=50_000, multi_steps=10, learning_rate=1e-4, epochs=10_000, members=10,
    schedule="constant", batch_size=200, n_test=100, normalization=None,
)  # fmt: skip
LINEAR = dict(COMMON, time_step=0.01, domain=((0, 2),) * 2, trajectory_length=200, horizon=200, hidden=(10,) * 3)
PENDULUM = dict(LINEAR, domain=((-HALF_PI, HALF_PI), (-math.pi, math.pi)), trajectory_length=1000, horizon=1000)
HIDDEN_DAMPING = dict(PENDULUM, domain=(*PENDULUM["domain"], (0, 0.2)))
LORENZ = dict(LINEAR, domain=((-HALF_PI, HALF_PI),) * 3, trajectory_length=10_000, horizon=10_000, hidden=(30, 30, 30))
TABLE = {
    "5.1.1": dict(LINEAR, memory_steps=0, burst_length=12, state_names=("y1", "y2"), system=systems.SMALL_LINEAR),
    "5.1.2": dict(LINEAR, memory_steps=10, burst_length=22, state_names=("y1",), system=systems.SMALL_LINEAR),
    "5.2.1": dict(LINEAR, memory_steps=0, burst_length=12, state_names=("y1", "y2"), system=systems.OSCILLATORY_LINEAR),
    "5.2.2": dict(LINEAR, memory_steps=10, burst_length=22, state_names=("y1",), system=systems.OSCILLATORY_LINEAR),
    "5.3.1": dict(PENDULUM, memory_steps=0, burst_length=12, state_names=("y1", "y2"), system=systems.PENDULUM),
    "5.3.2": dict(
        HIDDEN_DAMPING, memory_steps=10, burst_length=22, state_names=("y1", "y2"), system=systems.RANDOM_PENDULUM
    ),
    "5.3.3": dict(
        HIDDEN_DAMPING, memory_steps=10, burst_length=22, state_names=("y1",), system=systems.RANDOM_PENDULUM
    ),
    "5.4.1": dict(LORENZ, memory_steps=0, burst_length=12, state_names=("x", "y", "z"), system=systems.LORENZ),
    "5.4.2": dict(LORENZ, memory_steps=10, burst_length=22, state_names=("x", "y"), system=systems.LORENZ),
    "5.4.3": dict(LORENZ, memory_steps=10, burst_length=22, state_names=("x",), system=systems.LORENZ),
    "5.5.1": dict(
        COMMON, time_step=0.02, domain=((-2, 2),) * 20, trajectory_length=100, horizon=100, hidden=(100, 100, 100),
        memory_steps=30, burst_length=42, state_names=tuple(f"y{i}" for i in range(1, 11)), system=systems.LARGE_LINEAR,
    ),
}  # fmt: skip


def test_all_eleven_benchmarks_are_here_in_order():
    assert list(problems.PAPER) == list(problems.PRESETS) == list(TABLE)


@pytest.mark.parametrize("benchmark", sorted(problems.PAPER))
def test_paper_preset_is_the_papers_table(benchmark):
    problem = problems.get(benchmark, "paper")
    for name, value in TABLE[benchmark].items():
        assert getattr(problem, name) == value, name
    assert problem.id == benchmark


@pytest.mark.parametrize("benchmark", sorted(problems.PAPER))
def test_standard_keeps_data_network_and_members(benchmark):
    paper, standard = problems.get(benchmark, "paper"), problems.get(benchmark)
    for name in ("system", "n_samples", "hidden", "members", "memory_steps", "multi_steps", "horizon", "n_test"):
        assert getattr(standard, name) == getattr(paper, name), name
    assert (standard.trajectory_length, standard.domain) == (paper.trajectory_length, paper.domain)
    assert sorted(problems.PRESETS[benchmark]) == ["paper", "quick", "skip", "standard"]


def test_observed_variables_carry_their_names():
    assert problems.get("5.1.1").system is systems.SMALL_LINEAR
    assert problems.get("5.1.1").state_names == ("y1", "y2")


def test_overrides_replace_and_none_keeps():
    problem = problems.get("5.1.1", "quick", members=3, epochs=None, hidden=[4, 4])
    assert (problem.members, problem.hidden) == (3, (4, 4))
    assert problem.epochs == problems.get("5.1.1", "quick").epochs


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: problems.get("5.1.9"), "unknown benchmark '5.1.9'.*Known: 5.1.1, 5.1.2"),
        (lambda: problems.get("5.1.1", "fast"), "unknown preset 'fast'.*Known: paper, standard, quick, skip"),
        (lambda: problems.get("5.1.1", "standardd"), "Did you mean 'standard'"),
        (lambda: problems.get("5.1.1", memory_step=3), "unknown field of a problem.*Did you mean 'memory_steps'"),
        (lambda: problems.get("5.1.1", memory_steps=-1), "memory_steps=-1: expected a whole number, 0 or more"),
        (lambda: problems.get("5.1.1", multi_steps=-1), "multi_steps=-1: expected a whole number, 0 or more"),
        (lambda: problems.get("5.1.1", multi_steps=2.0), "multi_steps=2.0"),
        (lambda: problems.get("5.1.1", members=0), "members=0"),
        (lambda: problems.get("5.1.1", learning_rate=-1.0), "learning_rate=-1.0: expected a positive number"),
        (lambda: problems.get("5.1.1", learning_rate="1e-3"), "learning_rate='1e-3': expected a positive number"),
        (lambda: problems.get("5.1.1", schedule="linear"), "expected one of constant, cosine, one_cycle, cyclic"),
        (lambda: problems.get("5.1.1", learning_rate=float("nan")), "expected a positive number"),
        (lambda: problems.get("5.1.1", observed=(0, 5)), "expected indices of the 2 variables"),
        (lambda: problems.get("5.1.1", domain=((0, 2), (2, 0))), "low < high"),
        (lambda: problems.get("5.1.1", hidden=5), "expected the nodes of each hidden layer"),
        (lambda: problems.get("5.1.1", hidden=()), "expected the nodes of each hidden layer"),
        (lambda: problems.get("5.1.1", multi_steps=199), "a burst of .* = 0 \\+ 199 \\+ 2 = 201 entries does not fit"),
        (lambda: problems.get("5.1.1", n_bursts=190), "n_bursts=190 bursts do not fit .* has 189 places"),
        (lambda: problems.get("5.1.1", noise=-1.0), "noise=-1.0: expected a positive number, or 0"),
        (lambda: problems.get("5.1.1", optimizer="sgd"), "expected one of adam, soap, levenberg_marquardt"),
        (lambda: problems.get("5.1.1", stages=(3,)), "expected a tuple of problems.Stage"),
        (lambda: problems.Stage(0), "epochs=0: expected a whole number, 1 or more"),
        (lambda: problems.Stage(5, noise=-1.0), "noise=-1.0: expected a positive number, or 0"),
        (lambda: problems.Stage(5, optimizer="sgd"), "expected one of adam, soap, levenberg_marquardt"),
        (
            lambda: problems.get("5.1.1", stages=(problems.Stage(5, multi_steps=11),)),
            "multi_steps=11 needs longer bursts",
        ),
    ],
)
def test_bad_names_and_values_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_numbers_are_plain_and_complete():
    numbers = problems.get("5.1.1").numbers()
    assert numbers["system"] == "small linear system"
    assert numbers["memory_steps"] == 0


def test_choices_leave_out_defaults_so_that_new_options_change_nothing():
    plain, staged = problems.get("5.1.1"), problems.get("5.3.1")
    assert not {"noise", "stages", "n_test"} & set(plain.choices())
    assert plain.choices()["members"] == 10
    assert [stage["epochs"] for stage in staged.choices()["stages"]] == [40, 15]
    assert staged.stage_epochs == 55
    assert "noise" in problems.get("5.1.1", noise=1e-3).choices()
    assert "noise" not in staged.choices()["stages"][0]
    assert problems.Stage(5).noise is None

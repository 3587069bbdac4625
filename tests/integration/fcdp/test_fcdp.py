"""Sharded training on 4 ranks, 2 emulated nodes: losses agree with one process, bytes agree with closed forms; memory;
errors."""

from __future__ import annotations

import itertools
import json
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import emulated
import pytest
from jobs import BIN, PROGRAMS, Job

from manapy.fcdp.costs import bytes_per_node
from manapy.fcdp.engine.strategy import STRATEGIES

NODES, RANKS_PER_NODE = 2, 2
MICRO_BATCHES, STEPS = (1, 2, 4), 3
HOSTS = emulated.names(2)
PROGRAM = PROGRAMS / "fcdp/fcdp_train.py"
Make = Callable[..., Job]


def train(make_job: Make, *options: str, ranks: int = NODES * RANKS_PER_NODE) -> dict[str, Any]:
    """The result of one training."""
    (only,) = results(start(make_job, ranks, *options))
    return only


def start(make_job: Make, ranks: int, *options: str) -> Job:
    return make_job(ranks).spawn([BIN / "mpirun", "-n", str(ranks), sys.executable, PROGRAM, *options])


def fail(make_job: Make, *options: str, ranks: int = NODES * RANKS_PER_NODE) -> list[str]:
    """Run the program, which must fail; the errors of its ranks."""
    job = start(make_job, ranks, *options)
    assert job.wait() != 0
    return [line for line in job.output().splitlines() if "Error: " in line]


def results(job: Job) -> list[dict[str, Any]]:
    """The results that the program printed, one for each number of micro-batches."""
    return list(
        json.loads(next(line for line in job.finish().splitlines() if line.startswith("RESULT")).removeprefix("RESULT"))
    )


def losses_of_one_process(make_job: Make, *options: str) -> list[float]:
    return list(results(make_job(1).spawn([sys.executable, PROGRAM, "--reference", *options]))[0]["losses"])


def padded(units: list[tuple[int, bool]], trainable: bool) -> int:
    """Bytes of float32 units whose sizes are rounded up to whole elements per rank."""
    ranks = NODES * RANKS_PER_NODE
    return sum(-(-size // ranks) * ranks * 4 for size, kind in units if kind is trainable)


def frozen_and_trainable(done: dict[str, Any]) -> tuple[int, int]:
    return padded(done["units"], False), padded(done["units"], True)


@pytest.fixture(scope="module")
def expected(make_shared_job: Make) -> dict[str, list[float]]:
    """The losses of one process, by model."""
    return {
        "full": losses_of_one_process(make_shared_job),
        "adapted": losses_of_one_process(make_shared_job, "--adapted"),
    }


@pytest.fixture(scope="module")
def trained(make_shared_job: Make) -> dict[tuple[str, str, int], dict[str, Any]]:
    """The results of trainings, by model, strategy and number of micro-batches."""
    done = {}
    for model, options in (("full", []), ("adapted", ["--adapted"])):
        job = start(
            make_shared_job,
            NODES * RANKS_PER_NODE,
            "--strategy",
            *STRATEGIES,
            "--micro-batches",
            *map(str, MICRO_BATCHES),
            *options,
        )
        done.update(zip(itertools.product([model], STRATEGIES, MICRO_BATCHES), results(job), strict=True))
    return done


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("model", ["full", "adapted"])
def test_losses_and_bytes(
    trained: dict[tuple[str, str, int], dict[str, Any]], expected: dict[str, list[float]], strategy: str, model: str
) -> None:
    assert expected[model][-1] != expected[model][0]
    for micro_batches in MICRO_BATCHES:
        done = trained[model, strategy, micro_batches]
        assert done["losses"] == pytest.approx(expected[model], rel=2e-6)
        frozen, trainable = frozen_and_trainable(done)
        assert (frozen > 0) == (model == "adapted")
        forms = [
            bytes_per_node(
                strategy, NODES, RANKS_PER_NODE, trainable, frozen, trainable, micro_batches, first=step == 0
            )
            for step in range(len(done["inter"]))
        ]
        for sent, form in zip(done["inter"], forms, strict=True):
            assert [sum(sent[:2]), sum(sent[2:])] == [form.total.inter] * NODES
        for phase in ("forward", "backward", "reduce"):
            volumes = [getattr(form, phase) for form in forms]
            assert done["report"][phase] == {
                "inter": sum(volume.inter for volume in volumes),
                "intra": sum(volume.intra for volume in volumes),
            }


def test_fcdp_crosses_the_network_once_per_step(trained: dict[tuple[str, str, int], dict[str, Any]]) -> None:
    done = trained["full", "fcdp", 4]
    _, weights = frozen_and_trainable(done)
    assert [sum(sent[:2]) for sent in done["inter"]] == [(NODES - 1) * 2 * weights // NODES] * STEPS
    assert done["report"]["backward"]["inter"] == 0
    assert done["report"]["forward"]["inter"] == done["report"]["reduce"]["inter"] == STEPS * weights // NODES


def test_frozen_weights_from_every_node_s_own_disk_never_cross_the_network(
    make_job: Make, expected: dict[str, list[float]], tmp_path: Path
) -> None:
    job = start(
        make_job, NODES * RANKS_PER_NODE, "--adapted", "--local-weights", str(tmp_path), "--strategy", *STRATEGIES
    )
    for strategy, done in zip(STRATEGIES, results(job), strict=True):
        assert done["losses"] == pytest.approx(expected["adapted"], rel=2e-6), strategy
        if strategy in ("fcdp", "fcdp_comm", "hpz", "mics"):  # these never fetch frozen parameters again
            assert all(sent == done["inter"][0] for sent in done["inter"]), strategy
        if strategy == "fcdp":
            frozen, trainable = frozen_and_trainable(done)
            first = bytes_per_node(
                "fcdp", NODES, RANKS_PER_NODE, trainable, frozen, trainable, first=True, local_weights=True
            ).total.inter
            assert (
                [sum(done["inter"][0][:2]), sum(done["inter"][0][2:])]
                == [first] * NODES
                == [(NODES - 1) * 2 * trainable // NODES] * NODES
            )


def test_clipping(make_job: Make, expected: dict[str, list[float]]) -> None:
    clipped = losses_of_one_process(make_job, "--clip", "0.05")
    assert clipped != expected["full"]
    for done in results(start(make_job, NODES * RANKS_PER_NODE, "--strategy", *STRATEGIES, "--clip", "0.05")):
        assert done["losses"] == pytest.approx(clipped, rel=2e-6)


@pytest.mark.parametrize(("ranks", "per_node"), [(1, 1), (4, 1), (4, 4), (3, 1)])
def test_other_shapes_of_a_job(make_job: Make, expected: dict[str, list[float]], ranks: int, per_node: int) -> None:
    done = train(make_job, "--nodes-of", str(per_node), ranks=ranks)
    assert done["losses"] == pytest.approx(expected["full"], rel=2e-6)
    assert (sum(done["inter"][0]) > 0) == (ranks > per_node)


def test_device_memory(make_job: Make) -> None:
    """fcdp needs as much of the device as zero3, because its cache is on the host; hpz and mics need more. tau uses the
    free memory, and gives it back."""
    peak = dict(
        zip(
            STRATEGIES,
            results(start(make_job, NODES * RANKS_PER_NODE, "--strategy", *STRATEGIES, "--prefetch", "0")),
            strict=True,
        )
    )
    _, weights = frozen_and_trainable(peak["fcdp"])
    for strategy in ("fcdp", "fcdp_sched", "fcdp_comm"):
        assert peak[strategy]["peak"] == peak["zero3"]["peak"]
    assert min(peak["hpz"]["peak"]) == max(peak["fcdp"]["peak"]) + weights // RANKS_PER_NODE
    assert min(peak["mics"]["peak"]) > max(peak["fcdp"]["peak"])
    assert peak["fcdp"]["host"] >= weights and peak["zero3"]["host"] == 0
    budget = max(peak["fcdp"]["peak"])
    kept = train(make_job, "--tau", "1", "--budget", str(4 * budget))
    assert kept["report"]["backward"]["intra"] == 0
    tight = train(make_job, "--tau", "1", "--budget", str(budget))
    assert max(tight["peak"]) <= budget
    assert kept["losses"] == tight["losses"] == peak["fcdp"]["losses"]


def test_the_engine_call_by_call(make_job: Make) -> None:
    job = make_job(4).spawn([BIN / "mpirun", "-n", "4", sys.executable, PROGRAMS / "fcdp/fcdp_units.py"])
    assert job.finish().splitlines()[-1] == "ok"


def documented(section: str) -> str:
    """The example exactly as documented, for 4 ranks."""
    text = (PROGRAMS.parent.parent / "manapy" / "fcdp" / "README.md").read_text().partition(f"\n## {section}\n")[2]
    lines = itertools.takewhile(lambda line: not line or line.startswith("    "), text.splitlines())
    return textwrap.dedent("\n".join(lines))


def check_documented(job: Job, state: str) -> None:
    """It learns, its backward passes send nothing to other nodes, and it saves this state."""
    said = job.output()
    losses = [float(line.split()[-1]) for line in said.splitlines() if line.startswith("step ")]
    assert len(losses) == 20 and losses[-1] < 0.7 * losses[0]
    assert "'backward': {'inter': 0, " in said and "'forward': {'inter': 0, " not in said
    assert (job.where / "states" / state / "index.json").exists()


def test_the_example_of_the_documentation(make_job: Make) -> None:
    """That for PyTorch is in test_fcdp_torch.py."""
    job = make_job(4)
    (job.where / "train.py").write_text(documented("numpy"))
    job.spawn([BIN / "mpirun", "-n", "4", sys.executable, "train.py"]).finish()
    check_documented(job, "numpy")


def test_results_are_the_same_in_every_run_and_under_manapy_launch(
    make_job: Make, trained: dict[tuple[str, str, int], dict[str, Any]]
) -> None:
    again = results(make_job(4).start_python(f"fcdp/{PROGRAM.name}", "--micro-batches", "2"))
    assert again == [trained["full", "fcdp", 2]]


def test_the_host_has_one_copy_of_the_parameters(make_job: Make) -> None:
    """Measured over all ranks of a node together: the memory of zero3 plus the window, and nothing else. The window is
    locked, if that is allowed."""
    unit, units = 8 * 2**20, 5
    job = make_job(4).spawn([BIN / "mpirun", "-n", "4", sys.executable, PROGRAMS / "fcdp/fcdp_memory.py"])
    (done,) = results(job)
    for name in ("fcdp", "unlocked"):
        for most, without in zip(done[name]["most"], done["zero3"]["most"], strict=True):
            assert most - without == pytest.approx(units * unit, abs=0.75 * unit)
    refusals = job.output().count(
        "the host's copy of parameters isn't locked in memory: rank 0 needs 20.0 MiB, its limit (ulimit -l) is "
    )
    assert refusals in (1, 2)  # the tester's limit may also forbid to lock as much
    assert refusals == 2 or all(locked >= units * unit / RANKS_PER_NODE for locked in done["fcdp"]["locked"])
    assert not any(done["unlocked"]["locked"])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fcdp", "zero3"])
def test_the_network_of_real_nodes_carries_what_is_counted(make_job: Make, strategy: str) -> None:
    """Two network namespaces, connected only by their interfaces, whose counters include headers and the start of
    MPI."""
    with emulated.cluster(HOSTS) as nodes:
        job = make_job(
            4,
            mpirun=emulated.mpirun(HOSTS[0], f"{HOSTS[0]}:2,{HOSTS[1]}:2"),
            inside=emulated.inside(HOSTS[0]),
            env={"UCX_TLS": "tcp,self"},
        )
        before = nodes.received()[1]
        options = ["--nodes-of", "0", "--hidden", "20000", "--micro-batches", "4", "--strategy", strategy]
        (done,) = results(job.spawn([*job.mpirun, "-n", "4", sys.executable, PROGRAM, *options]))
        carried = nodes.received()[1] - before
    counted = sum(sum(sent[:2]) for sent in done["inter"])
    assert counted > 10e6
    assert counted < carried < 1.1 * counted + 1e6


@pytest.mark.parametrize(
    ("trouble", "error"),
    [
        (
            "shape",
            "rank 3: not the same as on rank 0: unit 'second': weight of shape (33, 25) here, weight of shape (33, "
            "24) there",
        ),
        ("frozen", "rank 3: not the same as on rank 0: unit 'last': frozen float32 here, trainable float32 there"),
        ("strategy", f"rank 3: unknown strategy 'fdcp': choose {', '.join(STRATEGIES)}"),
        ("values", "the values of unit 'first' are not the same on ranks 0 and 3"),
        ("nan", "gradients of unit 'first' aren't finite (in the shard of rank 0): they can't be clipped"),
        ("norm", "max_norm is 1 on rank 0, 2 on rank 3"),
        ("raise", "rank 3 has failed: ZeroDivisionError: the program's own"),
    ],
)
def test_one_rank_fails_and_all_say_why(make_job: Make, trouble: str, error: str) -> None:
    errors = fail(make_job, "--trouble", trouble, "--clip", "1")
    assert len(errors) == 4
    assert sum(error in line for line in errors) >= 3  # the rank itself may report it differently


def test_nodes_with_different_weights(make_job: Make, tmp_path: Path) -> None:
    errors = fail(make_job, "--trouble", "weights", "--adapted", "--local-weights", str(tmp_path))
    assert len(errors) == 4 and all(
        line.endswith("the values of unit 'first' are not the same on ranks 1 and 3") for line in errors
    )


@pytest.mark.parametrize(
    ("strategy", "trouble", "met"),
    [
        ("zero3", "order", "unit 'second'"),
        ("hpz", "order", "unit 'second'"),
        ("mics", "order", "unit 'second'"),
        ("fcdp", "gradients", "reduce of unit 'first'"),  # gathering is from the host, so it isn't in the order
        ("fcdp_comm", "gradients", "reduce of unit 'first'"),
        ("fcdp", "crossed", "reduce of unit 'second'"),
        ("zero3", "crossed", "reduce of unit 'second'"),
        ("fcdp", "crossed-nodes", "reduce across of unit 'second'"),  # within nodes the order is the same
        ("mics", "crossed-nodes", "reduce across of unit 'second'"),
    ],
)
def test_ranks_in_different_order(make_job: Make, strategy: str, trouble: str, met: str) -> None:
    errors = fail(make_job, "--trouble", trouble, "--strategy", strategy)
    assert len(errors) == 4
    assert all(
        met in line and "of unit 'first'" in line and "all ranks must use the same units in the same order" in line
        for line in errors
    )


def test_a_rank_that_waits_elsewhere_does_not_hold_up_the_end(make_job: Make) -> None:
    """The other ranks wait in a barrier of the program."""
    assert fail(make_job, "--trouble", "absent") == ["manapy.fcdp.errors.SetupError: there is no unit 'nothing'"]


@pytest.mark.parametrize(
    ("code", "who", "fails", "said"),
    [
        (0, "all", False, ""),
        (3, "all", True, "application called MPI_Abort"),
        (0, "1", True, "all ranks must use the same units in the same order"),
    ],
)
def test_a_program_leaves_the_block(make_job: Make, code: int, who: str, fails: bool, said: str) -> None:
    """By sys.exit(0), or because a generator is closed. That is a normal end if all ranks do it."""
    job = make_job(2)
    job.spawn([*job.mpirun, "-n", "2", sys.executable, PROGRAMS / "fcdp/fcdp_left.py", str(code), who])
    assert (job.wait() != 0) is fails and said in job.output(), job.report()
    assert job.output().count("has left its first blocks") == 2, job.report()
    assert fails or ("Error" not in job.output() and "Abort" not in job.output()), job.report()


@pytest.mark.parametrize(
    ("options", "ranks", "error"),
    [
        (["--strategy", "ddp"], 4, f"SetupError: unknown strategy 'ddp': choose {', '.join(STRATEGIES)}"),
        (["--tau", "1.5"], 4, "SetupError: tau must be between 0 and 1, not 1.5"),
        (["--tau", "nan"], 4, "SetupError: tau must be between 0 and 1, not nan"),
        (
            ["--tau", "0.5", "--strategy", "zero3"],
            4,
            "SetupError: tau is for fcdp, fcdp_sched and fcdp_comm; zero3 keeps no parameters in the host's memory",
        ),
        (
            ["--budget", "10000"],
            4,
            "BudgetError: unit 'first' needs 6624 bytes of the device beside 5296 bytes of shards and caches, the "
            "budget is 10000 bytes: 1920 bytes are missing",
        ),
        ([], 3, "TopologyError: all nodes need the same number of ranks: node 0 has 2, node 1 has 1"),
    ],
)
def test_bad_input(make_job: Make, options: list[str], ranks: int, error: str) -> None:
    assert fail(make_job, *options, ranks=ranks) == [f"manapy.fcdp.errors.{error}"] * ranks

"""PyTorch modules sharded on 4 ranks, 2 emulated nodes: losses against one process without manapy, bytes against closed forms, call by call."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from jobs import BIN, PROGRAMS, Job

from manapy.fcdp.costs import bytes_per_node

pytest.importorskip("torch", reason="no PyTorch: pip install 'manapy[torch]'")

PROGRAM = PROGRAMS / "fcdp_torch_train.py"
NODES, RANKS_PER_NODE = 2, 2
TOLERANCE = 1e-6  # relative, of losses: sums of float32 in another order
Make = Callable[..., Job]


def start(make_job: Make, *ways: str, ranks: int = NODES * RANKS_PER_NODE, ranks_per_node: int = RANKS_PER_NODE) -> Job:
    job = make_job(ranks, env={"OMP_NUM_THREADS": "1", "MANAPY_FCDP_RANKS_PER_NODE": str(ranks_per_node)})
    return job.spawn([BIN / "mpirun", "-n", str(ranks), sys.executable, PROGRAM, *ways])


def results(job: Job, ways: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    lines = [line for line in job.finish().splitlines() if line.startswith("RESULT")]
    return dict(zip(ways, json.loads(lines[0].removeprefix("RESULT")), strict=True))


def of_one_process(make_job: Make, *ways: str) -> dict[str, dict[str, Any]]:
    return results(make_job(1).spawn([sys.executable, PROGRAM, "--reference", *ways]), ways)


def sharded(make_job: Make, *ways: str, **shape: int) -> dict[str, dict[str, Any]]:
    return results(start(make_job, *ways, **shape), ways)


def compare(done: dict[str, Any], expected: dict[str, Any], tolerance: float = TOLERANCE) -> None:
    """All that both have; the final parameters may differ more: Adam makes steps of full size from gradients that are zero but for rounding."""
    assert done["losses"] == pytest.approx(expected["losses"], rel=tolerance)
    assert len({round(loss, 3) for loss in done["losses"]}) == len(done["losses"])
    for key in expected.keys() & {"evaluated", "norm"}:
        assert done[key] == pytest.approx(expected[key], rel=tolerance)
    assert done["sum"] == pytest.approx(expected["sum"], rel=1e-4)


def crossing(done: dict[str, Any], strategy: str, micro_batches: int, itemsize: int = 4) -> list[int]:
    """Bytes that the closed forms let a node send, by step. itemsize: of parameters; gradients are float32."""
    ranks = NODES * RANKS_PER_NODE
    padded = {kind: sum(-(-size // ranks) * ranks for size, trainable in done["units"] if trainable is kind) for kind in (True, False)}
    sizes = itemsize * padded[True], itemsize * padded[False], 4 * padded[True]
    return [bytes_per_node(strategy, NODES, RANKS_PER_NODE, *sizes, micro_batches, first=step == 0).total.inter for step in range(len(done["inter"]))]


def test_a_transformer_in_many_ways(make_job: Make) -> None:
    """Tied and shared weights, unused ones, accumulation, clipping, parameter groups, evaluation, activation checkpointing, frozen parts, caches on the device."""
    plain, clipped, evaluated, frozen = "transformer", "transformer,clip=0.5", "transformer,evaluate=1", "partly_frozen"
    expected = of_one_process(make_job, plain, clipped, evaluated, frozen, "perceptron,groups=1")
    ways = {
        "perceptron,groups=1": "perceptron,groups=1",
        "transformer,micro_batches=4,clip=0.5": clipped,
        "transformer,recompute=1,evaluate=1": evaluated,
        "transformer,recompute=1,tau=1,strategy=fcdp": plain,
        "transformer,strategy=mics,micro_batches=2,clip=0.5": clipped,
        "partly_frozen,strategy=zero3,micro_batches=2": frozen,
        "partly_frozen,recompute=1,micro_batches=2": frozen,
        "partly_frozen,strategy=hpz": frozen,
    }
    done = sharded(make_job, *ways)
    for way, same in ways.items():
        compare(done[way], expected[same])
    for way, strategy, micro_batches in (("transformer,micro_batches=4,clip=0.5", "fcdp", 4), ("partly_frozen,recompute=1,micro_batches=2", "fcdp", 2), ("partly_frozen,strategy=hpz", "hpz", 1)):
        assert done[way]["inter"] == crossing(done[way], strategy, micro_batches)


def test_bfloat16_parameters_travel_in_half_the_bytes(make_job: Make) -> None:
    way = "transformer,bf16=1"
    done, expected = sharded(make_job, way)[way], of_one_process(make_job, "transformer")["transformer"]
    compare(done, expected, 4e-3)
    assert done["losses"] != pytest.approx(expected["losses"], rel=1e-5)
    assert done["inter"] == crossing(done, "fcdp", 1, itemsize=2)


def test_hugging_face_gpt2_and_its_peft_adapters(make_job: Make) -> None:
    pytest.importorskip("transformers", reason="no transformers")
    pytest.importorskip("peft", reason="no peft")
    expected = of_one_process(make_job, "gpt2", "lora")
    done = sharded(make_job, "gpt2,micro_batches=2", "gpt2,recompute=1", "lora,micro_batches=2", "lora,recompute=1")
    for way in done:
        compare(done[way], expected[way.split(",")[0]])
    lora = done["lora,micro_batches=2"]
    assert lora["inter"] == crossing(lora, "fcdp", 2)
    assert lora["inter"][1] < lora["inter"][0] / 20


@pytest.mark.parametrize(("ranks", "per_node"), [(1, 1), (2, 1)])
def test_other_shapes_of_a_job(make_job: Make, ranks: int, per_node: int) -> None:
    done = sharded(make_job, "transformer", ranks=ranks, ranks_per_node=per_node)["transformer"]
    compare(done, of_one_process(make_job, "transformer")["transformer"])


def test_call_by_call(make_job: Make) -> None:
    job = make_job(4, env={"OMP_NUM_THREADS": "1"}).spawn([BIN / "mpirun", "-n", "4", sys.executable, PROGRAMS / "fcdp_torch_calls.py"])
    assert job.finish().splitlines()[-1] == "ok"


def test_models_that_differ_between_ranks(make_job: Make) -> None:
    job = start(make_job, "perceptron,seed=8")
    assert job.wait() != 0
    assert job.output().count("SetupError: the values of unit '0' are not the same on ranks 0 and 3") == 4

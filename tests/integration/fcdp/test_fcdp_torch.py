"""PyTorch modules sharded on 4 ranks, 2 emulated nodes: losses against one process without manapy, bytes against closed
forms, call by call.

Importing PyTorch takes five seconds of processor time on each rank: all ways to train share one job, and each has a
test of its own. The same ranks then run other programs.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
from jobs import BIN, PATIENCE, PROGRAMS, Job, oks
from needed import need
from test_fcdp import check_documented, documented

from manapy.fcdp.costs import bytes_per_node

need("torch", "no PyTorch: pip install '.[torch]'")

PROGRAM = PROGRAMS / "fcdp/fcdp_torch_train.py"
NODES, RANKS_PER_NODE = 2, 2
SAVED = "partly_frozen,groups=1,save=state"
RESUMED = "partly_frozen,groups=1,strategy=zero3,load=state,ranks=3"
ONE_RANK = "transformer,ranks=1"
WAYS = [
    "perceptron,groups=1",
    "transformer,micro_batches=4,clip=0.5",
    "transformer,recompute=1,evaluate=1",
    "transformer,recompute=1,tau=1",
    "transformer,strategy=mics,micro_batches=2,clip=0.5",
    "partly_frozen,strategy=zero3,micro_batches=2",
    "partly_frozen,recompute=1,micro_batches=2",
    "partly_frozen,strategy=hpz",
    SAVED,
    RESUMED,
    ONE_RANK,
    "transformer,bf16=1",
]
REFERENCES = [
    "perceptron,groups=1",
    "transformer",
    "transformer,clip=0.5",
    "transformer,evaluate=1",
    "partly_frozen",
    "partly_frozen,groups=1",
]
HUGGING_FACE = [
    "gpt2,micro_batches=2,generate=1",
    "gpt2,recompute=1",
    "lora,micro_batches=2,generate=1,adapter=adapter",
    "lora,recompute=1",
]
HUGGING_FACE_REFERENCES = ["gpt2", "gpt2,generate=1", "lora", "lora,generate=1"]
HAS_HUGGING_FACE = all(map(find_spec, ("transformers", "peft")))
# PyTorch is imported, which takes seconds, only if there is a device of NVIDIA, of WSL or of AMD
HAS_GPU = (
    any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd"))) and import_module("torch").cuda.is_available()
)
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="no GPU that PyTorch can use")
needs_hugging_face = pytest.mark.skipif(not HAS_HUGGING_FACE, reason="no transformers, or no peft")
# A job needs two minutes of processor time, and other tests may leave it only a fifth of a processor.
LONG = 8 * PATIENCE
pytestmark = pytest.mark.timeout(2 * LONG)
Results = dict[str, dict[str, Any]]
Start = Callable[..., Job]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts the program: in one process without manapy, or on ranks."""
    jobs: list[Job] = []

    def run(*ways: str, ranks: int = NODES * RANKS_PER_NODE, ranks_per_node: int = RANKS_PER_NODE) -> Job:
        env = {"MANAPY_FCDP_RANKS_PER_NODE": str(ranks_per_node)}
        jobs.append(Job(tmp_path_factory.mktemp("job"), ranks, env=env))
        launcher = [] if "--reference" in ways else [BIN / "mpirun", "-n", str(ranks)]
        return jobs[-1].spawn([*launcher, sys.executable, PROGRAM, *ways])

    yield run
    for job in jobs:
        job.end()


@pytest.fixture(scope="module")
def expected(start: Start) -> Results:
    """The results of one process."""
    ways = [*REFERENCES, *(HUGGING_FACE_REFERENCES if HAS_HUGGING_FACE else [])]
    return results(start("--reference", *ways), ways)


ALL_WAYS = [*WAYS, *(HUGGING_FACE if HAS_HUGGING_FACE else [])]
ON_GPU = [f"{way},device=cuda" for way in ALL_WAYS if not re.search("save|load|adapter|ranks", way)]
ALL_WAYS += ON_GPU if HAS_GPU else []
DEVICES = ["cpu", "threads", *(["cuda"] if HAS_GPU else [])]
CALL_BY_CALL = ["calls", "changes", "passes", "whole"]
IN_TURN = """
import json, runpy, sys
for sys.argv in json.loads(sys.argv[1]):
    sys.modules.pop("devices", None)  # it reads the arguments
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def shared(make_shared_job: Callable[..., Job]) -> Job:
    """The job that trains in all ways, then runs programs call by call, then the documentation's example."""
    job = make_shared_job(NODES * RANKS_PER_NODE, env={"MANAPY_FCDP_RANKS_PER_NODE": str(RANKS_PER_NODE)})
    (job.where / "train.py").write_text(documented("PyTorch"))
    call_by_call = [
        [str(PROGRAM.with_name(f"fcdp_torch_{name}.py")), device] for device in DEVICES for name in CALL_BY_CALL
    ]
    programs = json.dumps([[str(PROGRAM), *ALL_WAYS], *call_by_call, ["train.py"]])
    return job.spawn([BIN / "mpirun", "-n", str(job.ranks), sys.executable, "-c", IN_TURN, programs])


@pytest.fixture(scope="module")
def done(shared: Job) -> Results:
    """Its results of all ways."""
    return results(shared, ALL_WAYS)


def results(job: Job, ways: list[str]) -> Results:
    text = job.wait_for(lambda text: re.search(r"^RESULT.*\n", text, re.M), LONG)
    (line,) = [line for line in text.splitlines() if line.startswith("RESULT")]
    return dict(zip(ways, json.loads(line.removeprefix("RESULT")), strict=True))


def reference(way: str) -> str:
    """The way without the options that must make no difference."""
    model, *options = way.split(",")
    kept = ("clip", "evaluate", "generate", "groups")
    return ",".join([model, *(option for option in options if option.split("=")[0] in kept)])


def compare(done: dict[str, Any], expected: dict[str, Any], tolerance: float = 1e-6) -> None:
    """Compare all that both have, to the rounding of float32. The final parameters may differ more: Adam makes steps of
    full size from gradients that are zero except for rounding."""
    assert done["losses"] == pytest.approx(expected["losses"], rel=tolerance)
    assert len({round(loss, 3) for loss in done["losses"]}) == len(done["losses"])
    for key in expected.keys() & done.keys() & {"evaluated", "norm", "generated"}:
        assert done[key] == pytest.approx(expected[key], rel=tolerance)
    assert done["sum"] == pytest.approx(expected["sum"], rel=1e-4)


def crossing(done: dict[str, Any], strategy: str, micro_batches: int, itemsize: int = 4) -> list[int]:
    """The bytes that a node sends according to the closed forms, by step. itemsize: of parameters; gradients are
    float32."""
    ranks = NODES * RANKS_PER_NODE
    padded = {
        kind: sum(-(-size // ranks) * ranks for size, trainable in done["units"] if trainable is kind)
        for kind in (True, False)
    }
    sizes = itemsize * padded[True], itemsize * padded[False], 4 * padded[True]
    return [
        bytes_per_node(strategy, NODES, RANKS_PER_NODE, *sizes, micro_batches, first=step == 0).total.inter
        for step in range(len(done["inter"]))
    ]


@pytest.mark.parametrize("way", [way for way in WAYS if way != RESUMED and "bf16" not in way])
def test_losses_are_those_of_one_process(done: Results, expected: Results, way: str) -> None:
    """Tied and shared weights, unused ones, accumulation, clipping, parameter groups, evaluation, activation
    checkpointing, frozen parts, caches on the device, one rank."""
    compare(done[way], expected[reference(way)])


@pytest.mark.parametrize(
    ("way", "strategy", "micro_batches"),
    [
        ("transformer,micro_batches=4,clip=0.5", "fcdp", 4),
        ("partly_frozen,recompute=1,micro_batches=2", "fcdp", 2),
        ("partly_frozen,strategy=hpz", "hpz", 1),
    ],
)
def test_bytes_are_those_of_the_closed_forms(done: Results, way: str, strategy: str, micro_batches: int) -> None:
    assert done[way]["inter"] == crossing(done[way], strategy, micro_batches)


def test_bfloat16_parameters_travel_in_half_the_bytes(done: Results, expected: Results) -> None:
    way = done["transformer,bf16=1"]
    compare(way, expected["transformer"], 4e-3)
    assert way["losses"] != pytest.approx(expected["transformer"]["losses"], rel=1e-5)
    assert way["inter"] == crossing(way, "fcdp", 1, itemsize=2)


@needs_hugging_face
@pytest.mark.parametrize("way", HUGGING_FACE)
def test_hugging_face_gpt2_and_its_peft_adapters(done: Results, expected: Results, way: str) -> None:
    compare(done[way], expected[reference(way)])
    assert ("generate" in way) == ("generated" in done[way]) == ("generated" in expected[reference(way)])
    assert done[way]["inter"] == crossing(done[way], "fcdp", 2)
    assert ("lora" in way) == (done[way]["inter"][1] < done[way]["inter"][0] / 20)


@needs_hugging_face
def test_adapters_are_saved_and_loaded_on_their_own(done: Results) -> None:
    """They have at most a fifth of the model's bytes. On the same base they give the trained model."""
    trained = next(result for way, result in done.items() if "adapter" in way)
    assert trained["adapter_generated"] == trained["generated"] != trained["base_generated"]
    assert 0 < trained["adapter_bytes"] < sum(4 * size for size, _ in trained["units"]) / 5


def test_a_training_goes_on_from_its_state(done: Results, expected: Results) -> None:
    """On other ranks, by another strategy, from a model with other values. Parameters (also frozen ones), buffers,
    moments and settings are the saved ones."""
    full = expected[reference(RESUMED)]
    compare(done[RESUMED], {**full, "losses": full["losses"][1:]})


def test_call_by_call(shared: Job) -> None:
    """On every device that is there."""
    shared.wait_for(lambda text: oks(text) == len(CALL_BY_CALL) * len(DEVICES), LONG)


def test_the_example_of_the_documentation(shared: Job) -> None:
    shared.finish(LONG)
    check_documented(shared, "torch")


@needs_gpu
@pytest.mark.parametrize("way", ON_GPU)
def test_on_a_gpu_losses_and_bytes_are_those_on_the_processor(done: Results, expected: Results, way: str) -> None:
    """A GPU adds in another order."""
    on_processor = way.removesuffix(",device=cuda")
    compare(done[way], expected[reference(way)], 4e-3 if "bf16" in way else 2e-5)
    assert done[way]["inter"] == done[on_processor]["inter"]


@needs_gpu
def test_a_gpu_that_is_busy(make_job: Callable[..., Job]) -> None:
    """Copies that wait for computation, and computation that waits for copies, change no result."""
    program = [sys.executable, PROGRAM.with_name("fcdp_torch_gpu.py")]
    make_job(2).spawn([BIN / "mpirun", "-n", "2", *program]).finish(2 * PATIENCE)


def test_models_that_differ_between_ranks(start: Start) -> None:
    job = start("perceptron,seed=8", ranks=2, ranks_per_node=1)
    assert job.wait() != 0
    # the rank noticed it itself, or was told by one that had
    assert job.output().count("the values of unit '0' are not the same on ranks 0 and 1\n") == 2

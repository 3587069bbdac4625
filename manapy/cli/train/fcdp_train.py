"""`manapy fcdp train`: a small GPT, trained on all ranks."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core import files
from ...core.units import size
from ..shared import arguments, quantities, terminal
from ..shared.output import Output

if TYPE_CHECKING:
    from ...fcdp.gpt.training import Result

ALONE_SECONDS = 1.0  # in which rank 0 may have the same error: mpirun then ends the others before they repeat it
DESCRIPTION = """
Train a small GPT over bytes, sharded over all ranks. The texts come with Python; nothing is downloaded.

    mpirun -n 4 manapy fcdp train --save base                 train all parameters, on Python's language reference
    mpirun -n 4 manapy fcdp train --lora 4 --base base        train adapters, on the sources of Python's modules
    mpirun -n 2 manapy fcdp train --resume base --steps 200   continue, on any number of ranks and with any strategy

On one host, --ranks-per-node 2 divides four ranks into two nodes. Under manapy-launch (mpirun -n 4 manapy-launch manapy
fcdp train) the training can also be checkpointed at any moment. The table compares what each node sent in a step with
the closed forms of `manapy fcdp advise`.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command. manapy/fcdp/gpt/options.py has the defaults of the options that a state keeps."""
    from ...fcdp.engine.strategy import STRATEGIES

    def add(name: str, metavar: str | None, kind: Any, text: str, **more: Any) -> None:
        parser.add_argument(name, metavar=metavar, type=kind, help=text, default=None, **more)

    parser.usage = "mpirun -n RANKS manapy fcdp train [OPTION ...]"
    add("--steps", "N", arguments.positive, "steps of the optimizer, including those before --resume (default 100)")
    add("--batch", "N", arguments.positive, "sequences per step, on all ranks together (default 16)")
    add("--micro-batches", "K", arguments.positive, "forward and backward passes per step (default 1)")
    add("--rate", "R", _rate, "learning rate (default 0.001)")
    add("--seed", "N", arguments.natural, "seed for the model's first values and the batches (default 0)")
    add(
        "--lora",
        "RANK",
        arguments.positive,
        "freeze the model of --base, and train adapters of this rank beside the layers of its blocks",
    )
    add("--base", "DIR", Path, "begin with the model of a saved state")
    add(
        "--resume",
        "DIR",
        Path,
        "continue a saved state: its model, batches, optimizer; give its --text again, if it had one",
    )
    add("--save", "DIR", Path, "write the state at the end; DIR must be on a file system that all ranks see")
    add("--text", "FILE", Path, "train on this text (default: texts that come with Python)")
    add("--layers", "L", arguments.positive, "number of the GPT's blocks; each is one unit (default 4)")
    add("--hidden", "H", arguments.positive, "size of its hidden states (default 128)")
    add("--heads", "N", arguments.positive, "number of its attention heads (default 4)")
    add("--context", "N", arguments.positive, "bytes per sequence (default 128)")
    add(
        "--strategy",
        None,
        str,
        "how parameters are sharded, cached and gathered (default fcdp)",
        choices=tuple(STRATEGIES),
    )
    add(
        "--tau",
        "T",
        quantities.fraction,
        (
            "fcdp, fcdp_sched, fcdp_comm: keep parameters on the device while less than this share of --device-memory "
            "is in use (default 0: never)"
        ),
    )
    add(
        "--device-memory",
        "SIZE",
        quantities.size,
        "limit for the parameters, gradients and optimizer states of a rank, without activations (default: none)",
    )
    add("--ranks-per-node", "G", arguments.positive, "emulate nodes of G ranks each (default: real nodes)")
    add("--out", "DIR", Path, "write result.json and loss.png to folder DIR")
    parser.add_argument("--json", action="store_true", help="print the content of result.json instead of the table")


def run(options: argparse.Namespace, out: Output) -> int:
    """Train; rank 0 shows the result."""
    from ...fcdp.gpt.options import Run, Training

    how = Run(**_given(options, Run))
    training = _training()
    if not training.is_first():
        training.train(_given(options, Training), how, lambda step, loss: None)
        return 0
    bar_shown = terminal.shown(out.err)
    with out.progress(bar_shown) as bar:
        lines = not (bar_shown and terminal.shown(out.file))  # lines would disturb the bar

        def show(step: int, loss: float) -> None:
            bar(step / how.steps, f"step {step}, loss {loss:.4f}")
            if lines:
                out.line(f"step {step}  loss {loss:.4f}")

        done = training.train(_given(options, Training), how, show)
    _show(done, out)
    out.data(asdict(done))
    if how.out:
        _write(done, how.out, out)
    return 0


def _training() -> Any:
    """The module gpt.training. Collective: if one rank cannot import it, all ranks get the error, so that rank 0, the
    only one that prints (_main.py), reports it. Raises ManapyError."""
    from ...core.errors import ManapyError

    try:
        from ...fcdp.mpi import MPI
    except ImportError as error:
        if sys.stderr is not sys.__stderr__:  # a silent rank, and without MPI nobody else hears of its error
            time.sleep(ALONE_SECONDS)
            print(f"manapy: {platform.node()}: {error}", file=sys.__stderr__, flush=True)
        raise ManapyError(str(error)) from None
    from ...fcdp.engine.collective_errors import agreed

    return agreed(MPI.COMM_WORLD, _import)


def _import() -> Any:
    from ...fcdp.errors import SetupError

    try:
        from ...fcdp import pytorch  # noqa: F401  first, because its error says what to install
        from ...fcdp.gpt import training
    except ImportError as error:
        raise SetupError(str(error)) from None
    return training


def _show(done: Result, out: Output) -> None:
    model, how = done.training, done.run
    steps = len(done.sent)
    out.line(
        f"GPT of {model.layers} layers, hidden {model.hidden}: {done.trainable} parameters trained, {done.frozen} "
        f"frozen; {done.text}"
    )
    out.line(
        f"validation loss {done.validation[0]:.4f} before, {done.validation[1]:.4f} after {steps} steps of "
        f"{done.seconds / steps:.3g} s"
    )
    out.line("")
    out.table(
        ("phase", "between nodes", "computed", "within a node", "computed"),
        _traffic(done),
        title=(
            f"Bytes that a node sends in a step ({how.strategy}, {done.nodes} × {done.ranks_per_node} ranks); "
            "computed: from closed forms"
        ),
    )
    limit = f" of {size(how.device_memory)}" if how.device_memory else ""
    out.line(f"\nmemory: at most {size(done.device)}{limit} of a device, {size(done.host)} of a node's host")
    if done.nodes * done.ranks_per_node == 1:
        out.note("manapy fcdp: one rank has no other to shard with; with four ranks: mpirun -n 4 manapy fcdp train")


def _traffic(done: Result) -> list[tuple[str, ...]]:
    """The table's rows, of the last step.

    The first step of a run fetches less than the forms say, because the validation before it has fetched a part. What
    tau keeps depends on the device.
    """
    rows: list[tuple[str, ...]] = []
    for phase, sent in done.sent[-1].items():
        form = getattr(done.form, phase)
        inter = size(form.inter) if len(done.sent) > 1 else ""
        intra = size(form.intra) if len(done.sent) > 1 and not done.run.tau else ""
        rows.append((phase, size(sent["inter"]), inter, size(sent["intra"]), intra))
    return rows


def _write(done: Result, directory: Path, out: Output) -> None:
    from ...fcdp.gpt import plot

    files.replace_file(directory / "result.json", json.dumps(asdict(done), indent=2, default=str).encode() + b"\n")
    if plot.available():
        plot.draw(done, directory / "loss.png")
    else:
        out.note("manapy fcdp: no picture: matplotlib is not installed (pip install matplotlib)")
    out.note(
        "written: "
        f"{', '.join(str(path) for path in sorted(directory.glob('*')) if path.name in ('result.json', 'loss.png'))}"
    )


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"not a rate such as 0.001: '{text}'")
    return value


def _given(options: argparse.Namespace, kind: Any) -> dict[str, Any]:
    """The options that were given, by the names of a dataclass's fields."""
    return {field.name: value for field in fields(kind) if (value := getattr(options, field.name)) is not None}

"""`manapy fcdp train`: a small GPT, trained on all ranks."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.units import size
from ..shared import arguments, quantities, terminal
from ..shared.output import Output

if TYPE_CHECKING:
    from ...fcdp.gpt.training import Result

DESCRIPTION = """
Train a small GPT over bytes on texts that come with Python, sharded over all ranks (nothing is downloaded):

    mpirun -n 4 manapy fcdp train --save base                             all parameters, on Python's language reference
    mpirun -n 4 manapy fcdp train --lora 4 --base base                    adapters beside them, on the sources of Python's modules
    mpirun -n 2 manapy fcdp train --resume base --steps 200               go on, on any number of ranks and by any strategy

On one host, --ranks-per-node 2 makes two nodes of four ranks. Under manapy-launch (mpirun -n 4 manapy-launch manapy fcdp train) it can be checkpointed at any
moment, too. The table shows what each node sent in a step beside the closed forms of `manapy fcdp advise`.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options. Defaults of what a state keeps are with it, in manapy/fcdp/gpt/options.py."""
    from ...fcdp.engine.strategy import STRATEGIES

    def add(name: str, metavar: str | None, kind: Any, text: str, **more: Any) -> None:
        parser.add_argument(name, metavar=metavar, type=kind, help=text, default=None, **more)

    parser.usage = "mpirun -n RANKS manapy fcdp train [OPTION ...]"
    add("--steps", "N", arguments.positive, "of the optimizer, those before --resume included (default 100)")
    add("--batch", "N", arguments.positive, "sequences of a step, on all ranks together (default 16)")
    add("--micro-batches", "K", arguments.positive, "forward and backward passes of a step (default 1)")
    add("--rate", "R", _rate, "of learning (default 0.001)")
    add("--seed", "N", arguments.natural, "of the model's first values and of the batches (default 0)")
    add("--lora", "RANK", arguments.positive, "freeze the model of --base, and train adapters of this rank beside the layers of its blocks")
    add("--base", "DIR", Path, "begin with the model of a state")
    add("--resume", "DIR", Path, "go on with a state: its model, text, batches and optimizer")
    add("--save", "DIR", Path, "write the state at the end, on a file system that all ranks see")
    add("--text", "FILE", Path, "learn from it (default: texts that come with Python)")
    add("--layers", "L", arguments.positive, "blocks of the GPT, each a unit (default 4)")
    add("--hidden", "H", arguments.positive, "size of its hidden states (default 128)")
    add("--heads", "N", arguments.positive, "of its attention (default 4)")
    add("--context", "N", arguments.positive, "bytes of a sequence (default 128)")
    add("--strategy", None, str, "what is kept where, and fetched when (default fcdp)", choices=tuple(STRATEGIES))
    add("--tau", "T", quantities.fraction, "fcdp, fcdp_sched, fcdp_comm: keep parameters on the device while less of --device-memory is in use (default 0: never)")
    add("--device-memory", "SIZE", quantities.size, "limit for parameters, gradients and optimizer's values of a rank, without activations (default: none)")
    add("--ranks-per-node", "G", arguments.positive, "emulate nodes of so many ranks (default: real nodes)")
    add("--out", "DIR", Path, "write result.json and loss.png there")
    parser.add_argument("--json", action="store_true", help="print what result.json holds, no table")


def run(options: argparse.Namespace, out: Output) -> int:
    """Train; rank 0 shows what came of it."""
    from ...core.errors import ManapyError
    from ...fcdp.gpt.options import Run, Training

    how = Run(**_given(options, Run))
    try:
        from ...fcdp.gpt import training
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py without an MPI library
        raise ManapyError(f"training needs PyTorch, mpi4py and an MPI library: pip install 'manapy[torch]' ({error})") from None
    if not training.is_first():
        training.train(_given(options, Training), how, lambda step, loss: None)
        return 0
    bar_shown = terminal.shown(out.err)
    with out.progress(bar_shown) as bar:
        lines = not (bar_shown and terminal.shown(out.file))  # else they would stand in the bar

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


def _show(done: Result, out: Output) -> None:
    model, how = done.training, done.run
    steps = len(done.sent)
    out.line(f"GPT of {model.layers} layers, hidden {model.hidden}: {done.trainable} parameters trained, {done.frozen} frozen; {done.text}")
    out.line(f"validation loss {done.validation[0]:.4f} before, {done.validation[1]:.4f} after {steps} steps of {done.seconds / steps:.3g} s")
    out.line("")
    out.table(
        ("phase", "between nodes", "computed", "within a node", "computed"),
        _traffic(done),
        title=f"Bytes a node sends in a step ({how.strategy}, {done.nodes} × {done.ranks_per_node} ranks); as computed from closed forms",
    )
    limit = f" of {size(how.device_memory)}" if how.device_memory else ""
    out.line(f"\nmemory: {size(done.device)}{limit} of a device at most, {size(done.host)} of a node's host")
    if done.nodes * done.ranks_per_node == 1:
        out.note("manapy fcdp: one rank shares with nobody; on four: mpirun -n 4 manapy fcdp train")


def _traffic(done: Result) -> list[tuple[str, ...]]:
    """The last step's. The first one of a run has less to fetch than the forms say: the validation before it has fetched that. What tau keeps depends on the device."""
    rows = []
    for phase, sent in done.sent[-1].items():
        form = getattr(done.form, phase)
        inter = size(form.inter) if len(done.sent) > 1 else ""
        intra = size(form.intra) if len(done.sent) > 1 and not done.run.tau else ""
        rows.append((phase, size(sent["inter"]), inter, size(sent["intra"]), intra))
    return rows


def _write(done: Result, directory: Path, out: Output) -> None:
    from ...fcdp.gpt import plot

    (directory / "result.json").write_text(json.dumps(asdict(done), indent=2, default=str) + "\n")
    if plot.available():
        plot.draw(done, directory / "loss.png")
    else:
        out.note("manapy fcdp: no picture: matplotlib is not installed (pip install matplotlib)")
    out.note(f"written: {', '.join(str(path) for path in sorted(directory.glob('*')) if path.name in ('result.json', 'loss.png'))}")


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"not a rate such as 0.001: '{text}'")
    return value


def _given(options: argparse.Namespace, kind: Any) -> dict[str, Any]:
    """What was said of a dataclass's fields: options are named as they are."""
    return {field.name: value for field in fields(kind) if (value := getattr(options, field.name)) is not None}

"""The demonstration of tools/demo: a job is checkpointed, killed and restarted, and its result is the same bit for bit.

 1. tests/programs/steps/heat2d.py runs undisturbed on 4 ranks.
 2. It runs under manapy-launch. In the middle of the run `manapy checkpoint` takes a checkpoint. Then all ranks and
    mpirun get SIGKILL.
 3. `manapy restart` continues it under a new mpirun.
 4. One of its ranks is stopped: `manapy why` says which. It goes on, to the end of the job.
 5. A network card fails under another program, in a virtual machine (tools/vm), if its packages are installed.
 6. The two final fields are compared bit for bit; a picture and a table are made.

Every file is under --out. Exit code 0 if the fields are equal.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from vm import VM, ImageError, VMError, card

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "tests" / "programs" / "steps" / "heat2d.py"
BIN = Path(sys.executable).parent


class DemoError(Exception):
    """A step failed; the text says which one."""


@dataclass
class Run:
    """One mpirun and its output, which goes into a file, so that the job does not depend on a reader."""

    process: subprocess.Popen[bytes]
    log: Path

    def text(self) -> str:
        """The output until now."""
        return self.log.read_text(errors="replace")

    def wait_for(self, ready: Callable[[str], bool], what: str, seconds: float) -> None:
        """Wait until ready(text). Raises DemoError if the job ends or the time is over first."""
        deadline = time.monotonic() + seconds
        while not ready(self.text()):
            if self.process.poll() is not None:
                raise DemoError(
                    f"the job ended with exit code {self.process.returncode} while waiting for {what}:\n"
                    f"{tail(self.text())}"
                )
            if time.monotonic() > deadline:
                raise DemoError(f"waited {seconds:.0f} s for {what}:\n{tail(self.text())}")
            time.sleep(0.02)

    def finish(self, seconds: float) -> None:
        """Wait for the end. Raises DemoError unless the exit code is 0."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise DemoError(f"the job did not end within {seconds:.0f} s:\n{tail(self.text())}") from error
        if code:
            raise DemoError(f"the job failed with exit code {code}:\n{tail(self.text())}")


def tail(text: str) -> str:
    """The last lines."""
    return "\n".join(text.splitlines()[-15:])


def last_step(text: str) -> int:
    """Number of the last "step K ..." line."""
    return max(
        (int(line.split()[1]) for line in text.splitlines() if line.startswith("step ") and len(line.split()) == 4),
        default=0,
    )


@contextlib.contextmanager
def start(command: list[str | Path], log: Path) -> Iterator[Run]:
    """Start a command with its output in log, and end it if the demonstration fails."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [str(c) for c in command], stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, cwd=log.parent
        )
    try:
        yield Run(process, log)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def manapy(*arguments: str | Path) -> str:
    """One manapy command; its stdout."""
    done = subprocess.run([str(BIN / "manapy"), *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise DemoError(f"manapy {arguments[0]} failed: {done.stderr.strip()}")
    return done.stdout


def kill(run: Run, job: Path) -> int:
    """Send SIGKILL to all ranks and to mpirun, whose pids `manapy status` reports. Returns the number of processes."""
    pids = [int(rank["pid"]) for rank in json.loads(manapy("status", job, "--json"))["ranks"]]
    for pid in [run.process.pid, *pids]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    run.process.wait()
    return len(pids) + 1


def find_the_stopped(job: Path, rank: int) -> str:
    """Stop a rank until `manapy why` names it; its sentence. Raises DemoError."""
    pid = int(json.loads(manapy("status", job, "--json"))["ranks"][rank]["pid"])
    os.kill(pid, signal.SIGSTOP)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            done = subprocess.run([str(BIN / "manapy"), "why", str(job)], capture_output=True, text=True)
            for line in done.stdout.splitlines():
                if line.startswith(f"rank {rank} ") and "stopped" in line:
                    return line
        raise DemoError(f"manapy why did not find rank {rank}, which is stopped:\n{tail(done.stdout + done.stderr)}")
    finally:
        os.kill(pid, signal.SIGCONT)


def short(path: Path) -> str:
    """The path as a person would type it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def draw(field: np.ndarray, path: Path) -> None:
    """A picture of the field."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 5))
    picture = axes.imshow(field, cmap="inferno", interpolation="bilinear")
    axes.set_title("heat equation, continued after SIGKILL")
    axes.set_xticks([])
    axes.set_yticks([])
    figure.colorbar(picture, label="temperature")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def fail_a_card(console: Console) -> None:
    """Says why if it is not possible here. Raises DemoError if the program has noticed the failure."""
    if reason := card.lacking():
        console.print(f"[bold]5[/] a network card fails: left out, {reason}")
        return
    console.print("[bold]5[/] a network card fails, in a virtual machine: manapy rdma run -- ib_write_bw ...")
    try:
        with VM(rails=2) as machine:
            for line in card.fail_and_repair(machine):
                console.print(f"  {line}")
    except ImageError as error:
        console.print(f"  left out: {error}", markup=False)
    except VMError as error:
        raise DemoError(f"the failure of a network card: {error}") from error


def demonstrate(options: argparse.Namespace, console: Console) -> bool:
    """All steps; True if both fields are equal."""
    out: Path = options.out
    is_ours = (out / "undisturbed.log").exists()  # the first file that a demo makes
    if out.exists() and not is_ours and (not out.is_dir() or any(out.iterdir())):
        raise DemoError(f"{out} exists, and no demo has made it: choose another --out")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    job = out / "job"
    solver = [sys.executable, PROGRAM, "--n", options.n, "--steps", options.steps, "--pause", "0.05"]
    mpirun = [BIN / "mpirun", "-n", str(options.ranks)]
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right", overflow="fold")

    console.print(f"[bold]1[/] undisturbed run: mpirun -n {options.ranks} python heat2d.py ...")
    begin = time.monotonic()
    with start([*mpirun, *solver, "--out", out / "undisturbed.npy"], out / "undisturbed.log") as run:
        run.finish(600)
    table.add_row("undisturbed run", f"{time.monotonic() - begin:.2f} s")

    console.print(f"[bold]2[/] the same under manapy: mpirun -n {options.ranks} manapy-launch python heat2d.py ...")
    launch = [*mpirun, BIN / "manapy-launch", "--dir", job, *solver, "--out", out / "restarted.npy"]
    third = int(options.steps) // 3
    with start(launch, out / "killed.log") as run:
        run.wait_for(lambda text: last_step(text) >= third, f"step {third}", 300)
        console.print(f"  at step {last_step(run.text())}: manapy checkpoint")
        begin = time.monotonic()
        checkpoint = Path(manapy("checkpoint", job).strip())
        table.add_row("checkpoint (command, until published)", f"{time.monotonic() - begin:.2f} s")
        saved = last_step(run.text())
        run.wait_for(lambda text: last_step(text) > saved, "a step after the checkpoint", 60)
        killed = kill(run, job)
        reached = last_step(run.text())
        console.print(f"  at step {reached}: SIGKILL to {killed} processes (ranks and mpirun)")
    size = sum(f.stat().st_size for f in checkpoint.glob("*.img"))
    table.add_row(f"checkpoint of {options.ranks} ranks", f"{size / 1e6:.1f} MB")
    table.add_row("killed at step", str(reached))

    console.print(f"[bold]3[/] manapy restart {short(job)}")
    begin = time.monotonic()
    with start([BIN / "manapy", "restart", job], out / "restarted.log") as run:
        run.wait_for(lambda text: last_step(text) > 0, "the first step after the restart", 120)
        table.add_row("restart (command, to the next output)", f"{time.monotonic() - begin:.2f} s")
        rank = options.ranks // 2
        console.print(f"[bold]4[/] rank {rank} gets SIGSTOP: manapy why {short(job)}")
        console.print(f"  {find_the_stopped(job, rank)}", markup=False)
        run.finish(600)

    fail_a_card(console)

    expected, found = np.load(out / "undisturbed.npy"), np.load(out / "restarted.npy")
    equal = expected.tobytes() == found.tobytes()
    table.add_row("final fields", "[green]equal bit for bit[/]" if equal else "[red]DIFFERENT[/]")
    draw(found, out / "field.png")
    table.add_row("picture", short(out / "field.png"))
    console.print(table)
    console.print("read on: docs/checkpoint.md, docs/batch.md (Slurm), docs/hang.md, docs/network-card.md, README.md")
    return equal


def save_terminal(console: Console, path: Path) -> None:
    """Draw all that was printed, as an SVG picture. It names no font of the web."""
    picture = console.export_svg(title="tools/demo")
    path.write_text(re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL).replace("Fira Code, ", ""))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tools/demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--n", default="256", help="grid points in each direction")
    parser.add_argument("--steps", default="3000")
    parser.add_argument("--out", type=lambda text: Path(text).resolve(), default=ROOT / "demo-out")
    parser.add_argument(
        "--terminal", metavar="FILE", type=Path, help="draw the terminal into this SVG file (README.md)"
    )
    options = parser.parse_args()
    drawn = {"record": True, "width": 104, "force_terminal": True} if options.terminal else {}
    console = Console(highlight=False, soft_wrap=True, **drawn)
    try:
        if options.terminal:
            console.print("$ tools/demo")
        equal = demonstrate(options, console)
        if options.terminal:
            save_terminal(console, options.terminal)
        return 0 if equal else 1
    except DemoError as error:
        console.print(f"[red]failed:[/] {error}", markup=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())

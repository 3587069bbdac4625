"""The live view of `manapy status --watch`, for a chain or for one job; and the function that draws a live view."""

from __future__ import annotations

import io
import signal
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.units import ago, size
from ..shared.output import Output

if TYPE_CHECKING:
    from rich.text import Text

    from ...chain.record import Chain, Event
    from ...ckpt.store.job import Job

EVERY = 1.0  # seconds


def watch(shown: Chain | Job, out: Output) -> int:
    """Show the chain or job until it has ended."""
    from ...ckpt.store.job import Job
    from ...core.errors import JobError

    if isinstance(shown, Job):

        def text() -> list[str]:
            return job_lines(shown)

        def over() -> bool:
            return not shown.is_live()
    elif not out.file.isatty():
        return _follow(shown, out)
    else:
        from ...chain import view

        def text() -> list[str]:
            return lines(shown)

        def over() -> bool:
            return _is_over(shown, view.gone_supervisor(shown))

    try:
        return _live(text, over, out)
    except JobError as error:  # the job has ended meanwhile
        out.note(str(error))
        return 0


def _live(text: Callable[[], list[str]], over: Callable[[], bool], out: Output) -> int:
    if not out.file.isatty():
        shown = None
        while not over():
            if (now := text()) != shown:
                shown = now
                for line in now:
                    out.line(line)
            time.sleep(EVERY)
        return 0
    from rich.text import Text

    def picture() -> tuple[Text, float | None]:
        ended = over()
        return Text("\n".join(text())), None if ended else EVERY

    draw(picture, out)
    return 0


def draw(picture: Callable[[], tuple[Text, float | None]], out: Output) -> None:
    """Draw pictures on a terminal, each in place of the last one.

    picture returns a text and the seconds until the next one; None: it was the last. Ctrl-C ends it.
    """
    from rich.console import Console
    from rich.live import Live

    left = False

    def leave(*_: object) -> None:
        nonlocal left
        left = True

    # Ctrl-C ends the view, but never in the middle of a picture. While this thread draws, a thread of numpy may get the
    # signal; then the handler runs.
    handler = signal.signal(signal.SIGINT, leave)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with Live(console=Console(file=out.file), auto_refresh=False) as live:
            while not left:
                text, pause = picture()
                live.update(text, refresh=True)
                if pause is None or not left and signal.sigtimedwait({signal.SIGINT}, pause) is not None:
                    break
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, handler)


def _follow(chain: Chain, out: Output) -> int:
    """Print each new event as a line."""
    from ...chain import view

    seen, said = 0, ""
    while True:
        gone = view.gone_supervisor(chain)
        over = _is_over(chain, gone)
        events = chain.events()
        for event in events[seen:]:
            out.line(event_line(event))
        seen = len(events)
        if gone and gone != said:
            out.line(f"{chain.dir}: {view.state(chain)}")
        said = gone
        if over:
            return 0
        time.sleep(EVERY)


def _is_over(chain: Chain, gone: str) -> bool:
    """Does nobody continue this chain? If the supervisor of a Slurm job is gone, its next allocation does."""
    return chain.over() is not None or chain.record["kind"] == "run" and bool(gone)


def job_lines(where: object) -> list[str]:
    """The status of a job as `manapy status` prints it."""
    from ...ckpt import command
    from .job_status import show

    text = io.StringIO()
    show(command.status(where), Output(file=text))  # type: ignore[arg-type]
    return text.getvalue().splitlines()


def lines(chain: Chain) -> list[str]:
    """A chain's state: attempts, time used, deadline, checkpoints, steps with their ranks, the last line of output, and
    the last events.
    """
    from ...chain import view
    from ...ckpt import command
    from ...ckpt.store import job
    from ...core.errors import JobError

    now, stands = time.time(), view.summary(chain)
    allocations = f" in {stands['allocations']} allocations" if stands["allocations"] else ""
    found = [
        f"chain {stands['dir']}: {stands['state']}",
        f"{stands['attempts']} attempts{allocations}, {ago(stands['used'])} used",
    ]
    if stands["again"]:
        found.append(f"to continue: {stands['again']}")
    if stands["deadline"] is not None:
        found.append(
            f"this allocation ends in {ago(max(stands['deadline'] - now, 0))}; the job is saved in "
            f"{ago(max(stands['leaves_at'] - now, 0))} at the latest"
        )
    if last := stands["last_checkpoint"]:
        found.append(
            f"{stands['checkpoints']} checkpoints, the last one {ago(now - last['time'])} ago, {size(last['bytes'])} "
            f"in {last['seconds']:.2f} s: {last['path']}"
        )
    else:
        found.append("no checkpoint yet")
    if done := sum(step["done"] for step in stands["steps"]):
        found.append(f"steps done: {done}")
    for step in stands["steps"]:
        if step["done"]:
            continue
        what = "continued" if step["verdict"] == "resume" else "from the beginning"
        found.append(
            f"step {step['step']}, {step['ranks']} ranks, {what}: "
            f"{textwrap.shorten(' '.join(step['argv']), 100, placeholder=' ...')}"
        )
        try:
            status = command.status(job.read(Path(step["dir"])))
        except JobError:
            continue
        states = [rank["state"] for rank in status["ranks"]]
        found.append(
            "  "
            + ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
            + "".join(f"; {text}" for text in status["waiting"][:2])
        )
    if stands["output"]:
        found.append(f"last output: {stands['output'][:200]}")
    return [*found, *(f"  {event_line(event)}" for event in chain.events()[-6:])]


def event_line(event: Event) -> str:
    """A line for an event of the history."""
    clock = time.strftime("%H:%M:%S", time.localtime(event["time"]))
    texts = {
        "attempt": lambda e: (
            f"attempt {e['attempt']} begins" + (f" in job {e['id']} on {','.join(e['nodes'])}" if e["id"] else "")
        ),
        "step": lambda e: (
            f"step {e['step']}: "
            + {"new": "starts", "resume": f"continues {e['path']}", "done": f"had ended with exit code {e['code']}"}[
                e["verdict"]
            ]
        ),
        "checkpoint": lambda e: f"checkpoint {e['path']}, {size(e['bytes'])} in {e['seconds']:.2f} s ({e['cause']})",
        "failed": lambda e: f"checkpoint failed ({e['cause']}): {e['reason']}",
        "skipped": lambda e: f"left out: {e['path']}: {e['reason']}",
        "note": lambda e: str(e["text"]),
        "running": lambda e: f"step {e['step']}: all ranks run",
        "verdict": lambda e: f"{e['state']}: {e['sentence']}",
        "withdrawn": lambda e: f"withdrawn: {e['sentence']}",
        "hung": lambda e: f"certain: {e['sentence']}; evidence: {e['evidence']}",
        "slow": lambda e: (
            f"{e['sentence']}; {e['host']} is {'left out' if e['moves'] else 'kept'}: another host would save about "
            f"{ago(e['gain'])}, and the move takes about {ago(e['cost'])}"
        ),
        "moved": lambda e: (
            f"{', '.join(e['away'])} left out, {', '.join(e['to'])} used instead; spare nodes left: {e['left']}"
        ),
        "excluded": lambda e: f"{', '.join(e['nodes'])} excluded from the next allocations",
        "successor": lambda e: f"job {e['id']} continues after this one",
        "ending": lambda e: f"attempt {e['attempt']} is being ended: {e['reason']}",
        "end": lambda e: f"attempt {e['attempt']} {e['how']}" + (f": {e['reason']}" if e["reason"] else ""),
        "finished": lambda e: f"finished with exit code {e['code']}",
        "stopped": lambda e: f"stopped: {e['reason']}",
    }
    # a chain may have events of a newer version
    return f"{clock} {texts[event['event']](event) if event['event'] in texts else event['event']}"

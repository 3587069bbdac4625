"""Explains to users why a job is not at a safe state yet: which ranks wait, and for which ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._state import Mode, Stage, State, Thread

if TYPE_CHECKING:
    from .controller import Controller

LINES_MAX = 20


def explain(controller: Controller) -> list[str]:
    """Return at most LINES_MAX lines, one for each reason; [] when nothing is pending or all ranks are frozen."""
    if controller.stage is Stage.INTENT:
        lines = [f"rank {r} has not answered the request" for r, v in enumerate(controller.ranks) if not v.reported]
    elif controller.stage is Stage.FREEZING:
        lines = [f"rank {r} has not stopped yet" for r, v in enumerate(controller.ranks) if not v.frozen]
    elif controller.stage is Stage.RUN:
        lines = _running(controller)
    else:
        lines = []
    return lines[:LINES_MAX]


def _running(controller: Controller) -> list[str]:
    lines: list[str] = []
    for rank, cid, ahead in controller.laggards():
        thread = controller.ranks[rank].first
        doing = {
            State.RUNNING: "has computed below target",
            State.BLOCKED_P2P: f"is below target and waits for {_peers(controller, thread)}",
            State.IN_COLLECTIVE: f"is below target in a collective on communicator {_name(controller, thread.cid)}",
            State.PARKED: "is below target and is being woken",
            State.FINISHED: "has finished below target",
        }[thread.state]
        verb = "waits" if len(ahead) == 1 else "wait"
        lines.append(f"rank {rank} {doing}; {_ranks(ahead)} {verb} for it on communicator {_name(controller, cid)}")
    for rank, view in enumerate(controller.ranks):
        if view.disabled:
            lines.append(explain_disabled(rank))
        if view.below:
            continue
        if by := controller.askers(rank):
            verb = "waits" if len(by) == 1 else "wait"
            lines.append(
                f"rank {rank} ({view.first.state.value}) is asked to go on; {_ranks(by)} {verb} for a message of it"
            )
        elif view.inside:
            lines.append(f"rank {rank} is inside a collective on communicator {_name(controller, view.first.cid)}")
    return lines


def explain_disabled(rank: int) -> str:
    """The line for a rank whose program has disabled checkpoints."""
    return f"waiting for rank {rank}: checkpoints are disabled by the program"


def _ranks(ranks: list[int] | tuple[int, ...], joint: str = ", ") -> str:
    text = joint.join(map(str, ranks[:4])) + (" ..." if len(ranks) > 4 else "")
    return f"rank {text}" if len(ranks) == 1 else f"ranks {text}"


def _name(controller: Controller, cid: int) -> str:
    comm = controller.comms.get(cid)
    return f"'{comm.name}'" if comm is not None and comm.name else f"{cid:016x}"


def _peers(controller: Controller, thread: Thread) -> str:
    if not thread.peers:
        return f"any rank of communicator {_name(controller, thread.cid)}" if thread.cid else "nonblocking collectives"
    return _ranks(thread.peers, " or " if thread.mode is Mode.ANY else ", ")

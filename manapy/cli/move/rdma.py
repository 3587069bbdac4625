"""Move RDMA traffic to another network card (RNIC) when a card fails, and back when it works again.

    manapy rdma run -- ib_write_bw ...             run a program with backup RNICs
    mpirun -n 8 manapy rdma run --kv URL -- PROG   the same for each rank; hosts find each other in the store at URL
    manapy rdma devices                            list the RNICs of this host and the backups of each

Programs that communicate must belong to the same group and use the same store. The commands status, events and move
concern the programs on this host.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.units import ago, size
from ..shared import arguments, naming
from ..shared.output import Output

if TYPE_CHECKING:
    from ...rdma.place import Place

TAKES_MORE = "-- COMMAND [ARGUMENTS...]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its commands."""
    metavar = "run | agent | status | events | move | devices"
    commands = parser.add_subparsers(dest="what", required=True, metavar=metavar)
    _add_run_and_agent(commands)
    _add_status_and_events(commands)
    _add_move(commands)
    devices = commands.add_parser(
        "devices",
        help="list the RNICs of this host and their backups",
        description="List the RNICs of this host, their place in the topology, and their backups.",
    )
    devices.add_argument("--sysfs", metavar="DIR", type=Path, help=argparse.SUPPRESS)
    devices.add_argument("--json", action="store_true")


def _add_run_and_agent(commands: Any) -> None:
    run = commands.add_parser(
        "run", help="run a program with backup RNICs", description="Run the command after '--' with backup RNICs."
    )
    agent = commands.add_parser(
        "agent",
        help="run the agent of a job on this host",
        description=(
            "Run the agent that serves a job's programs on this host. `manapy rdma run` starts an agent if there is "
            "none."
        ),
    )
    for command in (run, agent):
        command.add_argument(
            "--kv",
            metavar="URL",
            help=(
                "the store that the job's hosts share: etcd://host:port,... or sqlite:///path/file.db (default: "
                "MANAPY_SHIFT_KV; else a store of this host only)"
            ),
        )
        command.add_argument(
            "--group",
            metavar="NAME",
            help=(
                "name of the group of programs that communicate (default: MANAPY_SHIFT_JOB, else Slurm's job, else one "
                "group for all programs of this user)"
            ),
        )
        arguments.add_renamed(command, "--job", "--group")
        command.add_argument(
            "--ttl",
            metavar="TIME",
            type=arguments.seconds,
            default=10.0,
            help="how long the keys of a dead host remain (default 10s)",
        )
        command.add_argument(
            "--linger",
            metavar="TIME",
            type=arguments.seconds,
            help="end the agent TIME after its last program has ended (default: 30s if run starts it, else never)",
        )
    run.add_argument(
        "--backup",
        metavar="DEV,...",
        help=(
            "backup RNICs, best first; or the backups of each RNIC: DEV:BACKUP:BACKUP,... (default: "
            "MANAPY_SHIFT_BACKUP, else auto: by topology)"
        ),
    )
    agent.add_argument("--fd", type=int, help=argparse.SUPPRESS)
    agent.add_argument("--ready-fd", type=int, help=argparse.SUPPRESS)
    agent.add_argument("--stay", type=int, metavar="PID", help=argparse.SUPPRESS)  # at least as long as this process


def _add_status_and_events(commands: Any) -> None:
    status = commands.add_parser(
        "status",
        help="show queue pairs: state, device, counters",
        description="Show the state of the queue pairs of this host's programs.",
    )
    events = commands.add_parser(
        "events",
        help="print the events of queue pairs",
        description="Print the events of the queue pairs of this host's programs, each as one line of JSON.",
    )
    events.add_argument("--follow", action="store_true", help="print new events until the agent ends")
    for command in (status, events):
        command.add_argument(
            "job",
            nargs="?",
            metavar="JOB|GROUP",
            help=(
                f"{naming.JOB}; or the --group of 'manapy rdma run' (default: the only one with an agent on this host; "
                "for status: all)"
            ),
        )
    status.add_argument("--json", action="store_true")


def _add_move(commands: Any) -> None:
    move = commands.add_parser(
        "move",
        help="move traffic to another RNIC now",
        description="Move the traffic of programs on this host to another RNIC, for example before maintenance.",
    )
    move.add_argument("job", metavar="JOB|GROUP", help="as for 'manapy rdma status'")
    move.add_argument(
        "target",
        metavar="RANK|PID|*",
        help="the program, by its rank or process id; '*': all programs of that job or group on this host",
    )
    move.add_argument(
        "device", metavar="DEV", help="the RNIC that carries the traffic from now on: a backup, or the default RNIC"
    )
    move.add_argument("--qp", metavar="N", default="*", help="move only this queue pair")


def run(options: argparse.Namespace, out: Output) -> int:
    """The command that was named."""
    from ...core.errors import UsageError

    if options.after and options.what != "run":
        raise UsageError("nothing may follow '--'")
    return {"run": _run, "agent": _agent, "status": _status, "events": _events, "move": _move, "devices": _devices}[
        options.what
    ](options, out)


def _place(options: argparse.Namespace) -> tuple[Place, str]:
    """The job's place on this host, and the store's URL."""
    from ...core.errors import UsageError
    from ...rdma import place, prepare

    if options.ttl < 1:
        raise UsageError("--ttl must be at least 1s: a busy agent may be late by this time")
    where = place.make(options.group or place.default_job())
    return where, options.kv or prepare.store_url(where)


# ---- agent


def _agent(options: argparse.Namespace, out: Output) -> int:
    import logging
    import socket

    from ...core.errors import AgentError, ManapyError
    from ...rdma import agent, stores

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", force=True)

    def ready(text: str) -> None:
        if options.ready_fd is not None:
            # The process that started the agent may have been killed. Other ranks still need the agent.
            with suppress(BrokenPipeError), open(options.ready_fd, "w") as stream:
                stream.write(text + "\n")

    try:
        where, url = _place(options)
        keys = stores.open_store(url, where.job, options.ttl)
    except ManapyError as error:
        ready(f"failed {error}")
        raise
    if options.fd is not None:
        listener = socket.socket(fileno=options.fd)
    else:
        with where.locked():
            if where.is_alive():
                raise AgentError(f"an agent of job {where.job} already runs on this host ({where.address})")
            listener = where.listen()
    agent.serve(where, url, keys, listener, ready, options.linger, options.ttl, options.stay)
    return 0


# ---- run


def _run(options: argparse.Namespace, out: Output) -> int:
    """Does not return: the process becomes the program."""
    from ...core import installation
    from ...core.errors import ManapyError, UsageError
    from ...rdma import prepare

    if not options.after:
        raise UsageError("the program is missing: manapy rdma run -- PROGRAM")
    program = shutil.which(options.after[0])
    if program is None:
        raise UsageError(f"{options.after[0]}: no such program")
    library = installation.library("libmanapy_shift.so")
    if library is None:
        raise ManapyError(
            "this manapy was built without libmanapy_shift.so; the build needs the headers of libibverbs (Debian: "
            "libibverbs-dev)"
        )
    backups, why = prepare.backups(options.backup)
    if why is not None:
        out.error(f"{why}: the program runs unprotected")
    where, url = _place(options)
    if (
        trouble := prepare.agent(
            where, url, prepare.LINGER_SECONDS if options.linger is None else options.linger, options.ttl
        )
    ) is not None:
        out.error(f"{trouble}; nothing is protected until the agent can be reached")
    os.environ["MANAPY_SHIFT_AGENT"] = str(where.address)
    os.environ["MANAPY_SHIFT_JOB"] = where.job
    os.environ["MANAPY_SHIFT_BACKUP"] = backups
    os.environ["LD_PRELOAD"] = ":".join(
        [str(library), *filter(None, re.split("[ :]", os.environ.get("LD_PRELOAD", "")))]
    )
    os.execv(program, options.after)


# ---- status, events, move


def _running(job: str | None) -> list[Place]:
    """The place of the named job, or of all jobs that run here. Raises AgentError if there is none."""
    from ...core.errors import AgentError
    from ...rdma import place

    if job is not None:
        return [_named(job)]
    if found := place.places():
        return found
    raise AgentError(f"no agent runs on this host (for this user, in {place.root()})")


def _named(job: str) -> Place:
    """The place of the agents with this name; if there is none, of the job of manapy-launch with this name."""
    from ...core.errors import JobError, UsageError
    from ...rdma import place

    try:
        if (found := place.of(job)).is_alive():
            return found
    except UsageError:  # a path
        pass
    try:
        return place.of(place.job_name(naming.job(job).dir))
    except JobError:
        return place.of(job)


def _only(job: str | None) -> Place:
    from ...core.errors import UsageError

    found = _running(job)
    if len(found) > 1:
        raise UsageError(
            f"{len(found)} jobs have agents here; name one of them: {', '.join(where.job for where in found)}"
        )
    return found[0]


def _status(options: argparse.Namespace, out: Output) -> int:
    from ...core.errors import AgentError
    from ...rdma import client

    found, ended = [], None
    for where in _running(options.job):
        try:
            with client.Connection(where) as connection:
                found.append(connection.status())
        except AgentError as error:  # one of many may end meanwhile
            ended = error
    if ended and not found:
        raise ended
    out.data(found)
    if not out.json:
        for status in found:
            _show(status, out)
    return 0


def _show(status: dict[str, Any], out: Output) -> None:
    trouble = f": {status['trouble']}" if status["trouble"] else ""
    out.line(f"job {status['job']} on {status['host']}, agent {status['pid']}, keys in {status['store']}{trouble}")
    rows = []
    for one in status["clients"]:
        head = (
            "" if one["rank"] is None else one["rank"],
            one["pid"],
            one["program"] + ("" if one["connected"] else " (away)"),
        )
        for state in one["states"]:
            since = ago(max(time.time() - state["time"], 0))
            traffic, moved = _traffic(state)
            rows.append(
                (
                    *head,
                    state.get("qp", ""),
                    state["event"],
                    state.get("device", ""),
                    state["switches"],
                    traffic,
                    moved,
                    since,
                )
            )
        if not one["states"]:
            rows.append((*head, "", "", "", 0, "", "", ago(max(time.time() - one["since"], 0))))
    if rows:
        out.table(
            ("rank", "pid", "program", "qp", "state", "device", "switches", "posted / completed", "bytes", "for"), rows
        )
    else:
        out.line("no program with RDMA devices")


def _traffic(state: dict[str, Any]) -> tuple[str, str]:
    """Posted and completed sends, and bytes. If a program posts with ibv_wr_*, they are not counted (null)."""
    if "posted" not in state:
        return "", ""
    if state["posted"] is None:
        return "unknown", "unknown"
    return f"{state['posted']} / {state.get('completed', '?')}", size(state["bytes"]) if "bytes" in state else ""


def _events(options: argparse.Namespace, out: Output) -> int:
    import json

    from ...core.errors import AgentError
    from ...rdma import client

    with client.Connection(_only(options.job)) as connection:
        if not options.follow:
            for event in connection.events():
                out.line(json.dumps(event))
            return 0
        try:
            for event in connection.watch(0):
                out.line(json.dumps(event))
        except AgentError as error:
            out.note(str(error))
    return 0


def _move(options: argparse.Namespace, out: Output) -> int:
    from ...core.errors import UsageError
    from ...rdma import client, kv_protocol

    if not kv_protocol.is_move(options.target, options.qp, options.device):
        raise UsageError(
            f"expected a program (a rank, a process id or '*'), a queue pair and a device, not: {options.target}, "
            f"{options.qp}, {options.device}"
        )
    with client.Connection(_only(options.job)) as connection:
        told = int(connection.ask("MOVE", options.target, options.qp, options.device))
    out.line(
        f"asked {told} RNIC{'s' * (told != 1)} of programs to move to {options.device}; 'manapy rdma events "
        f"{options.job}' shows when they have moved"
    )
    return 0


# ---- devices


def _devices(options: argparse.Namespace, out: Output) -> int:
    from dataclasses import asdict

    from ...rdma import devices

    found = devices.scan(options.sysfs or devices.SYSFS)
    if options.sysfs is None:
        devices.ask_verbs(found)
    out.data([asdict(device) for device in found])
    rows = []
    for device in found:
        node, place = device.location.node, device.location.pci[-1] if device.location.pci else "virtual"
        for port in device.ports:
            best = next(
                (
                    gid.address
                    for kind in ("RoCE v2", "IB", "RoCE v1")
                    for gid in reversed(port.gids)
                    if gid.kind == kind
                ),
                "",
            )
            rate = f"{port.rate:g} Gb/s" if port.rate else ""
            head = (device.name, port.number, port.state, port.link, rate, port.mtu or "", best)
            rows.append((*head, place, "" if node is None else node, " ".join(device.gpus), " ".join(device.backups)))
    if not found:
        out.line("no RNIC on this host")
        return 0
    out.table(
        ("device", "port", "state", "link", "rate", "MTU", "GID", "PCI", "NUMA", "GPUs", "backups, best first"), rows
    )
    for device in found:
        for other, why in device.unfit.items():
            out.line(f"{other} cannot be a backup of {device.name}: {why}")
    return 0

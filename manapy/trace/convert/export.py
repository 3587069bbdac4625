"""Exports a trace for other tools: JSON, OpenMetrics (Prometheus), OTF2 (Vampir, Scalasca ...), and Perfetto
(perfetto.py).

Times are ns on the job's clock. In Perfetto and OTF2 they count from the begin of the trace. A call that has not
returned lasts until `now`.

Sources of the formats: openmetrics.io 1.0; OTF2 3.x, python bindings.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import ManapyError
from ..model.events import EVENT, OPEN, PROC_NULL, Communicator, Flag, Op, Trace
from ..model.match import IS_COMPLETION, IS_RECEIVE, IS_SEND, first_of_call, match
from .otf2_archive import MISSING as OTF2_MISSING
from .perfetto import to_perfetto
from .slices import PEERS, calls, title


class ExportError(ManapyError):
    """A package for the format is not installed, or the output cannot be written."""


# ---- JSON


def to_json(trace: Trace, out: Path) -> None:
    """Write one object: job, size, now, ranks, communicators, and events with the fields of events.EVENT. op is a name;
    exit is null for an open call."""
    with out.open("w") as stream:
        head: dict[str, Any] = {"job": trace.job, "size": trace.size, "now": trace.now}
        head["ranks"] = [
            {k: (None if v != v else v) for k, v in asdict(rank).items()} for _, rank in sorted(trace.ranks.items())
        ]
        head["communicators"] = [
            {"cid": f"{c.cid:016x}", "name": c.name, "members": c.members.tolist(), "remote": c.remote}
            for c in trace.comms
        ]
        stream.write(json.dumps(head)[:-1] + ', "events": [')
        for i, event in enumerate(trace.events):
            stream.write((",\n" if i else "\n") + json.dumps(_as_dict(event)))
        stream.write("\n]}\n")


def _as_dict(event: np.void) -> dict[str, Any]:
    row = {field: int(event[field]) for field in EVENT.names or ()}
    return {
        **row,
        "op": Op(row["op"]).name,
        "flags": [flag.name for flag in Flag if flag & row["flags"]],
        "peer": PEERS.get(row["peer"], row["peer"]),
        "exit": None if row["exit"] == OPEN else row["exit"],
        "comm": None if row["comm"] < 0 else row["comm"],
    }


# ---- OpenMetrics

Metric = tuple[str, float]  # labels, value


def to_openmetrics(trace: Trace, out: Path) -> None:
    """Write metrics for node_exporter's textfile collector, or any scraper: number, time and bytes of calls per rank
    and kind of call (op); open calls; lost records."""
    events = trace.events
    spent = np.where(events["exit"] == OPEN, trace.now, events["exit"]) - events["enter"]
    first = first_of_call(events)
    calls: list[Metric] = []
    seconds: list[Metric] = []
    volume: list[Metric] = []
    opened: list[Metric] = []
    for rank in sorted(trace.ranks):
        own = events["rank"] == rank
        for op in np.unique(events["op"][own]):
            these = own & (events["op"] == op)
            label = f'{{rank="{rank}",op="{Op(int(op)).name.lower()}"}}'
            calls.append((label, int((these & first).sum())))
            seconds.append((label, float(spent[these & first].sum()) * 1e-9))
            volume.append((label, int(events["bytes"][these].sum())))
            if (waiting := these & first & (events["exit"] == OPEN)).any():
                opened.append((label, float(spent[waiting].max()) * 1e-9))
    lost: list[Metric] = [(f'{{rank="{rank}"}}', known.lost) for rank, known in sorted(trace.ranks.items())]
    families = [
        ("manapy_mpi_calls", "counter", "MPI calls recorded.", "", calls),
        ("manapy_mpi_call_seconds", "counter", "Time spent in MPI calls.", "seconds", seconds),
        ("manapy_mpi_bytes", "counter", "Bytes given or received.", "bytes", volume),
        ("manapy_mpi_open_call_seconds", "gauge", "For how long the open call has lasted.", "seconds", opened),
        ("manapy_trace_lost_records", "counter", "Records overwritten before they were read.", "", lost),
    ]
    lines = []
    for family, kind, text, unit, samples in families:
        lines += [f"# TYPE {family} {kind}", *([f"# UNIT {family} {unit}"] if unit else []), f"# HELP {family} {text}"]
        lines += [f"{family}{'_total' if kind == 'counter' else ''}{label} {value!r}" for label, value in samples]
    out.write_text("\n".join([*lines, "# EOF", ""]))


# ---- OTF2


def to_otf2(trace: Trace, out: Path) -> None:
    """Write an archive into the folder `out`.

    It has a region for each call. For calls that have returned it has MPI's events: messages, blocking and nonblocking,
    and blocking collectives. The bytes received in a collective are not recorded, and are 0. An inter-communicator has
    the members of both groups. Raises ExportError if the package otf2 is not installed, or if `out` exists.
    """
    try:
        import otf2
    except ImportError:
        raise ExportError(OTF2_MISSING) from None
    if out.exists():
        raise ExportError(f"{out} exists already")
    with otf2.writer.open(str(out), timer_resolution=10**9) as archive:
        _Otf2(otf2, archive, trace).write()


_OTF2_COLLECTIVES = {op: op.name for op in map(Op, range(Op.BARRIER, Op.NEIGHBOR))}  # names of otf2.CollectiveOp


class _Otf2:
    """Writes the definitions and the events of an archive. Ranks in events are ranks in the communicator."""

    def __init__(self, otf2: Any, archive: Any, trace: Trace) -> None:
        self.otf2, self.archive, self.trace, self.matching = otf2, archive, trace, match(trace)
        self.start = int(trace.events["enter"].min()) if len(trace.events) else 0
        self.regions: dict[str, Any] = {}
        define = archive.definitions
        tree = define.system_tree_node("job")
        hosts = [known.host if (known := trace.ranks.get(rank)) else "" for rank in range(trace.size)]
        nodes = {
            host: define.system_tree_node(host, class_name="node", parent=tree) for host in sorted({*hosts} - {""})
        }
        groups = [
            define.location_group(f"rank {rank}", system_tree_parent=nodes.get(host, tree))
            for rank, host in enumerate(hosts)
        ]
        used = {(rank, 0) for rank in range(trace.size)} | {
            (int(e["rank"]), int(e["thread"])) for e in trace.events[["rank", "thread"]]
        }
        self.locations = {
            (rank, thread): define.location(f"rank {rank}, thread {thread}", group=groups[rank])
            for rank, thread in sorted(used)
        }
        world = [self.locations[rank, 0] for rank in range(trace.size)]
        define.group("MPI", group_type=otf2.GroupType.COMM_LOCATIONS, paradigm=otf2.Paradigm.MPI, members=world)
        self.comms = [self._comm(known) for known in trace.comms]
        self.places = [{rank: place for place, rank in enumerate(known.members.tolist())} for known in trace.comms]

    def _comm(self, known: Communicator) -> Any:
        members = [self.locations[rank, 0] for rank in known.members.tolist() if 0 <= rank < self.trace.size]
        title = known.name or f"{known.cid:016x}"
        group = self.archive.definitions.group(
            title, group_type=self.otf2.GroupType.COMM_GROUP, paradigm=self.otf2.Paradigm.MPI, members=members
        )
        return self.archive.definitions.comm(title, group=group)

    def write(self) -> None:
        """Write all calls, those of a location in the order of their records."""
        ended: dict[Any, int] = {}
        for begin, group, end in calls(self.trace):
            first = self.trace.events[group[0]]
            name = title(self.trace, group)
            if name not in self.regions:
                self.regions[name] = self.archive.definitions.region(name, paradigm=self.otf2.Paradigm.MPI)
            location = self.locations[int(first["rank"]), int(first["thread"])]
            writer = self.archive.event_writer_from_location(location)
            # OTF2 refuses decreasing times, which a damaged record may have
            begin = max(begin - self.start, ended.get(location, 0))
            ended[location] = end = max(end - self.start, begin)
            writer.enter(begin, self.regions[name])
            if first["exit"] != OPEN and not first["flags"] & (Flag.FAILED | Flag.PERSISTENT):
                for event in group:
                    self._event(writer, event, begin, end)
            writer.leave(end, self.regions[name])

    def _event(self, writer: Any, event: int, begin: int, end: int) -> None:
        m, own = self.matching, self.trace.events[event]
        if IS_COMPLETION[own["op"]]:
            post = int(m.post[event])
            if post >= 0 and m.done[post] == event:
                self._completed(writer, event, post, end)
            return
        op, request = int(m.op[event]), int(own["request"])
        asynchronous = request and (own["flags"] & Flag.NONBLOCKING or own["op"] == Op.START)
        if op in _OTF2_COLLECTIVES and not asynchronous:
            self._collective(writer, event, begin, end)
        elif asynchronous and IS_RECEIVE[op] and int(m.peer[event]) != PROC_NULL:
            writer.mpi_irecv_request(begin, request)
        elif (message := self._message(event)) is None:
            return
        elif IS_RECEIVE[op]:
            writer.mpi_recv(end, *message, int(own["bytes"]))
        elif asynchronous:
            writer.mpi_isend(begin, *message, int(own["bytes"]), request)
        else:
            writer.mpi_send(begin, *message, int(own["bytes"]))

    def _completed(self, writer: Any, event: int, post: int, end: int) -> None:
        op, own = int(self.matching.op[post]), self.trace.events[event]
        message = self._message(post)
        if message is None:
            return
        if IS_SEND[op]:
            writer.mpi_isend_complete(end, int(own["request"]))
        elif IS_RECEIVE[op]:
            writer.mpi_irecv(end, *message, int(own["bytes"]), int(own["request"]))

    def _message(self, event: int) -> tuple[int, Any, int] | None:
        """Return the other rank, the communicator and the tag of a send or a receive. None: it is no message, or they
        are not known."""
        m = self.matching
        op, comm, peer, tag = (int(array[event]) for array in (m.op, m.comm, m.peer, m.tag))
        if comm < 0 or tag < 0 or peer not in self.places[comm] or not (IS_SEND[op] or IS_RECEIVE[op]):
            return None
        return self.places[comm][peer], self.comms[comm], tag

    def _collective(self, writer: Any, event: int, begin: int, end: int) -> None:
        own = self.trace.events[event]
        comm = int(own["comm"])
        if comm < 0:
            return
        root = self.places[comm].get(int(own["peer"]), self.otf2.CollectiveRoot.NONE)
        writer.mpi_collective_begin(begin)
        writer.mpi_collective_end(
            end,
            getattr(self.otf2.CollectiveOp, _OTF2_COLLECTIVES[Op(int(own["op"]))]),
            self.comms[comm],
            root,
            int(own["bytes"]),
            0,
        )


# ---- all formats

FORMATS: dict[str, tuple[Callable[[Trace, Path], None], str]] = {
    "json": (to_json, ".json"),
    "openmetrics": (to_openmetrics, ".prom"),
    "perfetto": (to_perfetto, ".pftrace"),
    "otf2": (to_otf2, ".otf2"),
}

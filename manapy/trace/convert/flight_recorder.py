"""Reads dumps of PyTorch's Flight Recorder, one file for each rank: the pickle that a watchdog or
`_dump_nccl_trace` writes, and the JSON of `_dump_nccl_trace_json` and `_dump_fr_trace_json`.

A dump has an entry for each of the last collectives and messages of the process: its process group, number, and
whether it has ended. Format: torch/csrc/distributed/c10d/FlightRecorderDetail.hpp, versions 2.0 to 2.10.

Invariants
 1. An entry is the post of an operation. The rank waits for the first operation of a group that has not ended, because
    the operations of a group run one after the other.
 2. The begin and the end of an operation are not known well enough for verdicts about speed: a thread records them that
    looks only from time to time, and Gloo records only that an operation has ended. The recording is marked as UNTIMED.
 3. A dump does not contain its own time. The time of the file is taken, unless it can't be right.
 4. The members of a process group are those in the dump. If it has none (Gloo), those that have used the group are all
    of them, provided that an operation of the group has ended for all of these. Otherwise they are unknown.
 5. All dumps are of one run: made within APART of each other, and most operations were posted within LAG of each
    other. A dump for which this does not hold is left out: it may be an older run's, or its host's clock is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from statistics import median_high, median_low
from typing import Any

from ...core.units import span
from ..capture import format
from ..model.events import NO_PEER, OPEN, Flag, Op
from . import plain_pickle
from .foreign import Call, ForeignCommunicator, ForeignError, ForeignJob, ForeignRank, by_rank, size_of
from .operations import operation, width

DAY = 86400 * 10**9
APART, LAG = 600 * 10**9, 60 * 10**9  # ns
EARLIEST, LATEST = 10**18, 1 << 62  # ns since 1970
_RANK = re.compile(r"(\d+)(?:\.[A-Za-z]\w*)*$")
_MESSAGE = re.compile(r"(?:send|recv) (\d+)(?:->|<-)(\d+)")


def is_dump(data: Any) -> bool:
    """Return whether this is a dump, as JSON or a pickle has it."""
    return isinstance(data, Mapping) and "entries" in data and "version" in data


def parsed(path: Path, content: bytes) -> Mapping[str, Any]:
    """Return the dump in a pickle. Raises ForeignError."""
    try:
        data = plain_pickle.loads(content)
    except plain_pickle.CodeError as error:
        raise ForeignError(
            f"{path}: refused: this pickle contains code ({error}); a Flight Recorder's doesn't"
        ) from None
    except ValueError as error:
        raise ForeignError(f"{path}: damaged or truncated ({str(error)[:80]})") from None
    if not is_dump(data):
        raise ForeignError(f"{path}: no dump of a Flight Recorder")
    return checked(path, data)


def checked(path: Path, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the dump if this version of the format is known. Raises ForeignError."""
    if str(data["version"]).partition(".")[0] != "2" or not isinstance(data["entries"], Sequence):
        raise ForeignError(f"{path}: a dump of version {data['version']}; this manapy reads version 2")
    return data


def job(dumps: Iterable[tuple[Path, Mapping[str, Any]]], ranks: int | None = None) -> ForeignJob:
    """Return the job of these dumps. ranks: how many it had, if they do not say so. Raises ForeignError."""
    notes: list[str] = []
    stated: dict[str, ForeignCommunicator] = {}
    found, left_out = [], dict[str, int]()
    gaps = []
    for path, data in dumps:
        if not data["entries"]:  # no operation was recorded, or only those that had not ended
            notes.append(f"{path}: a dump without entries, which is left out")
            continue
        _groups(path, data, stated)
        rank, gap = _rank(path, data, left_out)
        found.append(rank)
        gaps.append(gap)
    ordered = by_rank(found)
    size = size_of(ordered, stated.values(), _stated(stated.values()), ranks)
    if size is None:
        raise ForeignError("Gloo's dumps do not say how many ranks the job had: give --ranks N")
    ordered = _one_run(ordered, notes) if ordered else ordered
    groups: dict[Hashable, ForeignCommunicator] = {
        name: ForeignCommunicator(
            stated[name].members or _members(name, stated[name], ordered, size), stated[name].name
        )
        for name in stated
    }
    notes += [
        f"{count} calls of {name} are left out: manapy does not know this operation" for name, count in left_out.items()
    ]
    known = [gap for gap in gaps if gap is not None]
    if len(known) < len(gaps):
        notes.append(
            "the times of the files can't be those of the dumps: it is not known how long ranks have waited "
            "(copy dumps together with their times: cp -p, rsync -t)"
        )
        for rank in ordered.values():
            rank.until = max(call.enter for call in rank.calls) if rank.calls else rank.until
    elif known:
        notes.append(f"dumped {span(max(known))} after the last call, by the times of the files")
    return ForeignJob(format.UNTIMED, size, ordered, groups, notes)


def _one_run(ranks: Mapping[int, ForeignRank], notes: list[str]) -> dict[int, ForeignRank]:
    """Return the ranks whose dumps are of the newest run (invariant 5). Adds notes on the others."""
    posts: dict[tuple[Hashable, int], list[tuple[int, int]]] = {}
    for rank in ranks.values():
        for call in rank.calls:
            if call.seq:
                posts.setdefault((call.group, call.seq), []).append((call.enter, rank.rank))
    away: dict[int, list[int]] = {}
    most = max(map(len, posts.values()), default=0)  # of two ranks, it is not known whose times are wrong
    for made in (made for made in posts.values() if len(made) == most):
        usual = median_high(at for at, _ in made)
        for at, number in made:
            away.setdefault(number, []).append(at - usual)
    newest = median_high(rank.until for rank in ranks.values())
    kept = {}
    for number, rank in ranks.items():
        dumped, posted = rank.until - newest, median_low(away.get(number, [0]))
        if abs(dumped) <= APART and abs(posted) <= LAG:
            kept[number] = rank
            continue
        offset = posted if abs(posted) > LAG else dumped
        notes.append(
            f"{rank.source} is left out: its times are {span(abs(offset))} {'after' if offset > 0 else 'before'} those "
            "of the other dumps (another run's, or a wrong clock?)"
        )
    return kept


# ---- process groups


def _groups(path: Path, data: Mapping[str, Any], stated: dict[str, ForeignCommunicator]) -> None:
    """Add the process groups of one dump. Raises ForeignError if another dump has other members for one of them."""
    config = data.get("pg_config")
    for key, one in config.items() if isinstance(config, Mapping) else ():
        if not isinstance(one, Mapping):
            raise ForeignError(f"{path}: pg_config is damaged")
        members = tuple(map(int, re.findall(r"\d+", str(one.get("ranks", "")))))
        name = str(one.get("name", key))
        if members and (before := stated.get(name)) and before.members and before.members != members:
            raise ForeignError(f"{path}: its process group {name} has other members than in another dump: two jobs?")
        if members:
            stated[name] = ForeignCommunicator(members, _title(name, one.get("desc")))
    for entry in data["entries"]:
        name, text = _group(entry)
        stated.setdefault(name, ForeignCommunicator((), text))


def _stated(groups: Iterable[ForeignCommunicator]) -> int | None:
    """Return the size of the job by the members of its default group, or of the largest one."""
    largest = max((group for group in groups if group.members), key=lambda group: max(group.members), default=None)
    return max(largest.members) + 1 if largest is not None else None


def _group(entry: Any) -> tuple[str, str]:
    """Return the name and the title of an entry's process group."""
    group = entry.get("process_group") if isinstance(entry, Mapping) else None
    if not isinstance(group, Sequence) or len(group) != 2:
        return "", ""
    return str(group[0]), _title(str(group[0]), group[1])


def _title(name: str, description: Any) -> str:
    """Return what sentences call a process group."""
    return str(description) if description and description != "undefined" else f"process group {name}"


def _members(name: str, group: ForeignCommunicator, ranks: Mapping[int, ForeignRank], size: int) -> tuple[int, ...]:
    """Return the members of a process group of which no dump has a list (invariant 4)."""
    if group.name == "default_pg":
        return tuple(range(size))
    ended: dict[int, set[int]] = {}
    used = set()
    for rank in ranks.values():
        waits = {call.request for call in rank.calls if call.op == Op.WAIT}
        mine = [call for call in rank.calls if call.group == name and call.seq]
        first = min((call.seq for call in mine if call.request in waits), default=1 << 62)
        for call in mine:
            used.add(rank.rank)
            if call.seq < first:
                ended.setdefault(call.seq, set()).add(rank.rank)
    return tuple(sorted(used)) if any(ranks == used for ranks in ended.values()) else ()


# ---- entries


def _rank(path: Path, data: Mapping[str, Any], left_out: dict[str, int]) -> tuple[ForeignRank, int | None]:
    """Return the recording of one rank, and the time between its last call and the file's time, ns (None: the file's
    time is impossible)."""
    match = _RANK.search(path.name)
    if match is None:
        raise ForeignError(f"{path}: its name does not end with the number of its rank, as in nccl_trace_rank_3")
    entries = [_Entry(path, i, entry) for i, entry in enumerate(data["entries"])]
    _coalesce(entries)
    calls: list[Call] = []
    pending: dict[Hashable, Call] = {}
    last: dict[Hashable, int] = {}
    for entry in entries:
        if not entry.counts:
            continue
        if entry.op is None:
            left_out[entry.name] = left_out.get(entry.name, 0) + 1
            continue
        call = entry.call()
        calls.append(call)
        last[call.thread] = call.enter
        if not entry.done:
            pending.setdefault(call.thread, call)
    calls += [
        Call(Op.WAIT, last[thread], OPEN, call.group, thread=thread, request=call.request)
        for thread, call in pending.items()
    ]
    newest = max(max(entry.created, entry.completed) for entry in entries)
    written = path.stat().st_mtime_ns
    gap = written - newest if newest <= written <= newest + DAY else None
    return (
        ForeignRank(
            int(match[1]),
            str(path),
            calls,
            newest if gap is None else written,
            since=min(entry.created for entry in entries) if entries[0].record > 0 else 0,
            place=entries[-1].place(),
        ),
        gap,
    )


class _Entry:
    """One entry of a dump.

    op: the operation; None: it is not known.
    counts: it is an operation of its own, not a part of a coalesced collective or the end of a coalesced group.
    done: it has ended.
    """

    def __init__(self, path: Path, index: int, entry: Any) -> None:
        if not isinstance(entry, Mapping):
            raise ForeignError(f"{path}: entry {index} is damaged")
        self._entry, self._where = entry, f"{path}: entry {index}"
        self.name = str(entry.get("profiling_name", ""))
        self.group = _group(entry)[0]
        self.record, self.created = self._number("record_id"), self._number("time_created_ns")
        self.completed = self._number("time_discovered_completed_ns")
        self.seq = self._number("collective_seq_id")
        self.p2p = bool(entry.get("is_p2p"))
        if not EARLIEST <= self.created < LATEST or self.completed >= LATEST:
            raise ForeignError(f"{self._where}: its time is impossible: {self.created} ns since 1970")
        self.op = operation(self.name)
        self.counts = self.op is not None or not self.name.endswith("coalesced")
        # equal for the operations of a coalesced group
        self.coalesced = (self.p2p, self._number("p2p_seq_id") if self.p2p else self.seq)
        # NCCL retires entries that were aborted, too
        self.done = bool(
            entry.get("state") == "completed"
            or self.completed
            or (entry.get("retired") and not self.name.startswith("nccl"))
        )

    def _number(self, key: str) -> int:
        """Return a number, or 0 if there is none."""
        value = self._entry.get(key)
        try:
            found = int(value or 0)
        except (TypeError, ValueError, OverflowError):
            found = -1
        if not 0 <= found < 1 << 62:
            raise ForeignError(f"{self._where}: {key} is no possible number")
        return found

    def call(self) -> Call:
        """Return the post of the operation."""
        assert self.op is not None
        peers = _MESSAGE.search(self.name)
        message = self.op in (Op.SEND, Op.RECV) and peers is not None
        return Call(
            self.op,
            self.created,
            self.created,
            self.group,
            peer=int(peers[2]) if message and peers else NO_PEER,
            tag=0 if message else -1,
            bytes=self._bytes(),
            seq=0 if message else self.seq,
            thread=(self.group, self.op, peers[2]) if message and peers else self.group,
            request=self.record + 1,
            flags=Flag.NONBLOCKING,
        )

    def place(self) -> str:
        """Return where in the program it was called: `step in /home/me/train.py:44`; "" if that is not recorded."""
        frames = self._entry.get("frames")
        for frame in frames if isinstance(frames, Sequence) else ():
            if isinstance(frame, Mapping) and "/torch/" not in str(frame.get("filename", "")):
                return f"{frame.get('name')} in {frame.get('filename')}:{frame.get('line')}"
        return ""

    def _bytes(self) -> int:
        sizes, kinds = (self._entry.get(key) or () for key in ("input_sizes", "input_dtypes"))
        try:
            return (
                sum(prod(map(int, size)) * width(kind) for size, kind in zip(sizes, kinds, strict=False))
                & (1 << 63) - 1
            )
        except (TypeError, ValueError):
            return 0


def _coalesce(entries: list[_Entry]) -> None:
    """Give the operations of a coalesced group the state of the group's own entry, which follows them. Collectives that
    were coalesced are one collective: only its own entry counts."""
    for at, group in enumerate(entries):
        if not group.name.endswith("coalesced"):
            continue
        for one in (entries[i] for i in range(at - 1, -1, -1) if entries[i].group == group.group):
            if one.coalesced != group.coalesced or one.name.endswith("coalesced"):
                break
            one.done = group.done
            one.counts = one.p2p or group.op is None

"""Spare blocks of the images on local storage: which hosts make them, and who rebuilds the images of a lost host.

Invariants
 1. An image is rebuilt only if no host and no other level has it.
 2. Blocks that are lost are made where the images of their member are now: a group is again on as many hosts as it has
    members.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...redundancy.stripes import StripeGroup
from ...store import levels, publish
from ...store.levels import Code

Order = Callable[..., Coroutine[Any, Any, list[str]]]


def groups(code: Code | None) -> list[StripeGroup]:
    """Return the groups of hosts of a checkpoint."""
    if code is None:
        return []
    return [StripeGroup(number, tuple(members), code.spare) for number, members in enumerate(code.groups)]


class StripeBlock(NamedTuple):
    """A block that a host has: its number in its stripe; a folder and an offset in its stream, or a file."""

    number: int
    host: str
    path: str
    offset: int | None = None


class Protect:
    """``order(host, verb, *words)`` gives an order to a host. ``job``: the job directory."""

    def __init__(self, job: Path, order: Order) -> None:
        self._job, self._order = job, order

    async def encode(
        self,
        root: str,
        name: str,
        made: Sequence[StripeGroup],
        at: Mapping[str, str],
        entries: Sequence[publish.Entry],
        have: Iterable[str] = (),
    ) -> None:
        """Make the spare blocks of a checkpoint, except those that exist. ``at``: the host that has the images of a
        folder, and gets its blocks. Raises CheckpointError."""
        sizes, places = folder_sizes(entries), await self._places(at.values())
        where = {"root": root, "job": str(self._job), "name": name, "places": list(places.values())}
        orders = []
        for group in made:
            size = group.block_bytes(sizes)
            for index, member in enumerate(group.members):
                blocks = []
                for stripe, number in group.held(index):
                    if (path := group.spare_name(stripe, number)) not in have:
                        sources = _found(_givers(group, stripe, at, size), places)
                        blocks.append({"path": path, "wanted": number, "from": sources})
                if blocks:
                    orders.append(self._give(at[member], "encode", group, size, {**where, "blocks": blocks}))
        await _all(orders)

    async def rebuild(
        self, checkpoint: Path, manifest: publish.Manifest, lost: Sequence[str], at: Mapping[str, str],
        spare: Mapping[str, str], onto: Mapping[str, str],
    ) -> list[str]:  # fmt: skip
        """Make the images of lost folders again, as far as that is possible. ``at``, ``spare``: the hosts that have the
        existing complete folders and spare blocks. ``onto``: the host that gets the images of a folder. Returns the
        folders. Raises CheckpointError."""
        sizes, places = folder_sizes(manifest.ranks), await self._places({*at.values(), *spare.values()})
        where = {"checkpoint": str(checkpoint), "job": str(self._job), "places": list(places.values())}
        done, orders = [], []
        for group in groups(manifest.levels.code):
            size = group.block_bytes(sizes)
            for index, member in enumerate(group.members):
                if member not in lost:
                    continue
                blocks: list[dict[str, Any]] = []
                for stripe in group.stripes(index):
                    sources = [*_givers(group, stripe, at, size), *_spares(group, stripe, spare)][: group.data]
                    wanted = group.givers(stripe).index(index)
                    blocks.append({"wanted": wanted, "from": _found(sources, places)})
                if any(len(block["from"]) < group.data for block in blocks):
                    continue
                order = {**where, "folder": member, "blocks": blocks}
                orders.append(self._give(onto[member], "rebuild", group, size, order))
                done.append(member)
        await _all(orders)
        return done

    async def _give(self, host: str, verb: str, group: StripeGroup, size: int, order: dict[str, Any]) -> list[str]:
        order = {**order, "code": (group.data, group.spare), "bytes": size}
        return await self._order(host, verb, json.dumps(order, separators=(",", ":")))

    async def _places(self, hosts: Iterable[str]) -> dict[str, list[str]]:
        """Where hosts give blocks away: address and port."""
        named = sorted(set(hosts))
        answers = await _all([self._order(host, "offer") for host in named])
        return dict(zip(named, answers, strict=True))


def folder_sizes(entries: Iterable[publish.Entry]) -> dict[str, int]:
    """The bytes of the images of each folder."""
    sizes: dict[str, int] = {}
    for entry in entries:
        folder = levels.folder(entry)
        sizes[folder] = sizes.get(folder, 0) + entry.file_bytes
    return sizes


def whole(entries: Sequence[publish.Entry], near: Mapping[str, set[int]]) -> dict[str, str]:
    """A host for each folder that it has completely. ``near``: the ranks whose images each host has."""
    found = {}
    for folder in folder_sizes(entries):
        ranks = {entry.rank for entry in levels.in_folder(entries, folder)}
        if host := next((host for host, some in near.items() if ranks <= some), None):
            found[folder] = host
    return found


def spare_hosts(
    made: Iterable[StripeGroup], entries: Iterable[publish.Entry], found: Mapping[str, Mapping[str, int]]
) -> dict[str, str]:
    """A host for each spare block. ``found``: the blocks and sizes that each host has; others than the right size are
    left out."""
    sizes = folder_sizes(entries)
    right = {
        group.spare_name(stripe, number): group.block_bytes(sizes)
        for group in made
        for member in range(len(group.members))
        for stripe, number in group.held(member)
    }
    return {name: host for host, some in found.items() for name, size in some.items() if right.get(name) == size}


def _givers(group: StripeGroup, stripe: int, at: Mapping[str, str], size: int) -> list[StripeBlock]:
    """The blocks of data of a stripe that are there."""
    named = ((number, index, group.members[index]) for number, index in enumerate(group.givers(stripe)))
    return [
        StripeBlock(number, at[member], member, group.stripes(index).index(stripe) * size)
        for number, index, member in named
        if member in at
    ]


def _spares(group: StripeGroup, stripe: int, spare: Mapping[str, str]) -> list[StripeBlock]:
    """The spare blocks of a stripe that are there."""
    named = ((number, group.spare_name(stripe, number)) for number in range(group.data, len(group.members)))
    return [StripeBlock(number, spare[path], path) for number, path in named if path in spare]


def _found(blocks: Iterable[StripeBlock], places: Mapping[str, list[str]]) -> list[list[Any]]:
    """Return blocks in the form that orders have: number, number of the host, path, offset."""
    numbers = {host: number for number, host in enumerate(places)}
    return [[block.number, numbers[block.host], block.path, block.offset] for block in blocks]


async def _all(orders: Sequence[Coroutine[Any, Any, list[str]]]) -> list[list[str]]:
    """Return the answers of all hosts, when all have answered. Raises the first CheckpointError."""
    done = await asyncio.gather(*orders, return_exceptions=True)
    for result in done:
        if isinstance(result, BaseException):
            raise result
    return [result for result in done if not isinstance(result, BaseException)]

"""After a restart: recreates copies and spare blocks of the continued checkpoint that were lost with hosts, while the
ranks run. So the job survives the loss of another host before its next checkpoint.

Invariants
 1. Nothing is deleted or replaced: a failure leaves the checkpoint as it was.
 2. Each member of a group has its images and its spare blocks on a host of its own, if there are as many hosts.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from ....core.errors import CheckpointError
from ...redundancy.policy import Policy
from ...redundancy.stripes import StripeGroup
from ...store import levels, publish
from . import protect
from .storage import Storage

log = logging.getLogger(__name__)


class Reprotect:
    """The repair of one checkpoint's protection. ``now``: the host of each rank. ``near``: the ranks whose images each
    host has. ``spare``: the spare blocks of each host, and their sizes."""

    def __init__(
        self,
        checkpoint: Path,
        manifest: publish.Manifest,
        now: Mapping[int, str],
        near: Mapping[str, set[int]],
        spare: Mapping[str, Mapping[str, int]],
        storage: Storage,
    ) -> None:
        self._checkpoint, self._manifest, self._storage = checkpoint, manifest, storage
        self._now, self._near, self._spare = now, near, spare
        self._hosts = list(dict.fromkeys(now[rank] for rank in sorted(now)))

    async def run(self) -> None:
        """Raises CheckpointError."""
        if self._manifest.levels.partner:
            await self._copy()
        for group in protect.groups(self._manifest.levels.code):
            await self._encode(group)

    async def _copy(self) -> None:
        """Each image on two hosts."""
        partners = Policy("partner").partners(self._hosts, self._storage.sets)
        moves = []
        for entry in self._manifest.ranks:
            have = [host for host in self._hosts if entry.rank in self._near[host]]
            if have and not any(partners[one] in have for one in have):
                moves.append((have[0], partners[have[0]], entry.image))
        await self._move(moves)
        log.info("%s: %d lost copies were recreated", self._checkpoint, len(moves))

    async def _encode(self, group: StripeGroup) -> None:
        """All spare blocks of a group."""
        at = self._homes(group)
        moves = []
        for member, home in at.items():
            for entry in levels.in_folder(self._manifest.ranks, member):
                if entry.rank not in self._near[home]:
                    source = next((host for host in self._hosts if entry.rank in self._near[host]), None)
                    if source is None:  # it was read from the shared level
                        return
                    moves.append((source, home, entry.image))
        await self._move(moves)
        size = group.block_bytes(protect.folder_sizes(self._manifest.ranks))
        there = [
            name
            for index, member in enumerate(group.members)
            for name in (group.spare_name(*block) for block in group.held(index))
            if self._spare[at[member]].get(name) == size
        ]
        root = self._manifest.levels.local
        await self._storage.protect.encode(root, self._checkpoint.name, [group], at, self._manifest.ranks, there)
        made = len(group.members) * group.spare - len(there)
        log.info("%s: %d lost spare blocks were recreated", self._checkpoint, made)

    def _homes(self, group: StripeGroup) -> dict[str, str]:
        """A host for each member of a group, if possible one that has its images (invariant 2)."""
        at: dict[str, str] = {}
        members = {member: levels.in_folder(self._manifest.ranks, member) for member in group.members}
        for member, entries in members.items():
            ranks = {entry.rank for entry in entries}
            first = self._now[entries[0].rank]
            free = [host for host in self._hosts if host not in at.values()]
            if not free:
                raise CheckpointError(f"its images were on {len(group.members)} hosts, and now there are fewer")
            at[member] = max(
                free, key=lambda host: (ranks <= self._near[host], host == first, len(ranks & self._near[host]))
            )
        return at

    async def _move(self, moves: Sequence[tuple[str, str, str]]) -> None:
        await self._storage.move(moves, self._manifest.levels.local, self._checkpoint.name)

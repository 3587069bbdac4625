"""What --redundancy means: which hosts have copies, or spare blocks, of the images of which other hosts.

    none       nothing
    partner    each host's images are also on one other host
    xor        groups of up to 8 hosts; each group survives the loss of one host
    rs:K+M     groups of up to K+M hosts; each group survives the loss of M hosts (Reed-Solomon)

Invariants
 1. Groups are as large as allowed, and their sizes differ by at most one host. If there are too few hosts for that,
    there is one larger group, which survives the loss that the user has asked for.
 2. Hosts that fail together, the sets, are spread: no group has more hosts of a set than it can lose, and no partner is
    of the same set.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...core.errors import CheckpointError
from . import code

XOR_HOSTS = 8


class Policy(NamedTuple):
    """The option. ``spare``: how many hosts a group may lose; ``size``: hosts of a group."""

    text: str = "none"
    size: int = 0
    spare: int = 0

    @property
    def partner(self) -> bool:
        """Are images copied to another host?"""
        return self.text == "partner"

    def partners(self, hosts: Sequence[str], sets: Mapping[str, str]) -> dict[str, str]:
        """The partner of each host. ``sets``: the name of the set of each host that is in one. Raises
        CheckpointError."""
        if len(hosts) < 2:
            raise CheckpointError("--redundancy partner needs ranks on at least two hosts")
        name, most = _largest(hosts, sets)
        if 2 * most > len(hosts):
            raise CheckpointError(
                f"--redundancy partner: {most} of {len(hosts)} hosts fail together ({name}), and the others are too few"
                " to be their partners"
            )
        ordered = _by_set(hosts, sets)
        return dict(zip(ordered, [*ordered[most:], *ordered[:most]], strict=True))

    def groups(self, hosts: Sequence[str], sets: Mapping[str, str]) -> list[list[str]]:
        """The groups of hosts, if there are spare blocks. Raises CheckpointError."""
        if not self.spare:
            return []
        if len(hosts) <= self.spare:
            raise CheckpointError(f"--redundancy {self.text} needs ranks on at least {self.spare + 1} hosts")
        most_groups = len(hosts) // (self.spare + 1)
        name, largest = _largest(hosts, sets)
        if -(-largest // most_groups) > self.spare:
            raise CheckpointError(
                f"--redundancy {self.text}: {largest} of {len(hosts)} hosts fail together ({name}), and the groups of"
                f" hosts survive the loss of {self.spare} each: use rs:K+M with a larger M, or more hosts"
            )
        count = min(-(-len(hosts) // self.size), most_groups)
        count = max(count, -(-largest // self.spare))
        ordered = _by_set(hosts, sets)
        return [ordered[i::count] for i in range(count)]


def parse(text: str) -> Policy:
    """Raises ValueError if it is not a value of --redundancy."""
    if text in ("none", "partner"):
        return Policy(text)
    if text == "xor":
        return Policy(text, XOR_HOSTS, 1)
    if (match := re.fullmatch(r"rs:(\d+)\+(\d+)", text)) and int(match[1]) and int(match[2]):
        size = int(match[1]) + int(match[2])
        if size <= code.BLOCKS_MAX:
            return Policy(text, size, int(match[2]))
    raise ValueError(f"--redundancy needs none, partner, xor or rs:K+M, not {text}")


def _set_of(host: str, sets: Mapping[str, str]) -> tuple[bool, str]:
    return (True, sets[host]) if host in sets else (False, host)


def _largest(hosts: Sequence[str], sets: Mapping[str, str]) -> tuple[str, int]:
    ((_, name), number) = Counter(_set_of(host, sets) for host in hosts).most_common(1)[0]
    return name, number


def _by_set(hosts: Sequence[str], sets: Mapping[str, str]) -> list[str]:
    """Hosts of a set beside each other."""
    order: dict[tuple[bool, str], list[str]] = {}
    for host in hosts:
        order.setdefault(_set_of(host, sets), []).append(host)
    return [host for some in order.values() for host in some]

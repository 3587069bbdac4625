"""Hosts that fail together, as a file names them (--failure-groups):

    # comment
    rack1: n001 n002 n003
    rack2: n004 n005

A name without a domain also means the host of that name in any domain.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...core.errors import CheckpointError, explained


def read(path: Path, hosts: Sequence[str]) -> dict[str, str]:
    """The name of the set of each of these hosts that is in one. Raises CheckpointError if the file is wrong, or names
    none of them."""
    with explained(CheckpointError):
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{path}: not a text: {error}") from error
    named: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, colon, members = line.partition("#")[0].partition(":")
        if not name.strip() and not colon:
            continue
        if not name.strip() or not members.split():
            raise CheckpointError(f"{path}: line {number} is not NAME: HOST HOST ...")
        for host in members.split():
            if named.setdefault(host, name.strip()) != name.strip():
                raise CheckpointError(f"{path}: line {number}: {host} is also in {named[host]}: a host has one group")
    found = {host: named.get(host, named.get(host.partition(".")[0], "")) for host in hosts}
    if not any(found.values()):
        raise CheckpointError(f"{path} names none of the job's hosts, such as {hosts[0]}")
    return {host: name for host, name in found.items() if name}

"""Rows of `manapy trace top` in groups: ranks that do the same, so that thousands of ranks fit a screen.

Invariants
 1. Each rank is in one group. A rank that is alone in what it does has a group of its own.
 2. All groups tell calls apart in the same detail: the finest one (DETAILS) that gives few enough groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from .rank_rows import Rdma, Row


@dataclass(frozen=True)
class RankGroup:
    """Ranks that do the same.

    common: what they do. `rank` and `host` are those of the first, `since_ns` is the largest one, `calls_s` and
    `waited` are means, `sent_s` and `rdma` are sums; `awaited_by` is 0 if it differs.
    """

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    common: Row


# What must agree within a group: the whole call, the function, or the state alone.
DETAILS: tuple[Callable[[Row], Row], ...] = (
    lambda row: Row(0, "", row.state, None, row.call, row.waits_for, row.awaited_by, row.iteration),
    lambda row: Row(0, "", row.state, call=row.call.partition(" ")[0], iteration=row.iteration),
    lambda row: Row(0, "", row.state),
)


def groups(rows: Sequence[Row], most: int) -> list[RankGroup]:
    """Return the groups, the most conspicuous first: at most `most`, or else one for each state."""
    found: dict[Row, list[Row]] = {}
    for detail in DETAILS:
        found = {}
        for row in rows:
            found.setdefault(detail(row), []).append(row)
        if len(found) <= most:
            break
    return sorted((_group(key, members) for key, members in found.items()), key=lambda group: group.common.conspicuous)


def _group(key: Row, members: list[Row]) -> RankGroup:
    ranks = tuple(sorted(row.rank for row in members))
    hosts = tuple(dict.fromkeys(row.host for row in members if row.host))
    rdma = [row.rdma for row in members if row.rdma is not None]
    common = replace(
        key,
        rank=ranks[0],
        host=hosts[0] if hosts else "",
        since_ns=_of(max, members, "since_ns"),
        awaited_by=members[0].awaited_by if len({row.awaited_by for row in members}) == 1 else 0,
        calls_s=_of(fmean, members, "calls_s"),
        waited=_of(fmean, members, "waited"),
        sent_s=_of(sum, members, "sent_s"),
        rdma=Rdma(*map(sum, zip(*((one.pairs, one.in_flight, one.posted_s) for one in rdma), strict=True)))
        if rdma
        else None,
    )
    return RankGroup(ranks, hosts, common)


def _of(sum_up: Callable[[list[Any]], Any], members: list[Row], name: str) -> Any:
    """Return a sum or a mean of what is known; None if nothing is."""
    known = [value for row in members if (value := getattr(row, name)) is not None]
    return sum_up(known) if known else None

"""Amounts of memory, durations and lists as text, for tables and for sentences."""

from __future__ import annotations

from collections.abc import Sequence


def size(value: float, decimals: int = 1) -> str:
    """Bytes in decimal units: 12.3 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.{decimals}f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def amount(count: int) -> str:
    """Bytes of memory in binary units: 12.3 MiB."""
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count} bytes"


def span(nanoseconds: float) -> str:
    """A duration, from ns to minutes: 3.2 ms, 12 s."""
    for unit, length in (("ns", 1e3), ("µs", 1e6), ("ms", 1e9)):
        if nanoseconds < length:
            return f"{nanoseconds / (length / 1e3):.3g} {unit}"
    seconds = nanoseconds / 1e9
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def ago(seconds: float) -> str:
    """A rough duration, from seconds to days: 3 min."""
    for unit, length in (("s", 60.0), ("min", 60.0), ("h", 24.0)):
        if seconds < length:
            return f"{seconds:.0f} {unit}"
        seconds /= length
    return f"{seconds:.0f} d"


def ranges(ranks: Sequence[int], room: int) -> str:
    """A list of ascending ranks, such as 0-63, 65. A list that is longer than ``room`` characters is cut."""
    parts: list[str] = []
    length = 0
    first = previous = ranks[0]
    for rank in [*ranks[1:], -1]:
        if rank == previous + 1:
            previous = rank
            continue
        part = str(first) if first == previous else f"{first}-{previous}"
        if parts and length + len(part) > room:
            return ", ".join(parts) + ", …"
        parts.append(part)
        length += len(part) + 2
        first = previous = rank
    return ", ".join(parts)


def message_size(count: int) -> str:
    """Bytes of a message, in powers of two: 4 B, 1 KB, 1 MB."""
    return f"{count >> 20} MB" if count >= 1 << 20 else f"{count >> 10} KB" if count >= 1 << 10 else f"{count} B"


def first_and_more(names: Sequence[object], first: int = 1, what: str = "") -> str:
    """The first names, and how many more there are: a, b and 3 more WHAT."""
    more = f" and {len(names) - first} more{f' {what}' if what else ''}" if len(names) > first else ""
    return ", ".join(map(str, names[:first])) + more


def and_more(found: Sequence[object], hint: str) -> str:
    """What follows the first of several sentences: (and 3 moreHINT). Nothing if it is the only one."""
    return f" (and {len(found) - 1} more{hint})" if len(found) > 1 else ""

"""Amounts of memory, spans of time and lists as text, for tables and sentences alike."""

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
    """A list of ascending ranks, such as 0-63, 65. The end of one that is longer than ``room`` characters is left
    out."""
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


def first_and_more(names: Sequence[str]) -> str:
    """The first name, and how many more there are."""
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else "".join(names)

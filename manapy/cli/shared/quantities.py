"""Numbers with units on the command line: 200MB, 10Gbit/s, 30B parameters, 1 %."""

from __future__ import annotations

import argparse
import math
import re

_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BINARY = {f"{prefix}i": 1024.0**power for power, prefix in enumerate("kMGT", 1)} | {"Ki": 1024.0}
_COUNT = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}


def size(text: str) -> int:
    """Bytes, more than 0: 200MB, 48G, 512GiB."""
    found = _number(text, {**_DECIMAL, **_BINARY}, "B?")
    if found is None or found < 1:
        raise argparse.ArgumentTypeError(f"not a size such as 200MB or 48GiB: '{text}'")
    return round(found)


def bandwidth(text: str) -> float:
    """Bytes per second, more than 0. 10G and 10Gbit/s are in bits, as for networks; 32GB/s is in bytes, as for
    buses."""
    found = _number(text, _DECIMAL, "B/s")
    if found is None and (bits := _number(text, _DECIMAL, "(bit/s|bps)?")) is not None:
        found = bits / 8
    if found is None or found <= 0:
        raise argparse.ArgumentTypeError(f"not a bandwidth such as 10G (Gbit/s) or 32GB/s: '{text}'")
    return found


def count(text: str) -> float:
    """A number of things, more than 0: 30B, 1.5T, 350M, 7."""
    found = _number(text, _COUNT, "")
    if found is None or found <= 0:
        raise argparse.ArgumentTypeError(f"not a number such as 30B, 350M or 7: '{text}'")
    return found


def fraction(text: str) -> float:
    """A share of a whole, 0 to 1: 0.5, 50%."""
    found = _number(text.removesuffix("%"), {"": 0.01 if text.endswith("%") else 1.0}, "")
    if found is None or found > 1:
        raise argparse.ArgumentTypeError(f"not a share such as 0.5 or 50%: '{text}'")
    return found


def _number(text: str, factors: dict[str, float], unit: str) -> float | None:
    """The value of a number with one of the prefixes and then the unit, a regular expression; None if it is none."""
    prefixes = "|".join(map(re.escape, sorted(factors, key=len, reverse=True)))
    found = re.fullmatch(rf"(?P<number>\d+(\.\d+)?(e\d+)?) ?(?P<prefix>{prefixes}){unit}", text, re.ASCII)
    value = float(found["number"]) * factors[found["prefix"]] if found else math.inf
    return value if math.isfinite(value) else None

"""Numbers with units."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest
from manapy.cli.shared import quantities


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (quantities.size, "200MB", 200_000_000),
        (quantities.size, "48G", 48_000_000_000),
        (quantities.size, "1.5 kB", 1500),
        (quantities.size, "2GiB", 2**31),
        (quantities.size, "7", 7),
        (quantities.bandwidth, "10G", 1.25e9),
        (quantities.bandwidth, "10Gbit/s", 1.25e9),
        (quantities.bandwidth, "100Mbps", 12.5e6),
        (quantities.bandwidth, "32GB/s", 32e9),
        (quantities.count, "30B", 30e9),
        (quantities.count, "1.5T", 1.5e12),
        (quantities.count, "7e9", 7e9),
        (quantities.fraction, "0.25", 0.25),
        (quantities.fraction, "25%", 0.25),
        (quantities.fraction, "0", 0),
    ],
)
def test_values(kind: Callable[[str], float], text: str, value: float) -> None:
    assert kind(text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (kind, text)
        for kind in (quantities.size, quantities.bandwidth, quantities.count, quantities.fraction)
        for text in ("", "-1", "x", "1X", "nan", "inf", "1e999", "1 2", "٣")
    ]
    + [
        (quantities.size, "0"),
        (quantities.size, "1.5.2GB"),
        (quantities.bandwidth, "0G"),
        (quantities.bandwidth, "10GB"),
        (quantities.count, "0"),
        (quantities.count, "30GB"),
    ]
    + [(quantities.fraction, "1.01"), (quantities.fraction, "101%"), (quantities.fraction, "%")],
)
def test_what_is_none(kind: Callable[[str], float], text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not a "):
        kind(text)

"""Numbers with units."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest
from manapy.cli import _quantities


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (_quantities.size, "200MB", 200_000_000),
        (_quantities.size, "48G", 48_000_000_000),
        (_quantities.size, "1.5 kB", 1500),
        (_quantities.size, "2GiB", 2**31),
        (_quantities.size, "7", 7),
        (_quantities.bandwidth, "10G", 1.25e9),
        (_quantities.bandwidth, "10Gbit/s", 1.25e9),
        (_quantities.bandwidth, "100Mbps", 12.5e6),
        (_quantities.bandwidth, "32GB/s", 32e9),
        (_quantities.count, "30B", 30e9),
        (_quantities.count, "1.5T", 1.5e12),
        (_quantities.count, "7e9", 7e9),
        (_quantities.fraction, "0.25", 0.25),
        (_quantities.fraction, "25%", 0.25),
        (_quantities.fraction, "0", 0),
    ],
)
def test_values(kind: Callable[[str], float], text: str, value: float) -> None:
    assert kind(text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [(kind, text) for kind in (_quantities.size, _quantities.bandwidth, _quantities.count, _quantities.fraction) for text in ("", "-1", "x", "1X", "nan", "inf", "1e999", "1 2", "٣")]
    + [(_quantities.size, "0"), (_quantities.size, "1.5.2GB"), (_quantities.bandwidth, "0G"), (_quantities.bandwidth, "10GB"), (_quantities.count, "0"), (_quantities.count, "30GB")]
    + [(_quantities.fraction, "1.01"), (_quantities.fraction, "101%"), (_quantities.fraction, "%")],
)
def test_what_is_none(kind: Callable[[str], float], text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not a "):
        kind(text)

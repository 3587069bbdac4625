"""Emulated nodes: the counters of their interfaces agree with the closed forms of sharded training for a collective."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import emulated
import pytest
from jobs import PROGRAMS
from manapy.bench.shared.cluster import Cluster
from manapy.fcdp.costs import all_gather, bytes_per_node

NAMES = emulated.names(2)
RANKS = 2  # of a node
SIZE, TIMES = 8 * 2**20, 4


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with emulated.cluster(NAMES, bits=1e9) as nodes:
        yield nodes


@pytest.mark.parametrize(("how", "collective"), [("hierarchical", "hierarchical"), ("flat", "ring")])
def test_bytes_at_the_interfaces(how: str, collective: str, nodes: Cluster) -> None:
    """At least the closed form, and at most a tenth more because of headers and mpirun's own messages."""
    said, sent = emulated.sent_by(
        nodes, RANKS, [sys.executable, PROGRAMS / "fcdp/gather_over_nodes.py", how, str(SIZE), str(TIMES)]
    )
    assert said.splitlines()[-1] == "ok 2", said
    expected = TIMES * all_gather(SIZE, 2, RANKS, collective).inter
    assert all(expected <= each <= 1.1 * expected for each in sent), (sent, expected)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fcdp", "zero3", "mics"])
def test_bytes_of_training_at_the_interfaces(strategy: str, nodes: Cluster) -> None:
    """The engine's count equals the closed form, and the bytes that really leave the node agree except for a tenth:
    nothing is sent that isn't counted."""
    steps, micro_batches = 4, 2
    said, sent = emulated.sent_by(
        nodes, RANKS, [sys.executable, PROGRAMS / "fcdp/fcdp_wide.py", strategy, str(micro_batches), str(steps)]
    )
    counted = json.loads(said)
    weights = 4 * counted["parameters"]
    expected = steps * bytes_per_node(strategy, 2, RANKS, weights, 0, weights, micro_batches).total.inter
    assert counted["nodes"] == 2 and counted["sent"] == pytest.approx(expected, rel=0.01)
    assert all(expected <= each <= 1.1 * expected for each in sent), (sent, expected)


def test_links_are_shaped_at_both_ends(nodes: Cluster) -> None:
    for namespace, device in (
        (NAMES[0], "eth0"),
        (NAMES[1], "eth0"),
        (f"{NAMES[0]}-switch", "port1"),
        (f"{NAMES[0]}-switch", "port2"),
    ):
        said = subprocess.run(
            ["tc", "-n", namespace, "qdisc", "show", "dev", device], capture_output=True, text=True, check=True
        ).stdout
        assert said.startswith("qdisc tbf") and "rate 1Gbit " in said, said


def test_nothing_is_left() -> None:
    """Also when the test fails: neither the nodes nor their switch nor their files remain."""
    names = [f"{name}x" for name in NAMES]
    with pytest.raises(ZeroDivisionError), emulated.cluster(names) as nodes:
        assert len(nodes.sent()) == 2
        raise ZeroDivisionError
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert not any(name in left for name in names) and not any(os.path.exists(f"/etc/netns/{name}") for name in names)

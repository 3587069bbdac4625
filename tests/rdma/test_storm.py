"""Random failures: harmless on unused rails, and noticed on rails in use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from rounds import rounds
from vm import VM, VMError
from vm.pairs import PATIENT, Pair
from vm.shift import PAUSE
from vm.storm import Storm


def test_elsewhere(rdma_vm: VM, rdma_program: Callable[[str], Path]) -> None:
    calm = ("--pause", PAUSE)
    pair = Pair.start(rdma_vm, rdma_program("stamps.c"), "-n", 10**9, "--progress", 10, *calm, *PATIENT)
    storm, failures = Storm(rdma_vm, seed=1, rails=(1, 2), delay=0), rounds(5, 20)
    storm.rage(pair, failures)
    assert sum("failure" in step for step in storm.steps) == sum("repair" in step for step in storm.steps) == failures
    pair.stop_sending()
    pair.finish()
    states = rdma_vm.run("rdma link", check=True).stdout
    assert states.count("state ACTIVE") == 6


def test_here(rdma_vm: VM, rdma_program: Callable[[str], Path]) -> None:
    pair = Pair.start(rdma_vm, rdma_program("stamps.c"), "-n", 10**9, "--progress", 10)
    with pytest.raises(VMError, match=r"(?s)seed 2\nfailure 1: .*ended with 1 before"):
        Storm(rdma_vm, seed=2, rails=(0, 1), hows=("switch",)).rage(pair, failures=8)


def test_one_must_remain() -> None:
    with pytest.raises(ValueError, match="one rail must remain"):
        Storm(VM(), seed=1, rails=(0, 1), together=2).rage(None, 1)  # type: ignore[arg-type]

"""The machine with RDMA devices (tools/vm), one for all tests. All processes that a test has started in it are ended
after it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from compiling import STRICT, build
from vm import VM, ImageError, VMDied, missing, shift
from vm.machine import PATIENCE

PROGRAMS = Path(__file__).resolve().parent.parent / "programs" / "rdma"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that use the machine get its marker, and time for the slow emulation."""
    for item in items:
        if "rdma_machine" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.rdma_vm)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(3 * PATIENCE))


@pytest.fixture(scope="session")
def rdma_share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory into which both this machine and the virtual one write, at the same path. Files that tests make for
    the guest belong here: the guest may not see changes elsewhere."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="session")
def rdma_machine(rdma_share: Path) -> Iterator[VM]:
    """The machine itself; tests ask for `rdma_vm`."""
    if reason := missing():
        pytest.skip(reason)
    machine = VM([rdma_share])
    yield machine
    machine.stop()


@pytest.fixture(scope="module")
def shared_agent(rdma_machine: VM) -> Iterator[None]:
    """The tests of one module share SHIFT's agent, if they need one."""
    yield
    shift.end_agent(rdma_machine)


@pytest.fixture
def rdma_vm(rdma_machine: VM, shared_agent: None) -> Iterator[VM]:
    """The machine, running, with all its rails intact. If a test has let it die, the next one gets a new one."""
    with contextlib.suppress(VMDied):
        if rdma_machine.alive and rdma_machine.failed:
            rdma_machine.repair()
    if not rdma_machine.alive:
        _boot(rdma_machine)
    yield rdma_machine
    if rdma_machine.alive:
        agent = shift.agent(rdma_machine)
        for process in rdma_machine.running():
            if process is not agent:
                process.kill()


@pytest.fixture
def shared_path(rdma_share: Path, request: pytest.FixtureRequest) -> Path:
    """Like tmp_path, but visible to the guest."""
    path = rdma_share / "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    path.mkdir(exist_ok=True)
    return path


@pytest.fixture(scope="session")
def rdma_program(rdma_share: Path) -> Callable[[str], Path]:
    """Compiles a program of programs/rdma with libibverbs, for the guest."""
    if not Path("/usr/include/infiniband/verbs.h").exists():
        pytest.skip("no infiniband/verbs.h (apt install libibverbs-dev)")

    def program(name: str) -> Path:
        target = rdma_share / Path(name).stem
        if not target.exists():
            build(target, PROGRAMS / name, *STRICT, "-pthread", "-libverbs")
        return target

    return program


@pytest.fixture
def stamps(rdma_program: Callable[[str], Path]) -> Path:
    """The checker of messages (programs/rdma/stamps.c)."""
    return rdma_program("stamps.c")


@pytest.fixture(scope="session")
def interposer() -> None:
    """For tests of libmanapy_shift.so."""
    if not shift.LIBRARY.exists() and not os.environ.get("MANAPY_PREFIX"):
        pytest.skip(
            "manapy was built without libmanapy_shift.so (apt install libibverbs-dev, then install manapy again)"
        )


def _boot(machine: VM) -> None:
    try:
        machine.boot()
    except ImageError as error:
        pytest.skip(str(error))
    except VMDied:  # once more: on a busy machine, an emulated one may take its own slowness for a hang
        machine.boot()

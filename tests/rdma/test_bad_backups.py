"""SHIFT with unsuitable backups: one clear line each, and traffic on the default path is not affected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from vm import VM
from vm.pairs import Pair
from vm.shift import BACKUPS, LIBRARY, environment, events, finish, messages, start, wait_event

pytestmark = pytest.mark.usefixtures("interposer")


def limited(bytes_: int) -> list[str | Path]:
    """The words before a program that may lock only so much memory (root may lock any amount, unless the capability is
    removed)."""
    return ["prlimit", f"--memlock={bytes_}", "setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"]


def run_well(pair: Pair) -> None:
    """All its messages arrive."""
    for process in pair.both:
        process.wait_for("\nok\n")
        assert process.wait() == 0, process.report()


@pytest.mark.parametrize(
    "backups, line", [("nosuch0", "nosuch0 can't be a backup: there is no such RNIC here"), ("rxa0,rxb0", None)]
)
def test_no_backup(rdma_vm: VM, stamps: Path, backups: str, line: str | None) -> None:
    pair = Pair.start(rdma_vm, stamps, "-n", 300, env=environment(rdma_vm, backups))
    run_well(pair)
    for process in pair.both:
        if line:
            assert any(line in said for said in messages(process)), process.report()


def test_smaller_mtu(rdma_vm: VM, stamps: Path) -> None:
    """Traffic continues in smaller packets."""
    rdma_vm.run("ip link set ea1 mtu 1500 && ip link set eb1 mtu 1500", check=True)
    try:
        pair = start(rdma_vm, stamps)
        rdma_vm.cut(0)
        wait_event(pair, "fallback")
        pair.wait_received(100, since=pair.received())
        rdma_vm.repair(0)
        wait_event(pair, "return")
        pair.stop_sending()
        run_well(pair)
        assert messages(pair.client) == [
            "manapy shift: rxa1 has a smaller MTU than rxa0: traffic on it uses 1024 bytes"
        ]
    finally:
        rdma_vm.run("ip link set ea1 mtu 4200 && ip link set eb1 mtu 4200", check=True)


def test_no_gid_of_the_kind(rdma_vm: VM, stamps: Path) -> None:
    """Only its IPv6 address is left, and the default RNIC uses IPv4."""
    rdma_vm.run("ip address del 10.0.1.1/24 dev ea1", check=True)
    try:
        env = environment(rdma_vm) | {"MANAPY_SHIFT_VERBOSE": "1"}
        pair = Pair.start(rdma_vm, stamps, "-n", 300, env=env)
        run_well(pair)
        assert messages(pair.client) == [
            "manapy shift: rxa1 can't be a backup: it has no GID of the kind that the default RNIC uses (RoCE "
            "version; IPv4 or IPv6)"
        ]
        assert not events(pair.client, "protected") and not events(pair.server, "protected")
    finally:
        rdma_vm.run("ip address add 10.0.1.1/24 dev ea1", check=True)
        rdma_vm.repair(1)  # deleting an address also deletes its routes


def test_agent_unreachable(rdma_vm: VM, stamps: Path) -> None:
    alone = {
        "LD_PRELOAD": str(LIBRARY),
        "MANAPY_SHIFT_AGENT": "/nonexistent/agent",
        "MANAPY_SHIFT_JOB": "alone",
        "MANAPY_SHIFT_BACKUP": BACKUPS,
    }
    pair = Pair.start(rdma_vm, stamps, "-n", 300, env=alone)
    run_well(pair)
    for process in pair.both:
        (line,) = messages(process)
        assert line.startswith("manapy shift: the key-value agent does not answer (") and line.endswith(
            "): new connections are not protected until it does"
        )


def test_memory_refused(rdma_vm: VM, stamps: Path) -> None:
    """The limit is enough for the program, but not also for the backup."""
    pair = Pair.start(rdma_vm, stamps, "-n", 1000, inside=limited(3_500_000), env=environment(rdma_vm))
    run_well(pair)
    for process, device in zip(pair.both, ("rxb1", "rxa1"), strict=True):
        assert messages(process) == [
            f"manapy shift: {device} cannot register memory (Cannot allocate memory): requests that use it cannot "
            f"move to a backup"
        ]


def test_memory_given_back(rdma_vm: VM, rdma_program: Callable[[str], Path]) -> None:
    """The program gets the memory that backups have locked when it needs it."""
    program = [*limited(9_000_000), rdma_program("late_memory.c"), "rxa0", "3000000", "4000000"]
    done = rdma_vm.run(program, env=environment(rdma_vm))
    assert done.returncode == 0 and done.stdout == "ok\n", done
    assert (
        "manapy shift: lockable memory is exhausted: registrations on the backups of rxa0 are released; " in done.stderr
    ), done


@pytest.fixture
def few_objects(rdma_vm: VM) -> Iterator[str]:
    """A group of processes that may have 4 objects (queue pairs, completion queues, regions ...) on rxa1; the path of
    its tasks file."""
    group = "/sys/fs/cgroup/few"
    rdma_vm.run(
        f"mount -o remount,rw /sys/fs/cgroup; echo +rdma > /sys/fs/cgroup/cgroup.subtree_control; mkdir {group} && "
        f"echo rxa1 hca_object=4 > {group}/rdma.max",
        check=True,
    )
    yield f"{group}/cgroup.procs"
    rdma_vm.run(f"for p in $(cat {group}/cgroup.procs); do echo $p > /sys/fs/cgroup/cgroup.procs; done; rmdir {group}")


def test_objects_used_up(rdma_vm: VM, stamps: Path, few_objects: str) -> None:
    """The backup RNIC has no queue pairs left."""
    inside = ["bash", "-c", f'echo $$ > {few_objects}; exec "$0" "$@"']
    pair = Pair.start(rdma_vm, stamps, "-n", 1000, inside=inside, env=environment(rdma_vm))
    run_well(pair)
    assert any(line.startswith("manapy shift: rxa1 ") for line in messages(pair.client)), pair.client.report()


def test_limits_leave_other_connections_alone(rdma_vm: VM, stamps: Path) -> None:
    """Afterwards a connection with a good backup is protected as usual."""
    pair = start(rdma_vm, stamps)
    finish(pair)

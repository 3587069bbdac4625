"""SHIFT under real verbs: traffic of unmodified programs survives the failure of its rail. The checker
(programs/rdma/stamps.c) finds every message that is lost, doubled, out of order or wrong, and every error that a
program sees."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rounds import rounds
from vm import VM, GuestProcess
from vm.machine import PATIENCE
from vm.pairs import PATIENT, Pair
from vm.shift import (
    MANAPY,
    PAUSE,
    SHARED,
    THREE,
    count,
    environment,
    events,
    finish,
    inside,
    messages,
    start,
    wait_event,
)
from vm.storm import Storm
from waiting import until

ALL = "send,imm,write,flag,read"
FULL_SPEED = ("--pause", 0)  # messages without pauses, so that a failure comes in the middle of many

pytestmark = pytest.mark.usefixtures("interposer")


def carried(vm: VM, rail: int) -> int:
    """The number of packets that this rail has delivered to host b."""
    return vm.counter(f"rxb{rail}", "rcvd_pkts")


def goes_over(vm: VM, pair: Pair, rail: int) -> None:
    """Check that the next messages and their acknowledgements use this rail. What the hosts report may be late, so the
    first ones may still have come over another rail."""
    before = carried(vm, rail)
    pair.wait_received(50, since=pair.received())
    wait_carried(vm, rail, before + 50)


def wait_carried(vm: VM, rail: int, packets: int) -> None:
    """Wait until the rail has delivered so many packets."""
    until(lambda: carried(vm, rail) >= packets, f"{packets} packets on rail {rail}", PATIENCE)


def times_away(process: GuestProcess) -> list[float]:
    """The seconds from each failure until the way back began."""
    moves = [event for event in events(process) if event["event"] in ("fallback", "return")]
    pairs = itertools.pairwise(moves)
    return [(move["begun"] - before["begun"]) / 1e9 for before, move in pairs if move["event"] == "return"]


@pytest.mark.parametrize("how, host", [("switch", None), ("cable", "a"), ("netem", "b"), ("admin-down", "a")])
def test_there_and_back(rdma_vm: VM, stamps: Path, how: str, host: str | None) -> None:
    pair = start(rdma_vm, stamps, "--kinds", ALL, pairs=2)
    rdma_vm.cut(0, host, how=how)
    wait_event(pair, "fallback", 2)
    goes_over(rdma_vm, pair, 1)
    rdma_vm.repair(0)
    wait_event(pair, "return", 2)
    goes_over(rdma_vm, pair, 0)
    finish(pair)


@pytest.fixture
def addresses(rdma_vm: VM) -> Iterator[Callable[[str, str], None]]:
    """Takes host a's addresses on rail 0 away, and gives it others, in order. In the end host a has only its own
    address, with its first GID."""
    gids = "/sys/class/infiniband/rxa0/ports/1/gids"
    own = "route replace 10.0.0.2 dev ea0 src 10.0.0.1 table 110"  # deleting an address also deletes its routes
    ways = f"ip {own}; ip neigh replace 10.0.0.2 lladdr 02:00:00:00:00:02 dev ea0 nud permanent"

    def give(script: str, indices: str) -> None:
        gone = f"ip address flush dev ea0; while grep -q ffff:0a00:0001 {gids}/[0-9]; do sleep 0.05; done"
        there = f"until grep -q ffff:0a00:0001 {gids}/{indices}; do sleep 0.05; done"
        rdma_vm.run(f"{gone}; {script}; {ways}; {there}", check=True)

    yield give
    give("ip address add 10.0.0.1/24 dev ea0", "1")


def test_an_address_comes_back_behind_another(rdma_vm: VM, stamps: Path, addresses: Callable[[str, str], None]) -> None:
    """Its GID then has another index in the table, and the way back finds it there."""
    pair = start(rdma_vm, stamps, "--kinds", ALL, pairs=2)
    rdma_vm.cut(0)
    wait_event(pair, "fallback", 2)
    addresses("ip address add 10.0.9.9/24 dev ea0; ip address add 10.0.0.1/24 dev ea0", "[2-9]")
    rdma_vm.repair(0)
    wait_event(pair, "return", 2)
    goes_over(rdma_vm, pair, 0)
    finish(pair)


@pytest.mark.parametrize(
    "options",
    [
        "--events",
        "-q 4 --cq all --threads 2",
        "--signal-every 1000 --depth 16",
        "-q 2 --pause 20",
        "--srq -q 3 --cq all --events",
        "--wr --pieces 1 --ex-poll 1 --events",
    ],
)
def test_ways_of_using_verbs(rdma_vm: VM, stamps: Path, options: str) -> None:
    pair = start(rdma_vm, stamps, *FULL_SPEED, *options.split())
    storm = Storm(rdma_vm, seed=len(options), rails=(0, 1), hows=("switch", "netem"))
    storm.rage(pair, failures=rounds(1, 4))
    finish(pair)


@pytest.mark.slow
def test_storm(rdma_vm: VM, stamps: Path) -> None:
    pair = start(rdma_vm, stamps, *FULL_SPEED, "--kinds", ALL, "--cq", "all", pairs=2)
    Storm(rdma_vm, seed=1, rails=(0, 1)).rage(pair, failures=rounds(6, 10))
    finish(pair)
    assert all(len(events(process, "fallback")) >= 2 for process in pair.both)


@pytest.mark.parametrize("rail, options", [(0, ""), (1, "--one-way")])
def test_cut_off(rdma_vm: VM, stamps: Path, rail: int, options: str) -> None:
    """There is no path at all for longer than all retries take. The two hosts find each other again on either path,
    also if only one of them sends. How long there is no path depends on the load of this machine, so the hosts may wait
    as long as necessary."""
    pair = start(rdma_vm, stamps, "--kinds", ALL, *options.split(), pairs=2, wait=10 * PATIENCE)
    rdma_vm.cut(0)
    rdma_vm.cut(1)
    with rdma_vm.changed:
        noticed = rdma_vm.changed.wait_for(
            lambda: any(count(process, "cut-off") or process.poll() is not None for process in pair.both), PATIENCE
        )
    assert noticed, pair.client.report() + pair.server.report()
    before, received = carried(rdma_vm, rail), pair.received()[0]
    rdma_vm.repair(rail)
    pair.server.wait_for(lambda _: pair.received()[0] >= received + 50)
    wait_carried(rdma_vm, rail, before + 50)
    finish(pair)


def test_idle_on_the_backup(rdma_vm: VM, stamps: Path) -> None:
    """Requests without a later signaled one have no completion. Their queue pair must not be taken for stuck because
    nothing follows."""
    pair = start(rdma_vm, stamps, "--kinds", "write", "--one-way", "--pause", 3000, "--progress", 1)
    rdma_vm.cut(0)
    wait_event(pair, "fallback")
    received = pair.received()[0]
    pair.server.wait_for(lambda _: pair.received()[0] >= received + 6)
    for process in pair.both:
        assert not events(process, "stuck"), process.report()
    finish(pair)


def test_memory_registered_on_the_backup(rdma_vm: VM, stamps: Path) -> None:
    """Each message is sent at once from memory that was just registered. On the backup it waits until the memory is
    registered there, too."""
    pair = start(rdma_vm, stamps, "--kinds", ALL, "--fresh", *PATIENT)
    rdma_vm.cut(0)
    wait_event(pair, "fallback")
    pair.wait_received(50, since=pair.received())
    rdma_vm.repair(0)
    wait_event(pair, "return")
    pair.wait_received(50, since=pair.received())
    finish(pair)


def test_stuck(rdma_vm: VM, stamps: Path) -> None:
    """Soft-RoCE never finishes a fenced READ whose request was lost, and reports no error (soft-roce.md). SHIFT notices
    that."""
    pair = start(rdma_vm, stamps, "--kinds", "read,write", "--fence", *PATIENT)
    rdma_vm.cut(0, how="netem", loss=5)
    with rdma_vm.changed:
        noticed = rdma_vm.changed.wait_for(lambda: any(events(process, "stuck") for process in pair.both), PATIENCE)
    assert noticed, pair.client.report() + pair.server.report()
    rdma_vm.repair(0)
    pair.wait_received(50, since=pair.received())
    finish(pair)


def test_waiting_for_receives(rdma_vm: VM, stamps: Path) -> None:
    """A sender may wait for the receiver for any time: that is no failure."""
    pair = start(rdma_vm, stamps, "--kinds", "send", "--one-way", "--rest", 10000, *PATIENT)
    pair.server.wait_for(lambda _: pair.received()[0] > 100)
    for process in pair.both:
        assert not events(process, "stuck") and not events(process, "fallback"), process.report()
    finish(pair)


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--srq"]], ids=["own receives", "shared receives"])
def test_many(rdma_vm: VM, stamps: Path, options: list[str]) -> None:
    """Many queue pairs on one completion queue, to the backup and back: more than switch at once, and more than fit
    into a request to the agent (64). Also on one shared receive queue, whose receives must move there and back, too.

    The pause leaves the emulated processors time for the agent, which has to find all peers."""
    pairs = rounds(100, 400)
    small = ["--pause", 200, "--kinds", "send,imm,write", "--size", 1024, "--depth", 2]
    pair = start(rdma_vm, stamps, *small, "--cq", "all", "--timeout", 16, "--retry", 6, *options, pairs=pairs)
    rdma_vm.cut(0)
    wait_event(pair, "fallback", pairs)
    pair.wait_received(50, since=pair.received())
    rdma_vm.repair(0)
    wait_event(pair, "return", pairs)
    pair.wait_received(50, since=pair.received())
    finish(pair)


@pytest.mark.slow
def test_cut_during_set_up(rdma_vm: VM, stamps: Path) -> None:
    """Some connections are protected on both sides, some only on one, some not yet: none is lost."""
    env = environment(rdma_vm) | {"MANAPY_SHIFT_VERBOSE": "1"}
    many = ["-n", 10**9, "--progress", 10, "--cq", "all", *PATIENT, "-q", 20]
    pair = Pair.start(rdma_vm, stamps, *many, env=env)
    wait_event(pair, "protected", 10)
    rdma_vm.cut(0)
    wait_event(pair, "fallback", 20)
    pair.wait_received(50, since=pair.received())
    finish(pair)


@pytest.mark.slow
def test_two_backups(rdma_vm: VM, stamps: Path) -> None:
    pair = start(rdma_vm, stamps, "--kinds", ALL, backups=THREE)
    rdma_vm.cut(0)
    wait_event(pair, "fallback", 1)
    rdma_vm.cut(1)
    wait_event(pair, "fallback", 2)
    assert events(pair.client, "fallback")[-1]["device"] == "rxa2"
    pair.wait_received(50, since=pair.received())
    rdma_vm.repair()
    wait_event(pair, "return", 1)
    finish(pair)


def test_lost_acknowledgements(rdma_vm: VM, stamps: Path) -> None:
    """The receiver has executed what the sender believes failed: nothing may arrive twice."""
    pair = start(rdma_vm, stamps, "--one-way", "--kinds", "send,imm,write")
    for times in (1, 2, 3):
        rdma_vm.cut(0, "b", how="netem")  # b receives, but its answers are lost
        wait_event(pair, "fallback", times)
        before = pair.received()[0]
        pair.server.wait_for(lambda _, before=before: pair.received()[0] > before)
        rdma_vm.repair(0)
        wait_event(pair, "return", times)
    finish(pair)


def test_only_probes_get_through(rdma_vm: VM, stamps: Path) -> None:
    """A switch drops large packets to host b. Probes are small, so the path seems to work, and fails as soon as it has
    traffic. Each time SHIFT leaves it alone for twice as long, and traffic is on the backup meanwhile. When the path
    works again, traffic returns and stays."""
    # b itself must not send large packets then: the sender of a packet that a veth drops tries for ever (soft-roce.md).
    large = "ip link set sb0 mtu {}"
    pair = start(rdma_vm, stamps, "--one-way", "--kinds", "send,imm,write,flag")
    before = carried(rdma_vm, 1)
    rdma_vm.run(large.format(1000), check=True)
    try:
        wait_event(pair, "fallback", 4)
        wait_carried(rdma_vm, 1, before + 100)
    finally:
        rdma_vm.run(large.format(4200), check=True)
    wait_event(pair, "return", count(pair.client, "fallback"))
    away = [times_away(process) for process in pair.both]
    longer = map(max, zip(*away, strict=False))  # a side that is told of a failure learns of it later
    assert [time >= 0.2 * 2**i for i, time in zip(range(4), longer, strict=False)] == [True] * 4, away
    before, received = carried(rdma_vm, 0), pair.received()[0]
    pair.server.wait_for(lambda _: pair.received()[0] >= received + 100)
    wait_carried(rdma_vm, 0, before + 100)
    assert count(pair.client, "return") == count(pair.client, "fallback")
    finish(pair)


def test_nothing_left(rdma_vm: VM, stamps: Path) -> None:
    """Both rails are down for good: the program soon sees what it would see without SHIFT."""
    pair = start(rdma_vm, stamps, wait=5)
    rdma_vm.cut(0)
    rdma_vm.cut(1)
    said = pair.fail()  # the second one to fail may see only that the other side has gone
    words = ("a connection of rx", "is lost: ", "transport retry counter exceeded")
    assert any(all(word in text for word in words) for text in said), said


def test_peer_without_shift(rdma_vm: VM, stamps: Path) -> None:
    common = ["-p", "18600", "-n", "1000000", "--progress", "10", "--pause", str(PAUSE)]
    server = rdma_vm.start([stamps, "-d", "rxb0", *common])
    server.wait_for("listening\n")
    client = rdma_vm.start([*inside(), stamps, "-d", "rxa0", "-c", "127.0.0.1", *common])
    pair = Pair(server, client)
    warning = (
        "manapy shift: a peer of rxa0 does not run under SHIFT (or without backups):"
        " connections to it are not protected\n"
    )
    with rdma_vm.changed:
        assert rdma_vm.changed.wait_for(lambda: client.stderr == warning, 60), client.report()
    pair.wait_received(50, since=pair.received())
    rdma_vm.cut(0)
    assert any("transport retry counter exceeded" in text for text in pair.fail())


def test_not_protected(rdma_vm: VM, stamps: Path) -> None:
    """What can't be protected works as usual, and is reported once."""
    run = ["ib_send_bw", "-c", "UD", "-F", "-x", "1", "-s", "1024", "-n", "200", "-q", "2"]
    server = rdma_vm.start([*run, "-d", "rxb0"], env=environment(rdma_vm))
    rdma_vm.listening(18515)
    client = rdma_vm.start([*run, "-d", "rxa0", "127.0.0.1"], env=environment(rdma_vm))
    for process in (server, client):
        assert process.wait() == 0, process.report()
        warning = "manapy shift: queue pairs of another type than RC are not protected"
        assert messages(process).count(warning) == 1, process.report()


def test_shared_receives_on_two_paths(rdma_vm: VM, stamps: Path) -> None:
    """One queue pair of a shared receive queue is moved away, and the others stay. Then the path of those fails. Then
    all go back. Each has receives."""
    pair = start(rdma_vm, stamps, "--srq", "--cq", "all", "--depth", 32, pairs=3)
    client = events(pair.client)[0]
    move = [MANAPY, "rdma", "move", SHARED, str(client["pid"])]
    rdma_vm.run([*move, "rxa1", "--qp", str(client["qp"])], check=True)
    wait_event(pair, "fallback", 1)
    pair.wait_received(150, since=pair.received())
    rdma_vm.cut(0)
    wait_event(pair, "fallback", 3)
    pair.wait_received(150, since=pair.received())
    rdma_vm.repair(0)
    wait_event(pair, "return", 2)
    pair.wait_received(150, since=pair.received())
    rdma_vm.run([*move, "rxa0"], check=True)
    wait_event(pair, "return", 3)
    pair.wait_received(150, since=pair.received())
    finish(pair)


def test_without_the_agent(rdma_vm: VM, stamps: Path) -> None:
    """Once connections are protected, the agent may die."""
    pair = start(rdma_vm, stamps, "--kinds", ALL, job="orphans")
    named, any_agent = (rdma_vm.run(f"pgrep -f '{what}'") for what in ("rdma agent --group orphans", "rdma agent"))
    agent = named.stdout.split() or any_agent.stdout.split()
    assert agent
    rdma_vm.run(["kill", "-9", *agent], check=True)
    rdma_vm.cut(0)
    wait_event(pair, "fallback")
    pair.wait_received(50, since=pair.received())
    rdma_vm.repair(0)
    wait_event(pair, "return")
    finish(pair)


@pytest.mark.slow
def test_moved_by_hand(rdma_vm: VM, stamps: Path) -> None:
    """`manapy rdma move` takes traffic off a rail that works, and it stays there until it is moved back."""
    pair = start(rdma_vm, stamps)
    client = str(events(pair.client)[0]["pid"])
    rdma_vm.run([MANAPY, "rdma", "move", SHARED, client, "rxa1"], check=True)
    wait_event(pair, "fallback")
    before, other = carried(rdma_vm, 1), carried(rdma_vm, 0)
    pair.wait_received(200, since=pair.received())
    wait_carried(rdma_vm, 1, before + 200)
    assert carried(rdma_vm, 0) < other + 50
    assert not events(pair.client, "return")
    assert "rxa1" in rdma_vm.run([MANAPY, "rdma", "status", SHARED], check=True).stdout
    rdma_vm.run([MANAPY, "rdma", "move", SHARED, client, "rxa0"], check=True)
    wait_event(pair, "return")
    finish(pair)


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["ib_write_bw", "ib_send_bw", "ib_read_bw"])
def test_perftest(rdma_vm: VM, tool: str, stamps: Path) -> None:
    """perftest, unmodified, through a failure and back; then it stays there (its server never goes to RTS, so it has no
    packet number)."""
    env = environment(rdma_vm) | {"MANAPY_SHIFT_VERBOSE": "1"}
    run = [tool, "-F", "-x", "1", "-s", "4096", "-D", "600", "-f", "0", "-u", "16"]
    server = rdma_vm.start([*run, "-d", "rxb0"], env=env)
    rdma_vm.listening(18515)
    client = rdma_vm.start([*run, "-d", "rxa0", "127.0.0.1"], env=env)
    pair = Pair(server, client)
    wait_event(pair, "protected")
    rdma_vm.cut(0)
    wait_event(pair, "fallback")
    rdma_vm.repair(0)
    wait_event(pair, "return")
    for process in pair.both if tool == "ib_send_bw" else (client,):
        process.signal(signal.SIGALRM)  # perftest takes it for the end of its time (-D)
    for process in pair.both:
        assert process.wait() == 0, process.report()
        moves = [event["event"] for event in events(process) if event["event"] in ("fallback", "return")]
        assert moves == ["fallback", "return"], process.report()

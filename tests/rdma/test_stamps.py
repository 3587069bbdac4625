"""The checker of messages, without manapy: it passes where nothing fails, it finds every mistake, and it fails when its
rail does."""

from __future__ import annotations

from pathlib import Path

import pytest
from rounds import rounds
from vm import VM
from vm.pairs import PATIENT, Pair
from vm.shift import PAUSE

ALL = "send,imm,write,flag,read"

WAYS = [
    "-n 200",
    *[f"-n 200 --kinds {kind}" for kind in ALL.split(",")],
    f"-n 200 --kinds {ALL} -q 4",
    "-n 200 -q 4 --srq",
    "-n 200 -q 4 --threads 2 --cq two",
    f"-n 200 -q 4 --threads 2 --cq all --srq --kinds {ALL}",
    "-n 200 -q 4 --threads 2 --cq thread --events",
    f"-n 200 -q 3 --threads 3 --cq all --events --kinds {ALL}",
    "-n 200 --wr --pieces 1",
    "-n 200 -q 2 --ex-poll 1 --events",
    "-n 200 -q 2 --wr --pieces 1 --ex-poll 1 --srq --cq all",
    "-n 500 --signal-every 1000 --depth 16",
    "-n 200 --signal-every 1 --inline 0 --depth 2",
    "-n 200 --one-way",
    "-n 200 --one-way --kinds send --events",
    "-n 20 --pause 50 --events",
    "-n 20 -q 60 --size 4096 --depth 4 --cq all --srq",
    f"-n 10 -q {rounds(200, 1000)} --size 1024 --depth 2 --cq thread --threads 2 --progress 1000",
    "--seconds 1",
]


@pytest.mark.parametrize("options", WAYS)
def test_passes(rdma_vm: VM, stamps: Path, options: str) -> None:
    before = rdma_vm.counter("rxa0", "sent_pkts")
    pair = Pair.start(rdma_vm, stamps, *options.split(), *PATIENT)
    pair.finish()
    assert rdma_vm.counter("rxa0", "sent_pkts") > before


@pytest.mark.parametrize(
    "fault, kinds, said",
    [
        ("again", "send", "message 49 (send) came instead of 50: a duplicate"),
        ("again", "write", "message 49 (write) came instead of 50: a duplicate"),
        ("skip", "flag", "message 51 (flag) came instead of 50: one is missing"),
        ("byte", "send", "of 35 is wrong"),
        ("byte", "flag", "of 35 is wrong"),
        ("late", "write", "behind its 35 has been written"),
        ("late", "flag", "behind its 35 has been written"),
        ("back", "write", "counter went back"),
    ],
)
def test_finds_mistakes(rdma_vm: VM, stamps: Path, fault: str, kinds: str, said: str) -> None:
    server, _ = Pair.start(rdma_vm, stamps, "--kinds", kinds, "--fault", fault, *PATIENT).fail()
    assert said in server


def test_stops_when_told(rdma_vm: VM, stamps: Path) -> None:
    pair = Pair.start(rdma_vm, stamps, "-n", 10**9, "-q", 2, *PATIENT)
    pair.wait_received(200)
    pair.stop_sending()
    pair.finish()


def test_bad_options(rdma_vm: VM, stamps: Path) -> None:
    for options, status, said in (
        ("-d rxa9 -c 127.0.0.1", 1, "error: connect to 127.0.0.1"),
        ("", 2, "stamps -d DEVICE"),
        ("-d rxa0 --kinds mail", 1, "--kinds: not mail"),
    ):
        done = rdma_vm.run([stamps, *options.split()])
        assert done.returncode == status and said in done.stderr


# ---- the effect of a cut rail on a program (the table for which the interposer is built)

RETRY_EXCEEDED = "send: transport retry counter exceeded (12)"
ENDLESS = ("-n", 10**9, "--kinds", "send,write")


@pytest.mark.parametrize(
    "how, host, event",
    [
        ("switch", None, ""),
        ("cable", "a", "a"),
        ("cable", "b", "b"),
        ("cable", None, "ab"),
        ("netem", "a", ""),
        ("netem", "b", ""),
        ("netem", None, ""),
    ],
)
def test_cut(rdma_vm: VM, stamps: Path, how: str, host: str | None, event: str) -> None:
    """The sender's first bad completion reports too many retries. The receiver's queue gets no event, and only the host
    that has lost the carrier gets an event of the port."""
    pair = Pair.start(rdma_vm, stamps, "--one-way", "-n", 10**9, "--kinds", "send")
    pair.server.wait_for("received 200\n")
    rdma_vm.cut(0, host, how=how)
    server, client = pair.fail()
    assert RETRY_EXCEEDED in client
    assert server == "error: the other side has gone\n"
    assert ("event port error" in pair.client.stdout) == ("a" in event)
    assert ("event port error" in pair.server.stdout) == ("b" in event)


@pytest.mark.parametrize("host", ["a", "b"])
def test_admin_down(rdma_vm: VM, stamps: Path, host: str) -> None:
    """The error varies. Sometimes there is none and traffic just stops; then the program's own patience ends it."""
    pair = Pair.start(rdma_vm, stamps, *ENDLESS, "--patience", 15)
    pair.wait_received(200)
    rdma_vm.cut(0, host, how="admin-down")
    pair.fail()


def test_loss(rdma_vm: VM, stamps: Path) -> None:
    """A loss of three percent is not a failure."""
    pair = Pair.start(rdma_vm, stamps, *ENDLESS, *PATIENT, "--progress", 10)
    rdma_vm.cut(0, how="netem", loss=3)
    pair.wait_received(200, since=pair.received())
    rdma_vm.repair(0)
    pair.stop_sending()
    pair.finish()


def test_endless_retries(rdma_vm: VM, stamps: Path) -> None:
    """rxe retries for ever with the default of perftest and UCX: no error, and traffic goes on after the repair."""
    pair = Pair.start(rdma_vm, stamps, *ENDLESS, "--retry", 7, "--timeout", 10)
    pair.wait_received(200)
    rdma_vm.cut(0, how="switch")
    before = _sent(rdma_vm)
    while _sent(rdma_vm) < before + 50:  # repeatedly, by the side that had not got an answer yet
        assert pair.client.poll() is None and pair.server.poll() is None, pair.client.report() + pair.server.report()
    rdma_vm.repair(0)
    pair.wait_received(200, since=pair.received())
    pair.stop_sending()
    pair.finish()


def test_other_rails(rdma_vm: VM, stamps: Path) -> None:
    """A cut rail doesn't affect other rails."""
    pair = Pair.start(rdma_vm, stamps, *ENDLESS, "--progress", 10, "--pause", PAUSE, *PATIENT)
    for rail, how in ((1, "switch"), (2, "cable"), (1, "netem"), (2, "admin-down")):
        rdma_vm.cut(rail, how=how)
        pair.wait_received(100, since=pair.received())
        rdma_vm.repair(rail)
    pair.stop_sending()
    pair.finish()


def _sent(vm: VM) -> int:
    return sum(vm.counter(device, "sent_pkts") for device in ("rxa0", "rxb0"))

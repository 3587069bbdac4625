"""The C control thread, in its own process (drivers/rank.c), with a scripted coordinator and with the real one."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from manapy.ckpt import protocol
from manapy.clock import WORLD
from manapy.core import handshake

PATIENCE = 120.0  # seconds to wait for an event that must happen, on a very busy machine
COMM = 0xABC0


class Process:
    """A driver process; its lines come through a queue."""

    def __init__(self, command: list[str], **options: object) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            **options,
        )  # type: ignore[call-overload]
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put("(end)")

    def expect(self, start: str) -> str:
        """The next line with this start; lines before it are dropped."""
        deadline = time.monotonic() + PATIENCE
        skipped = []
        while True:
            try:
                line = self.lines.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {start!r} but {skipped}") from None
            if line.startswith(start):
                return line
            skipped.append(line)
            if line == "(end)":
                raise AssertionError(f"ended without {start!r}: {skipped} {self.process.stderr.read()}")

    def order(self, text: str) -> None:
        """Send an order, and wait until it is carried out."""
        self.process.stdin.write(f"{text}\n")
        self.expect(f"ok {text.split(' ')[0]}")

    def start(self, text: str) -> None:
        """Send an order, and don't wait."""
        self.process.stdin.write(f"{text}\n")

    def look_until(self, start: str) -> None:
        """Look until the line that shows its phase has this start."""
        deadline = time.monotonic() + PATIENCE
        while True:
            self.start("look")
            if (line := self.expect("phase ")).startswith(start):
                return
            assert time.monotonic() < deadline, line

    def complaint(self) -> str:
        """The first line on standard error."""
        assert self.complains(PATIENCE), "it says nothing"
        return self.process.stderr.readline()

    def complains(self, seconds: float = 0.0) -> bool:
        """Has it written anything to standard error?"""
        return bool(select.select([self.process.stderr], [], [], seconds)[0])

    def end(self) -> int:
        """The program ends; its exit status."""
        self.process.stdin.close()
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Server:
    """A scripted coordinator for one rank."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.dir = directory
        self.secret = os.urandom(32)
        (directory / "secret").write_bytes(self.secret)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.connection: socket.socket | None = None
        self.seals: handshake.Seals | None = None

    def accept(self, secret: bytes | None = None) -> None:
        self.listener.settimeout(PATIENCE)
        self.connection, _ = self.listener.accept()
        self.connection.settimeout(PATIENCE)
        self.stream = self.connection.makefile("r", newline="\n")
        nonce = handshake.nonce()
        self.send(handshake.greeting(nonce))
        line = self.receive()
        admitted = handshake.admit(secret or self.secret, nonce, line)
        assert admitted is not None and admitted[0] == "rank"
        self.send(admitted[1])
        self.seals = handshake.seals(self.secret, handshake.greeting(nonce), line, client=False)

    def send(self, line: str) -> None:
        assert self.connection is not None
        data = line.encode() if self.seals is None else self.seals.seal(line.encode())
        self.connection.sendall(data + b"\n")

    def receive(self) -> str:
        line = self.stream.readline().rstrip("\n")
        return self.seals.open(line.encode()).decode() if self.seals is not None and line else line

    def expect(self, line: str) -> str:
        """Receive the next line, which must have this start."""
        got = self.receive()
        assert got.startswith(line), f"{got!r} instead of {line!r}"
        return got

    def quiet(self, seconds: float = 0.2) -> None:
        """No line comes. Never use this to wait: a line that comes later isn't noticed."""
        assert self.connection is not None
        self.connection.settimeout(seconds)
        with pytest.raises(TimeoutError):
            self.connection.recv(1, socket.MSG_PEEK)
        self.connection.settimeout(PATIENCE)

    def part(self) -> None:
        """Close the connection, and be ready for another one."""
        assert self.connection is not None
        self.stream.close()
        self.connection.close()
        self.seals = None

    def close(self) -> None:
        self.listener.close()
        if self.connection is not None:
            self.stream.close()
            self.connection.close()


class Pair:
    """A rank process and its server."""

    def __init__(self, server: Server, rank: Process) -> None:
        self.server, self.rank = server, rank

    def begin(self, epoch: int = 1, *targets: str) -> tuple[str, str]:
        """An epoch up to the rank's first state; targets are "CID:SEQ". Returns the rank's ROWS and STATE."""
        self.server.send(f"INTENT {epoch}")
        rows = self.server.expect(f"ROWS {epoch} ")
        self.server.send(" ".join([f"TARGETS {epoch} 0 {len(targets)}", *targets]))
        return rows, self.server.expect(f"STATE {epoch} ")

    def freeze(self, epoch: int = 1) -> None:
        """Freeze a rank that is at its targets, through the clock."""
        _, state = self.begin(epoch)
        version = state.split(" ")[2]
        self.server.send(f"FREEZE {epoch} {version}")
        self.server.expect(f"FROZEN {epoch} {version}")

    def step(self, kind: str, answer: str) -> None:
        self.server.send(kind)
        self.server.expect(answer)


@pytest.fixture
def start(tmp_path: Path, driver: Callable[[str], Path]) -> Iterator[Callable[..., Pair]]:
    """Starts a rank of a job with `size` ranks."""
    pairs: list[Pair] = []

    def make(*options: str, size: int = 4, rank: int = 0, accept: bool = True) -> Pair:
        server = Server(tmp_path / "job")
        process = Process(
            [
                str(driver("rank")),
                "--here",
                "127.0.0.1",
                str(server.port),
                str(server.dir),
                str(rank),
                str(size),
                *options,
            ]
        )
        pairs.append(Pair(server, process))
        if accept:
            server.accept()
            server.expect(f"HELLO {rank} {size} {socket.gethostname()} {process.process.pid} ")
            server.expect("PROGRAM none a%20program -")
        return pairs[-1]

    yield make
    for pair in pairs:
        pair.server.close()
        pair.rank.kill()


def test_whole_checkpoint(start: Callable[..., Pair]) -> None:
    pair = start()
    server, rank = pair.server, pair.rank
    rank.order(f"row {COMM:x} 5 rows:a,b")
    pair.step("CHECK 1 700", "CHECKED 1")
    rank.expect("grace 700")
    server.send("INTENT 1")
    rows = server.expect("ROWS 1 1 0 2 ")
    assert f"{COMM:016x}:0000000000000abc:5:0-3:1:rows%3aa%2cb" in rows
    assert f" {WORLD:016x}:" in rows and ":0:0-3:1:MPI_COMM_WORLD" in rows
    server.send("TARGETS 1 0 0")
    server.expect("STATE 1 2 2 0")
    server.send("FREEZE 1 2")
    server.expect("FROZEN 1 2")
    pair.step("STOP 1", "STOPPED 1")
    rank.expect("engine stop phase 3")
    pair.step("DRAIN 1", "DRAINED 1")
    target = server.dir / "tmp-1"
    target.mkdir()
    pair.step(protocol.join("WRITE", 1, str(target)), "WRITTEN 1 4096 15 7 0.250000 ")
    assert (target / "rank-00000.img").read_bytes() == b"image of rank 0"
    pair.step(protocol.join("WRITE", 1, str(target), "hash", 0, ""), "WRITTEN 1 4096 15 7 0.250000 ")
    rank.expect("tracks since 0 -")
    pair.step(protocol.join("WRITE", 1, str(target), "hash", 7, "../ckpt-000006"), "WRITTEN 1 4096 15 7 0.250000 ")
    rank.expect("tracks since 7 ../ckpt-000006")
    pair.step("RESUME 1 continue %2fckpt", "RESUMED 1")
    rank.expect("engine resume phase 0")
    rank.order("finished")
    server.expect("DONE 0")
    assert rank.end() == 0


def test_refused(start: Callable[..., Pair]) -> None:
    pair = start()
    pair.rank.order("fail check descriptor 7 is a socket: 100%")
    pair.step("CHECK 1 0", "REFUSED 1 descriptor%207%20is%20a%20socket%3a%20100%25")
    pair.rank.order("look")


def test_targets_raises_and_states(start: Callable[..., Pair]) -> None:
    pair = start()
    server, rank = pair.server, pair.rank
    rank.order(f"row {COMM:x} 5 x")
    rows, state = pair.begin(1, f"{COMM:016x}:7")
    assert rows.startswith("ROWS 1 1 0 2") and state.startswith("STATE 1 2 2 0")
    rank.start("look")
    rank.expect("phase 2")
    rank.expect(f"row {COMM:016x} seq 5 target 7")
    server.send("FREEZE 1 2")  # below target
    server.expect("NOTFROZEN 1 2")
    server.send("THAW 1")
    server.expect("STATE 1 3 4 0")
    rank.order(f"row {COMM:x} 6")  # not at target yet: no RAISE
    server.expect("STATE 1 4 4 0")
    rank.order(f"row {COMM:x} 7")
    server.expect(f"RAISE 1 5 {COMM:016x} 7")
    server.expect("STATE 1 5 4 0")
    rank.order(f"row {COMM:x} 9")
    server.expect(f"RAISE 1 6 {COMM:016x} 9")
    server.expect("STATE 1 6 4 0")
    server.send(f"TARGET 1 {COMM:016x} 11")
    server.expect("STATE 1 7 5 0")
    server.send("ADVANCE 1")
    server.expect("STATE 1 8")
    rank.start("look")
    assert rank.expect("phase 2") == "phase 2 needed 1 version 8 state 0"
    rank.order(f"state 1 {COMM:x} 3")
    server.expect(f"STATE 1 8 6 1 blocked:{COMM:016x}:all:3")
    rank.order(f"state 3 {COMM:x}")
    server.expect(f"STATE 1 8 6 1 parked:{COMM:016x}:all:-")
    rank.order(f"state 2 {COMM:x}")
    server.expect(f"STATE 1 9 6 1 collective:{COMM:016x}:all:-")
    server.send("WITHDRAW 1")
    server.expect("STATE 1 10 7 1 collective")
    server.send("ABORT 1 why")
    rank.look_until("phase 0 needed 0")
    server.quiet()


def test_retracted_call(start: Callable[..., Pair]) -> None:
    """A reported call is retracted. The rank reports that before its state. The next INTENT asks for everything again,
    also of a frozen rank."""
    pair = start()
    server, rank = pair.server, pair.rank
    rank.order(f"row {COMM:x} 5 x")
    pair.begin()
    rank.order(f"row {COMM:x} 6")
    server.expect(f"RAISE 1 3 {COMM:016x} 6")
    server.expect("STATE 1 3 2 0")
    rank.order(f"retract {COMM:x}")
    server.expect("RETRACT 1 4")
    server.expect("STATE 1 4 2 0")
    server.send("FREEZE 1 3")
    server.expect("NOTFROZEN 1 4")
    rows, state = pair.begin(2)
    assert (
        rows.startswith("ROWS 2 5 0 2 ")
        and f"{COMM:016x}:0000000000000abc:5:" in rows
        and state.startswith("STATE 2 6 2 0")
    )
    server.send("FREEZE 2 6")
    server.expect("FROZEN 2 6")
    server.send("INTENT 3")
    server.expect("ROWS 3 7 0 2")
    rank.start("look")
    rank.expect("phase 1 needed 0")
    rank.expect(f"row {COMM:016x} seq 5 target 5")


def test_new_communicator_while_pending(start: Callable[..., Pair]) -> None:
    pair = start()
    rows, _ = pair.begin()
    assert rows.startswith(f"ROWS 1 1 0 1 {WORLD:016x}:")
    pair.rank.order(f"row {COMM:x} 1 new")
    pair.server.expect(f"ROWS 1 3 0 1 {COMM:016x}:0000000000000abc:1:0-3:1:new")
    pair.server.expect("STATE 1 3")


def test_member_lists(start: Callable[..., Pair]) -> None:
    """They are written as messages.encode_ranks writes them (test_lines in test_clock_messages.py)."""
    pair = start()
    pair.begin()
    pair.rank.order(f"row {COMM:x} 1 scattered")
    pair.server.expect(f"ROWS 1 3 0 1 {COMM:016x}:0000000000000abc:1:0-8/4,9-11,13,15,2,1:1:scattered")


def test_world_that_is_not_made_yet(start: Callable[..., Pair]) -> None:
    """Other ranks are in MPI_Init: this rank is below target before it has a row."""
    pair = start()
    server, rank = pair.server, pair.rank
    rows, _ = pair.begin(1, f"{WORLD:016x}:1")
    assert rows.startswith(f"ROWS 1 1 0 1 {WORLD:016x}:")
    server.send("FREEZE 1 2")
    server.expect("NOTFROZEN 1 2")
    server.send("THAW 1")
    server.expect("STATE 1 3")
    rank.order(f"row {WORLD:x} 0 MPI_COMM_WORLD")
    server.expect("STATE 1 4")
    rank.start("look")
    rank.expect(f"row {WORLD:016x} seq 0 target 1")
    rank.order(f"row {WORLD:x} 1")
    server.expect(f"RAISE 1 5 {WORLD:016x} 1")
    server.expect("STATE 1 5")
    server.send("FREEZE 1 5")
    server.expect("FROZEN 1 5")


def test_frozen_waits_for_the_lower_half(start: Callable[..., Pair]) -> None:
    pair = start()
    server, rank = pair.server, pair.rank
    rank.order("lower 1")
    pair.begin()
    server.send("FREEZE 1 2")
    rank.look_until("phase 3")
    server.quiet()
    rank.order("lower 0")
    server.expect("FROZEN 1 2")


def test_not_frozen_if_something_finished_meanwhile(start: Callable[..., Pair]) -> None:
    pair = start()
    server, rank = pair.server, pair.rank
    rank.order("lower 1")
    pair.begin()
    server.send("FREEZE 1 2")
    rank.look_until("phase 3")
    rank.order(f"row {COMM:x} 1 new")
    rank.order("lower 0")
    server.expect(f"ROWS 1 3 0 1 {COMM:016x}")
    server.expect("STATE 1 3")
    server.expect("NOTFROZEN 1 3")
    rank.start("look")
    rank.expect("phase 2")


def test_thaw_answers_an_open_freeze(start: Callable[..., Pair]) -> None:
    pair = start()
    pair.rank.order("lower 1")
    pair.begin()
    pair.server.send("FREEZE 1 2")
    pair.server.send("THAW 1")
    pair.server.expect("NOTFROZEN 1 2")
    pair.server.expect("STATE 1 3 4 0")


@pytest.mark.parametrize("failing", ["stop", "drain", "write"])
def test_failed_step_then_abort(start: Callable[..., Pair], failing: str) -> None:
    pair = start()
    pair.rank.order(f"fail {failing} disk full")
    pair.freeze()
    for step, answer in (("stop", "STOPPED"), ("drain", "DRAINED"), ("write", "WRITTEN")):
        line = protocol.join("WRITE", 1, str(pair.server.dir)) if step == "write" else f"{step.upper()} 1"
        if step == failing:
            pair.step(line, "FAILED 1 disk%20full")
            break
        pair.step(line, f"{answer} 1")
    pair.server.send("ABORT 1 disk%20full")
    pair.rank.expect("engine resume phase 0")
    pair.rank.order("fail none -")
    pair.step("CHECK 2 0", "CHECKED 2")
    pair.freeze(2)


def test_check_waits_while_disabled(start: Callable[..., Pair]) -> None:
    pair = start()
    pair.rank.order("disable 2")
    pair.step("CHECK 1 0", "DISABLED 1")
    pair.rank.order("disable 1")
    pair.server.quiet()
    pair.step("CHECK 2 0", "DISABLED 2")  # the first one was given up
    pair.rank.order("disable 0")
    pair.server.expect("CHECKED 2")
    pair.rank.order("disable 1")
    pair.rank.order("disable 0")
    pair.server.quiet()
    pair.freeze(2)


def test_hand_over_while_disabled(start: Callable[..., Pair]) -> None:
    """The program may have disabled checkpoints while it waits for the process that is to speak. The CHECK that waits
    for the program does not keep the rank from leaving. The coordinator repeats it."""
    pair = start()
    pair.rank.order("disable 1")
    pair.step("CHECK 1 0", "DISABLED 1")
    pair.rank.start("hand_over")
    assert pair.server.receive() == ""
    pair.server.part()
    pair.rank.expect("ok hand_over")
    pair.rank.start("take_back")
    pair.server.accept()
    pair.server.expect("HELLO 0 4 ")
    pair.server.expect("PROGRAM ")
    pair.rank.expect("ok take_back")
    pair.rank.order("disable 0")
    pair.server.quiet()
    pair.step("CHECK 1 0", "CHECKED 1")


def test_disabled_in_the_clock(start: Callable[..., Pair]) -> None:
    """The rank reports it with its threads, under a new version, and no freeze succeeds. Afterwards one does."""
    pair = start()
    server, rank = pair.server, pair.rank
    rank.order("disable 1")
    server.send("INTENT 1")
    server.expect("ROWS 1 1 ")
    server.expect("STATE 1 2 1 1 disabled:0000000000000000:all:-")
    server.send("TARGETS 1 0 0")
    server.expect("STATE 1 3 2 1 disabled:")
    pair.step("FREEZE 1 3", "NOTFROZEN 1 3")
    pair.step("THAW 1", "STATE 1 4 4 1 disabled:")
    rank.order("disable 0")
    server.expect("STATE 1 5 4 0")
    pair.step("FREEZE 1 5", "FROZEN 1 5")


def test_disabled_since_the_last_report(start: Callable[..., Pair]) -> None:
    """The coordinator doesn't know yet, and the version hasn't increased: the rank isn't frozen."""
    pair = start()
    pair.rank.order("lower 1")
    pair.server.send("INTENT 1")
    pair.server.expect("ROWS 1 1 ")
    pair.step("TARGETS 1 0 0", "STATE 1 2 2 0")
    pair.server.send("FREEZE 1 2")
    pair.rank.look_until("phase 3")  # it waits for the thread in the lower half
    pair.rank.order("disable 1")
    pair.rank.order("lower 0")
    pair.server.expect("STATE 1 3 3 1 disabled:")
    pair.server.expect("NOTFROZEN 1 3")
    pair.rank.start("look")
    assert pair.rank.expect("phase").startswith("phase 2")


def test_abort_while_writing(start: Callable[..., Pair]) -> None:
    """The next CHECK is answered only after the writer has ended."""
    pair = start()
    pair.freeze()
    pair.step("STOP 1", "STOPPED 1")
    pair.rank.order("hold 1")
    pair.server.send(protocol.join("WRITE", 1, str(pair.server.dir)))
    pair.rank.expect("engine write")
    pair.server.send("ABORT 1 x")
    pair.server.send("CHECK 2 0")
    pair.rank.expect("cancelled write")
    pair.rank.expect("engine resume phase 0")
    pair.server.quiet()  # resume is held too
    pair.rank.order("hold 0")
    pair.server.expect("CHECKED 2")
    pair.freeze(2)


def test_callbacks(start: Callable[..., Pair]) -> None:
    """The answer to CHECK says that there are some. After CALL the rank resumes, whatever follows."""
    pair = start()
    pair.rank.order("callbacks 2")
    pair.step("CHECK 1 0", "CHECKED 1 1")
    pair.freeze()
    pair.step("CALL 1", "CALLED 1")
    pair.rank.expect("engine call phase 3")
    pair.server.send("ABORT 1 x")
    pair.rank.expect("engine resume phase 0")
    pair.rank.order("callbacks 0")
    pair.server.send("CHECK 2 0")
    assert pair.server.expect("CHECKED 2") == "CHECKED 2"
    pair.freeze(2)
    pair.step("STOP 2", "STOPPED 2")


def test_callbacks_that_are_registered_too_late(start: Callable[..., Pair]) -> None:
    """They have not been called, so nothing is stopped."""
    pair = start()
    pair.step("CHECK 1 0", "CHECKED 1")
    pair.freeze()
    pair.rank.order("callbacks 1")
    pair.server.send("STOP 1")
    failed = protocol.decode_text(pair.server.expect("FAILED 1 "))
    assert failed == "FAILED 1 the program has registered callbacks since the checkpoint began; try again"
    pair.server.send("ABORT 1 x")
    pair.step("CHECK 2 0", "CHECKED 2 1")
    pair.rank.start("look")
    assert pair.rank.expect("phase").startswith("phase 0")


def test_check_that_is_not_answered_yet(start: Callable[..., Pair]) -> None:
    """The next checkpoint sends its own CHECK: another rank has refused, and this one may wait for its children for a
    long time."""
    pair = start()
    pair.rank.order("hold 1")
    pair.server.send("CHECK 1 600000")
    pair.rank.expect("grace 600000")
    pair.rank.expect("engine check")
    pair.server.send("CHECK 2 0")
    pair.rank.expect("cancelled check")
    pair.rank.expect("grace 0")
    pair.rank.order("hold 0")
    pair.server.expect("CHECKED 2")
    pair.freeze(2)


def test_abort_before_stop_touches_nothing(start: Callable[..., Pair]) -> None:
    pair = start()
    pair.freeze()
    pair.server.send("ABORT 1 x")
    pair.step("CHECK 2 0", "CHECKED 2")
    pair.rank.start("look")
    assert pair.rank.expect("phase").startswith("phase 0")


def test_exit_after_checkpoint(start: Callable[..., Pair]) -> None:
    pair = start()
    pair.freeze()
    pair.step("STOP 1", "STOPPED 1")
    pair.server.send("RESUME 1 exit %2fckpt")
    pair.server.expect("RESUMED 1")
    pair.server.expect("DONE 0")
    pair.rank.expect("engine exit")
    assert pair.rank.process.wait(PATIENCE) == 0


@pytest.mark.parametrize("reason", ["rank%203%20died", "%"])
def test_kill(start: Callable[..., Pair], reason: str) -> None:
    pair = start()
    pair.server.send(f"KILL 5 {reason}")
    if reason != "%":
        pair.rank.expect("abort 5 rank 3 died")
    assert pair.rank.process.wait(PATIENCE) == 5


def test_kill_while_a_step_runs(start: Callable[..., Pair]) -> None:
    pair = start()
    pair.freeze()
    pair.rank.order("hold 1")
    pair.server.send("STOP 1")
    pair.rank.expect("engine stop")
    pair.server.send("KILL 5 x")
    assert pair.rank.process.wait(PATIENCE) == 5


def test_coordinator_lost(start: Callable[..., Pair]) -> None:
    """This happens during a checkpoint: the program goes on, one line says so, and requests fail."""
    pair = start()
    pair.rank.order("patience 3600")
    pair.rank.order("request")
    pair.server.expect("REQUEST 1")
    pair.freeze()
    pair.step("STOP 1", "STOPPED 1")
    pair.server.close()
    pair.rank.expect("engine resume phase 0")
    pair.rank.start("tickets")
    pair.rank.expect("done -1")
    pair.rank.start("request")
    pair.rank.expect("ticket -1")
    assert pair.rank.end() == 0, "at once"
    assert (
        pair.rank.process.stderr.read()
        == "manapy: rank 0: the coordinator is lost; the job goes on, but can't be checkpointed any more\n"
    )


def test_no_coordinator_at_all(start: Callable[..., Pair]) -> None:
    """A message says so. The rank would try for five minutes, but it stops when the program ends."""
    pair = start(accept=False)
    pair.rank.order("patience 3600")
    pair.server.close()
    assert "the job runs without checkpoints" in pair.rank.complaint()
    assert pair.rank.end() == 0
    assert pair.rank.process.stderr.read() == ""


def test_refused_at_first(start: Callable[..., Pair]) -> None:
    """The coordinator sends the rank away or cuts the connection. The rank says so, tries again, and then is a normal
    rank."""
    pair = start(accept=False)
    server = pair.server
    for answer in ("BUSY no%20descriptors", "", "BUSY no%20descriptors"):
        server.listener.settimeout(PATIENCE)
        connection, _ = server.listener.accept()
        with connection, connection.makefile("r") as stream:
            if answer:
                connection.sendall(f"{handshake.greeting(handshake.nonce())}\n".encode())
                assert stream.readline().startswith("AUTH rank ")
                connection.sendall(f"{answer}\n".encode())
    while not pair.rank.complains():  # until it writes a message
        server.listener.accept()[0].close()
    server.accept()
    server.expect("HELLO 0 4 ")
    server.expect("PROGRAM ")
    pair.step("CHECK 1 0", "CHECKED 1")
    assert pair.rank.end() == 0
    said = pair.rank.process.stderr.read().splitlines()
    assert (
        len(said) == 2
        and "the job runs without checkpoints until it can be reached" in said[0]
        and "checkpoints are possible now" in said[1]
    )


def test_refused_by_the_kernel_at_first(start: Callable[..., Pair]) -> None:
    """Nobody listens, or the queue of connections is full. The rank tries again."""
    pair = start(accept=False)
    server = pair.server
    server.listener.close()
    assert "Connection refused" in pair.rank.complaint()
    server.listener = socket.create_server(("127.0.0.1", server.port))
    server.accept()
    server.expect("HELLO 0 4 ")
    server.expect("PROGRAM ")
    pair.step("CHECK 1 0", "CHECKED 1")
    assert pair.rank.end() == 0


def test_wrong_secret(start: Callable[..., Pair]) -> None:
    """The rank sends nothing to a coordinator that can't prove its identity."""
    pair = start(accept=False)
    with contextlib.suppress(AssertionError):
        pair.server.accept(secret=b"x" * 32)
    pair.server.send("OK " + "0" * 64)
    assert pair.server.receive() == ""


@pytest.mark.parametrize("trick", ["inserted", "repeated", "altered", "left out"])
def test_altered_stream(start: Callable[..., Pair], trick: str) -> None:
    """An attacker on the connection inserts what the coordinator hasn't sent. The rank ignores everything that follows,
    and goes on alone."""
    pair = start()
    server = pair.server
    assert server.connection is not None and server.seals is not None
    first = server.seals.seal(b"CHECK 1 0") + b"\n"
    server.connection.sendall(first)
    server.expect("CHECKED 1")
    second, third = (server.seals.seal(line) + b"\n" for line in (b"KILL 5 x", b"KILL 5 y"))
    server.connection.sendall(
        {
            "inserted": b"KILL 5 x\n",
            "repeated": first,
            "altered": second.replace(b"KILL 5", b"KILL 6"),
            "left out": third,
        }[trick]
    )
    assert server.receive() == ""
    assert pair.rank.end() == 0
    assert "changed on the network" in pair.rank.process.stderr.read()


def test_tickets(start: Callable[..., Pair]) -> None:
    pair = start()
    for number, outcome, done in (
        (1, "ok %2fckpt", "done 1"),
        (2, "failed no%20space", "done -2"),
        (3, "ok %2fckpt", "done 3"),
    ):
        pair.rank.start("request")
        pair.rank.expect(f"ticket {number}")
        pair.server.expect(f"REQUEST {number}")
        pair.server.send(f"TICKET {number} {outcome}")
        pair.step(f"CHECK {number} 0", "CHECKED")
        pair.rank.start("tickets")
        pair.rank.expect(done)


def test_ready_and_go(start: Callable[..., Pair]) -> None:
    pair = start("--generation", "3", "--resume", "/somewhere")
    pair.rank.start("ready")
    pair.server.expect("READY 3")
    pair.server.send("GO")
    pair.rank.expect("go")


def test_ready_without_coordinator(start: Callable[..., Pair]) -> None:
    pair = start()
    pair.rank.start("ready")
    pair.server.expect("READY 0")
    pair.server.close()
    pair.rank.expect("the coordinator is lost; the restart cannot go on")


def test_program_state(start: Callable[..., Pair]) -> None:
    pair = start()
    pair.rank.order("init")
    pair.server.expect("PROGRAM up a%20program -")


def test_short_program_does_not_wait_for_the_coordinator(start: Callable[..., Pair]) -> None:
    """The job has one rank, whose coordinator's interpreter may still be starting. The rank doesn't give up the
    connection before: a coordinator that comes now is told of the end."""
    pair = start(size=1, accept=False)
    pair.rank.order("patience 3600")
    pair.rank.order("finished")
    pair.server.accept()
    pair.server.expect("HELLO 0 1 ")
    pair.server.expect("PROGRAM ")
    pair.server.expect("DONE 0")
    assert pair.rank.end() == 0


def test_signals_do_not_reach_our_threads(start: Callable[..., Pair]) -> None:
    pair = start()
    for task in Path(f"/proc/{pair.rank.process.pid}/task").iterdir():
        status = (task / "status").read_text()
        name, blocked = (
            next(line.split("\t")[1] for line in status.splitlines() if line.startswith(key))
            for key in ("Name:", "SigBlk:")
        )
        if name.startswith("manapy-"):
            assert int(blocked, 16) >> (signal.SIGTERM - 1) & 1 and int(blocked, 16) >> (signal.SIGUSR1 - 1) & 1
    assert all(int(fd.name) >= 512 for fd in Path(f"/proc/{pair.rank.process.pid}/fd").iterdir() if int(fd.name) > 2)


def captured(pair: Pair) -> Path:
    """A checkpoint up to CAPTURED; the images' directory."""
    pair.freeze()
    pair.step("STOP 1", "STOPPED 1")
    pair.step("DRAIN 1", "DRAINED 1")
    pair.step(protocol.join("CAPTURE", 1, str(pair.server.dir)), "CAPTURED 1 %")
    return pair.server.dir


def test_image_written_beside_the_program(start: Callable[..., Pair]) -> None:
    """The program runs again, and its epoch has ended, before the image is written."""
    pair = start()
    where = persisting(pair)
    assert not (where / "rank-00000.img").exists()
    pair.rank.order("hold 0")
    pair.server.expect("WRITTEN 1 4096 15 7 0.250000 ")
    assert (where / "rank-00000.img").read_bytes() == b"image of rank 0"
    assert count(pair) == 1
    pair.step("CHECK 2 0", "CHECKED 2")
    pair.freeze(2)


def persisting(pair: Pair) -> Path:
    """A checkpoint up to the writing of the image, beside the program; the image stays incomplete until `hold 0`."""
    where = captured(pair)
    pair.rank.order("hold persist")
    pair.step("RESUME 1 continue %", "RESUMED 1")
    pair.rank.expect("engine persist phase 0")
    return where


def count(pair: Pair) -> int:
    """The checkpoints that the program knows of."""
    pair.rank.start("count")
    return int(pair.rank.expect("checkpoints ").split(" ")[1])


@pytest.mark.parametrize("when", ["before RESUME", "while written", "when written"])
def test_captured_image_given_up(start: Callable[..., Pair], when: str) -> None:
    """The writer is ended, the checkpoint isn't counted, and the next CHECK is answered afterwards."""
    pair = start()
    if when == "before RESUME":
        captured(pair)
        pair.rank.order("hold persist")
    else:
        persisting(pair)
    if when == "when written":
        pair.rank.order("hold 0")
        pair.server.expect("WRITTEN 1 ")
    pair.server.send("ABORT 1 disk%20full")
    if when != "when written":
        pair.rank.expect("cancelled persist")
        pair.rank.order("hold 0")
    pair.step("CHECK 2 0", "CHECKED 2")
    assert count(pair) == 0
    pair.freeze(2)


def test_captured_image_fails(start: Callable[..., Pair]) -> None:
    pair = start()
    captured(pair)
    pair.rank.order("fail persist disk full")
    pair.step("RESUME 1 continue %", "RESUMED 1")
    pair.server.expect("FAILED 1 disk%20full")
    pair.server.send("ABORT 1 disk%20full")
    assert count(pair) == 0
    pair.step("CHECK 2 0", "CHECKED 2")


def test_coordinator_lost_while_written(start: Callable[..., Pair]) -> None:
    pair = start()
    persisting(pair)
    pair.server.close()
    pair.rank.expect("cancelled persist")
    pair.rank.order("finished")  # doesn't wait for the image


def test_the_end_waits_for_the_image(start: Callable[..., Pair]) -> None:
    pair = start()
    persisting(pair)
    pair.rank.start("finished")
    pair.server.expect("DONE 0")
    assert "still being written" in pair.rank.complaint()
    pair.rank.process.send_signal(signal.SIGUSR1)
    pair.server.expect("WRITTEN 1 ")
    pair.rank.expect("ok finished")

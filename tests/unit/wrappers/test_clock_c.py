"""wrappers/clock/clock.c agrees with the Python model: same identities, same verdicts, same states, on random
programs."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from compiling import build_core

from manapy.clock import WORLD, ClockPhase, Decision, Mode, RankClock, State, child_identity, ggid, group_identity
from manapy.clock.messages import Advance, Freeze, Intent, Resume, Target, Targets, Thaw, Withdraw, from_wire
from manapy.clock.model.vectors import PATH

STATES = (State.RUNNING, State.BLOCKED_P2P, State.IN_COLLECTIVE, State.PARKED, State.FINISHED)
MODES = (Mode.ALL, Mode.ANY)


@pytest.fixture(scope="module")
def driver(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("clock")
    tables = [root / "wrappers/table/functions.txt", root / "wrappers/table/abi.txt"]
    subprocess.run([sys.executable, "-m", "generate", *tables, directory], cwd=root / "wrappers", check=True)
    sources = [
        Path(__file__).with_name("clock_driver.c"),
        root / "wrappers/clock/clock.c",
        root / "wrappers/core/sort.c",
    ]
    paths = [f"-I{root}/wrappers", f"-I{root}/wrappers/core", f"-I{directory}"]
    return build_core(directory / "driver", sources, "-mfsgsbase", "-pthread", *paths)


class CClock:
    """The C clock, in its own process."""

    def __init__(self, driver: Path) -> None:
        self.process = subprocess.Popen([driver], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def command(self, *words: object) -> list[str]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the driver ended"
        return line.split()

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


@pytest.fixture
def clock(driver: Path) -> Iterator[CClock]:
    c = CClock(driver)
    yield c
    c.close()


def test_identities(clock: CClock) -> None:
    rng = random.Random(1)
    for n in (1, 2, 3, 17, 1000):
        members = rng.sample(range(100_000), n)
        assert int(clock.command("ggid", *members)[0], 16) == ggid(members)
        assert int(clock.command("ggid", *sorted(members))[0], 16) == ggid(members)
    for parent, seq, smallest in ((0, 0, 0), (WORLD, 1, 0), (2**64 - 1, 2**40, 99_999)):
        assert int(clock.command("child", f"{parent:x}", seq, smallest)[0], 16) == child_identity(parent, seq, smallest)
        assert int(clock.command("group", f"{parent:x}", smallest, seq)[0], 16) == group_identity(parent, smallest, seq)


class Pair:
    """The model and the C clock side by side. Every step is made on both and compared."""

    def __init__(self, clock: CClock, rank: int = 0, size: int = 4) -> None:
        self.c, self.model = clock, RankClock(rank, tuple(range(size)))
        self.cids = [WORLD]
        self.waiting: dict[int, int] = {}  # thread -> index of the row at whose entry it sleeps
        self.inside: set[int] = set()
        self.retracted = False
        self.nonblocking: set[int] = set()  # threads whose entry, done or parked, is that of a nonblocking collective
        clock.command("row", f"{WORLD:x}", 1, *range(size))

    def compare(self, answer: list[str], version: int | None = None) -> None:
        m = self.model
        self.go_on({k for k, t in enumerate(answer[2 : answer.index("|")]) if t.split(":")[0] == "go"})
        for k, text in enumerate(answer[2 : answer.index("|")]):
            verdict, state, cid, mode, everybody, peers = text.split(":")
            assert verdict == ("park" if k in self.waiting else verdict) and verdict in (
                ("park",) if k in self.waiting else ("-", "go")
            )
            assert STATES[int(state)] is m.state(k)
            if m.state(k) in (State.IN_COLLECTIVE, State.PARKED):
                assert int(cid, 16) == m.threads[k].cid
            if m.state(k) is State.BLOCKED_P2P:
                nobody = not m.threads[k].peers and m.threads[k].cid == 0
                assert MODES[int(mode)] is m.threads[k].mode and (everybody == "1") == (
                    not m.threads[k].peers and not nobody
                )
                assert int(cid, 16) == m.threads[k].cid
                assert peers == (",".join(map(str, m.threads[k].peers)) or "-")
        retracted, *rows = answer[answer.index("|") + 1 :]
        assert retracted == str(int(self.retracted))
        assert {int(r.split(":")[0], 16): [int(v) for v in r.split(":")[1:]] for r in rows} == {
            r.cid: [r.seq, r.target] for r in m.rows.values()
        }
        if version is not None:
            assert int(answer[0]) == m.version - version

    def go_on(self, gone: set[int]) -> None:
        """In the model, too, the parked threads look again, first those that have proceeded in C: their order depends
        on the scheduler."""
        wake = -1
        while self.waiting and wake != self.model.wake:
            wake = self.model.wake
            for k in sorted(self.waiting, key=lambda k: k not in gone):
                blocking = k not in self.nonblocking
                if self.model.enter_collective(self.cids[self.waiting[k]], blocking=blocking, thread=k) is Decision.GO:
                    del self.waiting[k]
                    if blocking:
                        self.inside.add(k)

    # ---- the program

    def enter(self, index: int, thread: int = 0, *, blocking: bool = True) -> None:
        """C enters and leaves a nonblocking collective at once. While an epoch is pending that is two more changes of
        the version than in the model."""
        version, sent = self.model.version, len(self.model.outbox)
        self.waiting[thread] = index
        (self.nonblocking.discard if blocking else self.nonblocking.add)(thread)
        answer = self.c.command("enter" if blocking else "start", thread, index)
        through = not blocking and self.model.phase is not ClockPhase.NONE and answer[2 + thread].startswith("go:")
        self.compare(answer, version - 2 * through)
        if len(self.model.outbox) > sent:
            assert int(answer[1]) > 0, "the control thread wasn't told"

    def leave(self, thread: int = 0) -> None:
        version = self.model.version
        self.model.exit_collective(thread=thread)
        self.inside.discard(thread)
        self.compare(self.c.command("leave", thread), version)

    def fail(self, thread: int = 0) -> None:
        version = self.model.version
        index = self.cids.index(self.model.threads[thread].cid)
        self.model.fail_collective(thread=thread)
        self.retracted |= self.model.phase is not ClockPhase.NONE
        self.compare(self.c.command("fail", thread, index), version)

    def add(self, members: tuple[int, ...], cid: int | None = None) -> None:
        version = self.model.version
        if cid is None:
            cid = child_identity(self.cids[-1], len(self.cids), members[0])
        known = cid in self.cids
        self.cids += [] if known else [cid]
        self.model.add_row(cid, members)
        if not known:  # the second time it only gets its handle
            self.compare(self.c.command("row", f"{cid:x}", len(self.cids), *members), version)

    def remove(self, cid: int) -> None:
        self.model.remove_row(cid)
        self.compare(self.c.command("unrow", self.cids.index(cid)))
        self.cids[self.cids.index(cid)] = 0

    def block(self, peers: tuple[int, ...], mode: Mode, cid: int = WORLD, thread: int = 0) -> None:
        version = self.model.version
        self.model.block(peers, mode, cid, thread=thread)
        self.compare(
            self.c.command("block", thread, MODES.index(mode), self.cids.index(cid) if cid else -1, *peers), version
        )

    def unblock(self, thread: int = 0) -> None:
        version = self.model.version
        self.model.unblock(thread=thread)
        self.compare(self.c.command("unblock", thread), version)

    def finish(self) -> None:
        self.model.finish()
        self.compare(self.c.command("finish", 0))

    # ---- the control thread: applies what the model reports as applied, then wakes

    def receive(self, message: object) -> None:
        self.model.receive(message)  # type: ignore[arg-type]
        self.retracted &= not isinstance(message, Intent)
        for index, cid in enumerate(self.cids):
            if cid == 0:
                continue
            self.c.command("target", index, self.model.rows[cid].target)
        self.c.command("needed", int(self.model.needed))
        self.c.command("phase", self.model.phase.value)
        self.compare(self.c.command("wake"))


def vectors() -> list[object]:
    found = json.loads(PATH.read_text())["vectors"]
    return [pytest.param(v, id=f"{v['name']}-{v['rank']}") for v in found]


@pytest.mark.parametrize("vector", vectors())
def test_vector(clock: CClock, vector: dict[str, object]) -> None:
    """The named vectors, step by step. Pair compares the C clock with the model, and the verdict must be the
    vector's."""
    pair = Pair(clock, int(vector["rank"]), int(vector["size"]))  # type: ignore[call-overload]
    pending: set[int] = set()  # threads that are parked according to the vector
    for step in vector["steps"]:  # type: ignore[attr-defined]
        call, args, thread = step["call"], step["args"], step.get("thread", 0)
        # the retry of a parked entry, which receive() has already made
        again = call == "enter_collective" and thread in pending
        assert again or pending == set(pair.waiting)
        if call == "receive":
            pair.receive(from_wire(args[0]))
        elif call == "enter_collective":
            if not again:
                pair.enter(pair.cids.index(int(args[0], 16)), thread, blocking=args[1])
            (pending.add if step["result"] == "park" else pending.discard)(thread)
        elif call == "fail_collective":
            pair.fail(thread)
        elif call == "exit_collective":
            pair.leave(thread)
        elif call == "block":
            pair.block(tuple(args[0]), Mode(args[1]), int(args[2], 16), thread)
        elif call == "unblock":
            pair.unblock(thread)
        elif call == "add_row":
            pair.add(tuple(args[1]), int(args[0], 16))
        elif call == "remove_row":
            pair.remove(int(args[0], 16))
        else:
            assert call == "finish"
            pair.finish()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("seed", range(12))
def test_random_programs(clock: CClock, seed: int, threads: int) -> None:
    rng = random.Random(seed)
    pair, epoch = Pair(clock), 0
    for _ in range(150):
        m, rows, k = pair.model, len(pair.cids), rng.randrange(threads)
        # one thread at a time on a communicator
        taken = {pair.cids.index(m.threads[j].cid) for j in (*pair.inside, *pair.waiting)}
        program = k not in pair.waiting and rng.random() < 0.6
        if program and k in pair.inside:
            if m.state(k) is State.IN_COLLECTIVE and rows < 5 and rng.random() < 0.3:
                pair.add(tuple(sorted(rng.sample(range(4), rng.randint(1, 4)))))
            elif m.state(k) is State.IN_COLLECTIVE and rng.random() < 0.2:
                pair.fail(k)
            pair.leave(k)
        elif program and m.state(k) is State.BLOCKED_P2P:
            pair.unblock(k)
        elif program and m.phase in (ClockPhase.INTENT, ClockPhase.RUN) and rng.random() < 0.3:
            pair.block(tuple(sorted(rng.sample(range(1, 4), rng.randint(0, 3)))), rng.choice(MODES), thread=k)
        elif program and (free := [i for i in range(rows) if i not in taken]):
            pair.enter(rng.choice(free), k, blocking=rng.random() < 0.7)
        elif m.phase is ClockPhase.NONE or pair.retracted:
            epoch += 1
            pair.receive(Intent(epoch))
        elif m.phase is ClockPhase.INTENT:
            pair.receive(
                Targets(
                    epoch, tuple((cid, m.rows[cid].seq + rng.randint(0, 2)) for cid in pair.cids if rng.random() < 0.7)
                )
            )
        elif m.phase is ClockPhase.FROZEN:
            pair.receive(Thaw(epoch) if rng.random() < 0.5 else Resume(epoch, "continue", ""))
        else:
            row = m.rows[rng.choice(pair.cids)]
            choices = [
                Target(epoch, row.cid, row.seq + rng.randint(0, 2)),
                Advance(epoch),
                Withdraw(epoch),
                Freeze(epoch, m.version),
                Resume(epoch, "continue", ""),
            ]
            pair.receive(rng.choice(choices))


def test_entry_is_counted_once_after_a_long_park(clock: CClock) -> None:
    """A thread is parked in INTENT, woken in vain, frozen and thawed, and released by RESUME: SEQ has increased by
    one."""
    pair = Pair(clock)
    pair.enter(0)
    pair.leave()
    pair.receive(Intent(1))
    pair.enter(0)
    assert pair.waiting == {0: 0}
    pair.receive(Targets(1, ((WORLD, 1),)))
    pair.receive(Freeze(1, pair.model.version))
    assert pair.model.phase is ClockPhase.FROZEN and pair.waiting
    pair.receive(Thaw(1))
    pair.receive(Resume(1, "continue", ""))
    assert not pair.waiting and pair.model.rows[WORLD].seq == 2
    pair.leave()

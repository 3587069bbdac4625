"""wrappers/runtime/clock.c against the Python model: same identities, same verdicts, same states, on random programs."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from manapy.clock import WORLD, Mode, Phase, RankClock, State, Verdict, child_identity, ggid, group_identity
from manapy.clock.messages import Advance, Freeze, Intent, Resume, Target, Targets, Thaw, Withdraw, from_wire
from manapy.clock.vectors import PATH

STATES = (State.RUNNING, State.BLOCKED_P2P, State.IN_COLLECTIVE, State.PARKED, State.FINISHED)
MODES = (Mode.ALL, Mode.ANY)


@pytest.fixture(scope="module")
def driver(root: Path, include: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler")
    directory = tmp_path_factory.mktemp("clock")
    tables = [root / "wrappers/table/functions.txt", root / "wrappers/table/abi.txt"]
    subprocess.run([sys.executable, root / "wrappers/generate.py", *tables, directory], check=True)
    sources = [Path(__file__).with_name("clock_driver.c"), root / "wrappers/runtime/clock.c"]
    flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-mfsgsbase", "-pthread"]
    paths = [f"-I{root}/wrappers/runtime", f"-I{directory}", f"-I{include}"]
    subprocess.run(["gcc", *flags, "-D_GNU_SOURCE", *paths, *map(str, sources), "-o", str(directory / "driver")], check=True)
    return directory / "driver"


class CClock:
    """The C clock in a process of its own."""

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
    """The model and the C clock side by side; every step is made on both and compared."""

    def __init__(self, clock: CClock, rank: int = 0, size: int = 4) -> None:
        self.c, self.model = clock, RankClock(rank, tuple(range(size)))
        self.cids = [WORLD]
        self.waiting: int | None = None  # index of the row at whose entry the program sleeps
        self.inside = False
        clock.command("row", f"{WORLD:x}", 1, *range(size))

    def compare(self, answer: list[str], version: int | None = None) -> None:
        verdict, state, cid, mode, everybody, peers, increase, notified, *rows = answer
        m = self.model
        assert STATES[int(state)] is m.state
        if m.state in (State.IN_COLLECTIVE, State.PARKED):
            assert int(cid, 16) == m.cid
        if m.state is State.BLOCKED_P2P:
            assert MODES[int(mode)] is m.mode and (everybody == "1") == (not m.peers)
            assert peers == (",".join(map(str, m.peers)) or "-")
        assert {int(r.split(":")[0], 16): [int(v) for v in r.split(":")[1:]] for r in rows} == {
            r.cid: [r.seq, r.target] for r in m.rows.values()
        }
        if version is not None:
            assert int(increase) == m.version - version

    # ---- the program

    def enter(self, index: int) -> None:
        version, sent = self.model.version, len(self.model.outbox)
        verdict = self.model.enter_collective(self.cids[index])
        answer = self.c.command("enter", index)
        self.settle(index, verdict, answer)
        self.compare(answer, version)
        if len(self.model.outbox) > sent:
            assert int(answer[7]) > 0, "the control thread wasn't told"

    def settle(self, index: int, verdict: Verdict, answer: list[str]) -> None:
        assert answer[0] == ("go" if verdict is Verdict.GO else "park")
        self.waiting = None if verdict is Verdict.GO else index
        self.inside = verdict is Verdict.GO

    def leave(self) -> None:
        version = self.model.version
        self.model.exit_collective()
        self.inside = False
        self.compare(self.c.command("leave"), version)

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

    def block(self, peers: tuple[int, ...], mode: Mode, cid: int = WORLD) -> None:
        version = self.model.version
        self.model.block(peers, mode, cid)
        self.compare(self.c.command("block", MODES.index(mode), self.cids.index(cid) if cid else 0, *peers), version)

    def unblock(self) -> None:
        version = self.model.version
        self.model.unblock()
        self.compare(self.c.command("unblock"), version)

    # ---- the control thread: applies what the model says it has applied, then wakes

    def receive(self, message: object) -> None:
        self.model.receive(message)  # type: ignore[arg-type]
        for index, cid in enumerate(self.cids):
            if cid == 0:
                continue
            self.c.command("target", index, self.model.rows[cid].target)
        self.c.command("needed", int(self.model.needed))
        self.c.command("phase", self.model.phase.value)
        answer = self.c.command("wake")
        if self.waiting is not None:
            self.settle(self.waiting, self.model.enter_collective(self.cids[self.waiting]), answer)
        else:
            assert answer[0] == "-"
        self.compare(answer)


def vectors() -> list[object]:
    """Those without nonblocking collectives, which the wrappers don't have yet."""
    found = json.loads(PATH.read_text())["vectors"]
    calls = {"receive", "enter_collective", "exit_collective", "block", "unblock", "add_row", "remove_row"}
    return [
        pytest.param(v, id=f"{v['name']}-{v['rank']}")
        for v in found
        if all(s["call"] in calls and (s["call"] != "enter_collective" or s["args"][1]) for s in v["steps"])
    ]


@pytest.mark.parametrize("vector", vectors())
def test_vector(clock: CClock, vector: dict[str, object]) -> None:
    """The named vectors, step by step; Pair compares the C clock with the model, and the verdict must be the vector's."""
    pair = Pair(clock, int(vector["rank"]), int(vector["size"]))  # type: ignore[call-overload]
    pending = False  # parked, as the vector has it
    for step in vector["steps"]:  # type: ignore[attr-defined]
        call, args = step["call"], step["args"]
        if call == "receive":
            pair.receive(from_wire(args[0]))
        elif call == "enter_collective" and not pending:
            pair.enter(pair.cids.index(int(args[0], 16)))
            pending = step["result"] == "park"
            assert pending == (pair.waiting is not None)
        elif call == "enter_collective":  # the retry of a parked entry: receive() has made it
            pending = step["result"] == "park"
            assert pending != pair.inside
        elif call == "exit_collective":
            pair.leave()
        elif call == "block":
            pair.block(tuple(args[0]), Mode(args[1]), int(args[2], 16))
        elif call == "unblock":
            pair.unblock()
        elif call == "add_row":
            pair.add(tuple(args[1]), int(args[0], 16))
        else:
            pair.remove(int(args[0], 16))


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(clock: CClock, seed: int) -> None:
    rng = random.Random(seed)
    pair, epoch = Pair(clock), 0
    for _ in range(150):
        m, rows = pair.model, len(pair.cids)
        program = pair.waiting is None and rng.random() < 0.6
        if program and pair.inside:
            if m.state is State.RUNNING and rows < 5 and rng.random() < 0.3:
                pair.add(tuple(sorted(rng.sample(range(4), rng.randint(1, 4)))))
            pair.leave()
        elif program and m.state is State.BLOCKED_P2P:
            pair.unblock()
        elif program and m.phase in (Phase.INTENT, Phase.RUN) and rng.random() < 0.3:
            pair.block(tuple(sorted(rng.sample(range(1, 4), rng.randint(0, 3)))), rng.choice(MODES))
        elif program:
            pair.enter(rng.randrange(rows))
        elif m.phase is Phase.NONE:
            epoch += 1
            pair.receive(Intent(epoch))
        elif m.phase is Phase.INTENT:
            pair.receive(Targets(epoch, tuple((cid, m.rows[cid].seq + rng.randint(0, 2)) for cid in pair.cids if rng.random() < 0.7)))
        elif m.phase is Phase.FROZEN:
            pair.receive(Thaw(epoch) if rng.random() < 0.5 else Resume(epoch, "continue", ""))
        else:
            row = m.rows[rng.choice(pair.cids)]
            choices = [Target(epoch, row.cid, row.seq + rng.randint(0, 2)), Advance(epoch), Withdraw(epoch), Freeze(epoch, m.version), Resume(epoch, "continue", "")]
            pair.receive(rng.choice(choices))


def test_entry_is_counted_once_after_a_long_park(clock: CClock) -> None:
    """Parked in INTENT, woken for nothing, frozen and thawed, released by RESUME: SEQ has risen by one."""
    pair = Pair(clock)
    pair.enter(0)
    pair.leave()
    pair.receive(Intent(1))
    pair.enter(0)
    assert pair.waiting == 0
    pair.receive(Targets(1, ((WORLD, 1),)))
    pair.receive(Freeze(1, pair.model.version))
    assert pair.model.phase is Phase.FROZEN and pair.waiting == 0
    pair.receive(Thaw(1))
    pair.receive(Resume(1, "continue", ""))
    assert pair.waiting is None and pair.model.rows[WORLD].seq == 2
    pair.leave()

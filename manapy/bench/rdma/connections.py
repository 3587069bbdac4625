"""The cost of connections with SHIFT: control verbs (the paper's Figure 9), small writes (Table 1), set-up of the
backups, memory."""

from __future__ import annotations

import functools
import itertools
import re
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ..shared.commands import BenchError, Command, Setting, records
from ..shared.compare import Sample, compare, json_lines
from ..shared.samples import NATIVE, SHIFT, Row, Rows

DEVICES = ("rxa0", "rxb0")
# connections in one run, and the time for which each is held: meanwhile its backups are set up
CYCLES, HOLD_MS = 5, 1500
SIZES = (1, 2, 4, 8, 16)  # bytes
IDLE, IDLE_SHIFT = 500, 200  # queue pairs
PAPER_SETUP = "paper: 35 ms, beside the program"
PAPER_MEMORY = "paper: 171 KB, with its CQ"
_ports = itertools.count(20000)


def control(setting: Setting) -> list[Row]:
    """ns of each verb: the median and the slowest one of a run. And ms from a connection to its protection, for which
    no verb waits."""
    rows = Rows("control")
    cycles = CYCLES if setting.scale >= 0.1 else 2
    logs: dict[int, str] = {}
    with setting.guest.used() as vm:
        program: Command = [setting.guest.program("connections"), "verbs", str(cycles), str(HOLD_MS), *DEVICES]

        def run(variant: str) -> str:
            with setting.guest.failing():
                done = vm.run(program, env=setting.guest.environment(variant), timeout=setting.limit, check=True)
            if variant == SHIFT:
                logs[len(logs)] = done.stdout + done.stderr
            return done.stdout

        def read(output: str) -> Iterator[Sample]:
            return (sample for sample in json_lines(output) if sample[0] != "connected")

        compare(rows, setting, (NATIVE, SHIFT), 1, program, group="control verbs", run=run, read=read)
    numbers = itertools.count()
    for log in logs.values():
        for seconds in _protected(log):
            rows.add("connected to protected", "ms", SHIFT, next(numbers), seconds * 1e3, PAPER_SETUP)
    return rows.all()


def _protected(log: str) -> Iterator[float]:
    """Seconds from each connection until the first of its two sides is protected."""
    connected = [record["value"] / 1e9 for record in records(log) if record["name"] == "connected"]
    said = [
        float(moment) for moment in re.findall(r'^manapy shift: ([\d.]+) \{.*"event":"protected"', log, re.MULTILINE)
    ]
    for begin, end in zip(connected, [*connected[1:], float("inf")], strict=True):
        if mine := [moment for moment in said if begin < moment < end]:
            yield max(mine) - begin


def write_latency(setting: Setting) -> list[Row]:
    """µs of ib_write_lat: median and standard deviation."""
    rows = Rows("write-lat")
    sizes = SIZES if setting.scale >= 0.1 else SIZES[:1]
    beside = [0, IDLE if setting.scale >= 0.1 else 5]
    with setting.guest.used("ib_write_lat") as vm:
        for part, (idle, bytes_) in enumerate(itertools.product(beside, sizes)):
            with _idle(setting, vm, NATIVE, idle):
                group = f"{bytes_} B" + (f", beside {idle} idle queue pairs" if idle else "")
                compare(
                    rows, setting, (NATIVE, SHIFT), 2, ["ib_write_lat"], group=group,
                    part=(part, len(beside) * len(sizes)),
                    run=functools.partial(_latency, setting, vm, bytes_), read=functools.partial(_table, group),
                )  # fmt: skip
    return rows.all()


def _latency(setting: Setting, vm: Any, bytes_: int, variant: str) -> str:
    port = next(_ports)
    command = ["ib_write_lat", "-F", "-x", "1", "-s", bytes_, "-n", 5000, "-p", port]
    with setting.guest.failing():
        env = setting.guest.environment(variant)
        server = vm.start([*command, "-d", DEVICES[1]], env=env)
        setting.guest.listening(port)
        done = vm.run([*command, "-d", DEVICES[0], "127.0.0.1"], env=env, timeout=setting.limit, check=True)
        server.wait(setting.limit)
        return done.stdout


def _table(group: str, output: str) -> Iterable[Sample]:
    """The only line of figures: bytes, iterations, min, max, typical, average, standard deviation, percentiles."""
    line = next((line.split() for line in output.splitlines() if re.match(r"\s*\d+\s+\d+\s", line)), None)
    if line is None or len(line) < 7:
        raise BenchError(f"ib_write_lat printed no figures: {output.strip()[-100:]}")
    yield group, "µs", float(line[4])
    yield f"{group}, standard deviation", "µs", float(line[6])


def memory(setting: Setting) -> list[Row]:
    """KB that a protected queue pair needs more than a plain one: in the process, and in the machine as a whole
    (including the kernel). And the time until many connections are protected."""
    rows = Rows("memory")
    count = IDLE_SHIFT if setting.scale >= 0.1 else 10
    rounds = min(setting.rounds, 3)
    for number in range(rounds):
        taken: dict[tuple[str, int], tuple[float, float]] = {}
        for done, (variant, n) in enumerate(itertools.product((NATIVE, SHIFT), (1, count))):
            setting.progress((number + done / 4) / rounds, f"{n} connections, {variant}")
            with setting.guest.used() as vm:
                free = _available(vm)
                with _idle(setting, vm, variant, n) as process:
                    own = int(
                        vm.run(f"grep RssAnon /proc/{process.stdout.split()[1]}/status", check=True).stdout.split()[1]
                    )
                    taken[variant, n] = own, free - _available(vm)
                    if variant == SHIFT and n == count:
                        rows.add(
                            f"{n} connections: connected to all protected",
                            "s",
                            SHIFT,
                            number,
                            _last_protected(process),
                            "beside the program",
                        )
        for what, i in (("the process", 0), ("the machine", 1)):
            for variant in (NATIVE, SHIFT):
                rows.add(
                    f"a queue pair and what it needs, {what}",
                    "KB",
                    variant,
                    number,
                    (taken[variant, count][i] - taken[variant, 1][i]) / (2 * (count - 1)),
                    PAPER_MEMORY if i else "",
                )
    return rows.all()


def _available(vm: Any) -> float:
    """KB, after memory that is being freed has been freed."""
    text = vm.run("sync; sleep 0.5; grep MemAvailable /proc/meminfo", check=True).stdout
    return float(text.split()[1])


def _last_protected(process: Any) -> float:
    moments = re.findall(r'^manapy shift: ([\d.]+) \{.*"event":"protected"', process.stderr, re.MULTILINE)
    return max(map(float, moments)) - float(process.stdout.split()[2]) / 1e9


@contextmanager
def _idle(setting: Setting, vm: Any, variant: str, n: int) -> Iterator[Any]:
    """A program with n idle connections between the two devices; under SHIFT all are protected."""
    if n == 0:
        yield None
        return
    with setting.guest.failing():
        process = vm.start(
            [setting.guest.program("connections"), "idle", n, *DEVICES], env=setting.guest.environment(variant)
        )
        process.wait_for("ready")
        if variant == SHIFT:
            with vm.changed:
                vm.changed.wait_for(
                    lambda: process.stderr.count('"event":"protected"') >= 2 * n or process.poll() is not None,
                    setting.limit,
                )
            if process.stderr.count('"event":"protected"') < 2 * n:
                raise BenchError(f"{n} connections: not all protected within {setting.limit:.0f} s")
    try:
        yield process
    finally:
        with setting.guest.failing():
            process.signal(signal.SIGTERM)
            process.wait(setting.limit)

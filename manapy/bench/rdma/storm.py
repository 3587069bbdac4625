"""The failure storm: random failures and repairs of the two rails, under a program that checks every byte, with verbs
used in many ways (tools/vm/storm.py, tests/programs/rdma/stamps.c). Expected: zero lost, doubled, reordered or wrong
bytes, and no error that the program sees. Otherwise the row names the seed that failed."""

from __future__ import annotations

import re
from typing import Any

from ..shared.commands import BenchError, Setting
from ..shared.guest import MachineDiedError
from ..shared.samples import SHIFT, Row, Rows

FAILURES = 20  # with one seed
RAILS = (0, 1)  # of the traffic, and of its backup; at any time at least one of them works
DEATHS = 3  # of the machine, in total
WAYS = (
    "--kinds send,imm,write,flag,read --cq all -q 2",
    "--kinds send,imm,write,flag,read --events",
    "-q 4 --cq all --threads 2",
    "--kinds send,imm,write,flag,read --signal-every 1000 --depth 16",
    "--wr --pieces 1 --ex-poll 1 --events",
    "--kinds read,write,send -q 2 --pause 20",
    "--kinds send,write --size 200000",
    "--srq -q 3",
)


def storm(setting: Setting) -> list[Row]:
    """Survived failures, by seed; messages and bytes that were checked; number of moves of the traffic."""
    rows = Rows("storm")
    left, seed, died = setting.storm, setting.seed, 0
    while left > 0:
        failures = min(FAILURES, left)
        try:
            with setting.guest.used() as vm:
                _rage(setting, vm, rows, seed, failures, setting.storm - left)
        except MachineDiedError as error:
            died += 1
            if died <= DEATHS:
                continue  # this tells nothing about the traffic: the seed starts again, in a new machine
            rows.fail(f"seed {seed}", set(), SHIFT, str(error))
        except BenchError as error:
            rows.fail(f"seed {seed} ({WAYS[seed % len(WAYS)]})", set(), SHIFT, str(error))
        left, seed = left - failures, seed + 1
    return rows.all()


def _rage(setting: Setting, vm: Any, rows: Rows, seed: int, failures: int, before: int) -> None:
    shift, pairs, storms = (setting.guest.part(name) for name in ("shift", "pairs", "storm"))
    way = WAYS[seed % len(WAYS)].split()
    options = ["-n", 10**9, "--progress", 10, "--seed", seed, *way]
    pair = pairs.Pair.start(vm, setting.guest.program("stamps"), *options, env=setting.guest.environment(SHIFT))
    count = int(way[way.index("-q") + 1]) if "-q" in way else 1
    raging = storms.Storm(
        vm,
        seed=seed,
        rails=RAILS,
        on_step=lambda made, text: setting.progress((before + made) / setting.storm, f"seed {seed}, {text}"),
    )
    try:
        shift.wait_event(pair, "protected", count, timeout=setting.limit)
        raging.rage(pair, failures)
        shift.finish(pair)
    except BaseException:
        _keep(setting, seed, raging, pair)
        raise
    checked = [re.search(r"received (\d+) messages with (\d+) bytes", process.stdout) for process in pair.both]
    assert all(checked)
    for name, unit, value in (
        (f"seed {seed}: failures", "", failures),
        (f"seed {seed}: messages checked", "", sum(int(found[1]) for found in checked if found)),
        (f"seed {seed}: data checked", "MB", sum(int(found[2]) for found in checked if found) / 1e6),
        (f"seed {seed}: fallbacks of queue pairs", "", shift.count(pair.client, "fallback")),
        (f"seed {seed}: returns of queue pairs", "", shift.count(pair.client, "return")),
        (f"seed {seed}: lost, doubled, reordered or wrong messages, and errors", "", 0),
    ):
        rows.add(name, unit, SHIFT, 0, value)


def _keep(setting: Setting, seed: int, raging: Any, pair: Any) -> None:
    """Keep everything that helps to find out what happened."""
    text = "\n".join(
        [f"seed {seed}: {WAYS[seed % len(WAYS)]}", *raging.steps, *(process.report() for process in pair.both)]
    )
    (setting.pictures / f"storm-{seed}.txt").write_text(text + "\n")

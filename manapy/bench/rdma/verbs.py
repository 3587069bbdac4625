"""The cost of RDMA data verbs through libmanapy_shift.so, over a provider that does nothing: the same program with and
without it."""

from __future__ import annotations

import functools
from pathlib import Path

from ...core import installation
from ..shared.commands import LeftOutError, Setting
from ..shared.compare import compare, json_lines
from ..shared.samples import NATIVE, SHIFT, Row, Rows
from ..shared.tools import compile_one, rdma_source

GOAL = "≤ +5 ns"
VERBS = [
    "post_send",
    "post_send, 64 queue pairs in turn",
    "post_recv",
    "poll_cq, nothing there",
    "poll_cq, a send",
    "poll_cq, a receive",
    "req_notify_cq",
]
GOALS = dict.fromkeys([*VERBS, "ibv_wr_rdma_write, start to complete", "ibv_start_poll, a send"], GOAL)


def verbs(setting: Setting) -> list[Row]:
    """ns per call: median and minimum over the batches of each run. The provider's second device is the backup, so
    everything is protected."""
    library = installation.library("libmanapy_shift.so")
    if library is None:
        raise LeftOutError("this manapy was built without its RDMA part (apt install libibverbs-dev)")
    null, program = _null_provider(setting), setting.work / "verbs"
    compile_one(setting.tools.sources / "rdma" / "verbs.c", program, str(null))
    sysfs = setting.work / "sysfs"
    sysfs.mkdir()
    # with rings that the rewind can read, as on a real RNIC: so no journal is kept
    plain = [f"LD_LIBRARY_PATH={null.parent}", "NULLVERBS_INSTANT=1", f"NULLVERBS_SYSFS={sysfs}"]
    # no agent answers there: keys are requested outside the data path
    shift = [
        f"LD_PRELOAD={library}",
        f"MANAPY_SHIFT_AGENT={null.parent / 'agent'}",
        "MANAPY_SHIFT_JOB=bench",
        "MANAPY_SHIFT_BACKUP=null0:null1",
    ]

    def run(variant: str) -> str:
        return setting.run(["env", *plain, *(shift if variant == SHIFT else []), program, str(setting.ms)])

    rows = Rows("verbs")
    read = functools.partial(json_lines, minimum=True)
    compare(rows, setting, (NATIVE, SHIFT), 1, [program], group="data verbs", run=run, read=read, goals=GOALS)
    return rows.all()


def _null_provider(setting: Setting) -> Path:
    """Builds libibverbs.so.1 without RNICs, in a directory of its own."""
    source = rdma_source(setting.tools, "nullverbs.c")
    target = setting.work / "null" / "libibverbs.so.1"
    target.parent.mkdir()
    version_script = f"-Wl,--version-script={source.with_suffix('.map')}"
    compile_one(
        source, target, "-D_GNU_SOURCE", "-shared", "-fPIC", "-pthread", "-Wl,-soname,libibverbs.so.1", version_script
    )
    return target

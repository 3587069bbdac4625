"""Any two ways to write and to read images go together: beside the program, compressed, incremental, read late."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import Job, manapy
from manapy.ckpt.store import image
from phases import needs_way
from test_incremental import ends_well, go, parent

BESIDE, COMPRESS, LAZY = ("--background", "auto"), ("--compress", "on"), ("--lazy",)
FULL, HASH, PAGEMAP = ("--dirty", "off"), ("--dirty", "hash"), ("--dirty", "pagemap")
CASES = {  # each pair is in one of them, and all four
    "beside-compressed-hash": (*BESIDE, *COMPRESS, *HASH),
    "beside-compressed-pagemap": (*BESIDE, *COMPRESS, *PAGEMAP),
    "compressed-lazy": (*COMPRESS, *FULL, *LAZY),
    "hash-lazy": (*HASH, *LAZY),
    "pagemap-lazy": (*PAGEMAP, *LAZY),
    "all-with-hash": (*BESIDE, *COMPRESS, *HASH, *LAZY),
    "all-with-pagemap": (*BESIDE, *COMPRESS, *PAGEMAP, *LAZY),
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_through_restarts(make_job: Callable[..., Job], mostly_idle: Path, options: tuple[str, ...]) -> None:
    if "pagemap" in options:
        needs_way("pagemap")
    written = tuple(option for option in options if option not in LAZY)
    job = make_job()
    job.start(mostly_idle, "8", options=written)
    job.wait_for("begun")
    step = 0
    for _ in range(2):
        first = job.checkpoint()
        step += 1
        go(job, step)
        second = job.checkpoint()
        assert (parent(second) == first.name) is ("off" not in options)
        kinds = {run.kind for path in second.glob("rank-*.img") for run in image.Image.open(path).runs}
        assert (image.RUN_ZIPPED in kinds) is ("--compress" in options)
        assert manapy("verify", second).returncode == 0
        job.kill()
        job.restart(options=options).wait_until_it_runs()
    step += 1
    go(job, step)
    ends_well(job)

"""Any two ways to write and to read images go together: beside the program, compressed, incremental, read late."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from jobs import Job, manapy
from manapy.ckpt.store import image
from test_incremental import ends_well, go, parent

BESIDE, COMPRESS, DIRTY, LAZY = ("--background", "auto"), ("--compress", "on"), ("--dirty", "hash"), ("--lazy",)
CASES = {  # each pair is in one of them, and all four
    "beside-compressed-incremental": (*BESIDE, *COMPRESS, *DIRTY),
    "compressed-lazy": (*COMPRESS, *LAZY),
    "incremental-lazy": (*DIRTY, *LAZY),
    "all": (*BESIDE, *COMPRESS, *DIRTY, *LAZY),
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_through_restarts(make_job: Callable[..., Job], options: tuple[str, ...]) -> None:
    written = tuple(option for option in options if option not in LAZY)
    job = make_job()
    job.start_python("moments/mostly_idle.py", "8", options=written)
    job.wait_for("begun")
    step = 0
    for _ in range(2):
        first = job.checkpoint()
        step += 1
        go(job, step)
        second = job.checkpoint()
        assert (parent(second) == first.name) is ("--dirty" in options)
        kinds = {run.kind for path in second.glob("rank-*.img") for run in image.Image.open(path).runs}
        assert (image.RUN_ZIPPED in kinds) is ("--compress" in options)
        assert manapy("verify", second).returncode == 0
        job.kill()
        job.restart(options=options).wait_until_it_runs()
    step += 1
    go(job, step)
    ends_well(job)

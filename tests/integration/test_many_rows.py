"""Thousands of rows in the clock: the lists of them don't fit into one line of the control protocol."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from jobs import Job


@pytest.mark.parametrize(("communicators", "requests"), [(1500, 10_000)])
def test_many_rows(make_job: Callable[..., Job], communicators: int, requests: int) -> None:
    job = make_job(2).start_python("many_rows.py", str(communicators), str(requests), "4")
    job.wait_for("made")
    for _ in range(2):
        begin = time.monotonic()
        job.checkpoint()
        assert time.monotonic() - begin < 15
    job.kill()
    job.restart()
    job.checkpoint()
    assert "ok" in job.finish().splitlines()

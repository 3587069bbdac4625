"""Programs that find holes in the protocol, checkpointed at random moments (tests/programs/moments/*.c say what is
special).

crossed_ibarriers  nonblocking collectives started in different orders on congruent communicators
maker_threads      threads that make communicators of the same groups at the same time
parked_chain       point-to-point dependencies through ranks that park at the entry of a collective
parked_buffers     buffered sends that are waited for while their receiver parks
request_threads    threads that start nonblocking collectives while their rank reports its state

Every checkpoint must converge; how long it took to a safe state is recorded with the test (property "seconds").
"""

from __future__ import annotations

import random
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import BIN, PROGRAMS, Job
from rounds import rounds

MICROSECONDS = "500"  # of work now and then
RESTARTS = BETWEEN = rounds(2, 3)  # kills, and the number of checkpoints after which the job goes on, before each kill
SAFE = re.compile(r"\(([0-9.]+) s to a safe moment\)")


def digest(output: str) -> tuple[str, str]:
    """The digest, and the number of steps."""
    found = re.findall(r"^digest (\d+) of (\d+) steps$", output, re.M)
    assert len(found) == 1, output
    return found[0]


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("crossed_ibarriers", 2),
        ("crossed_ibarriers", 4),
        ("parked_chain", 4),
        ("parked_buffers", 4),
        ("request_threads", 2),
        ("maker_threads", 2),
    ],
)
def test_same_digest(
    make_job: Callable[..., Job],
    c_program: Callable[[Path], Path],
    record_property: Callable[[str, object], None],
    name: str,
    ranks: int,
) -> None:
    job, moments = make_job(ranks), random.Random(f"{name} {ranks}")
    program, stop = c_program(PROGRAMS / f"moments/{name}.c"), job.where / "stop"
    job.start(program, "1000000", MICROSECONDS, stop)
    job.wait_for("step")
    for _ in range(RESTARTS):
        for _ in range(BETWEEN):
            time.sleep(moments.uniform(0, 0.3))
            job.checkpoint()
        time.sleep(moments.uniform(0, 0.1))
        job.kill()
        job.restart()
        job.wait_for("step")
    stop.touch()
    value, steps = digest(job.finish())
    log = (job.dir / "coordinator.log").read_text()
    assert "nothing reported" not in log, "a time-out had to help"
    seconds = [float(s) for s in SAFE.findall(log)]
    assert len(seconds) == RESTARTS * BETWEEN
    record_property("seconds", seconds)

    job.env["LD_LIBRARY_PATH"] = str(Path(sys.prefix) / "lib")
    native = job.spawn([BIN / "mpirun", "-n", str(ranks), program, steps, "0"]).finish()
    assert digest(native) == (value, steps)

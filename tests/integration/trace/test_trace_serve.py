"""`manapy trace serve` on a real job: what it serves is what other commands say of the job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs import BIN, PATIENCE, Job, manapy
from prometheus_client import parser as plain
from prometheus_client.openmetrics import parser as openmetrics

RANKS = 2

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Served:
    """A running `manapy trace serve`. url: what it has printed."""

    def __init__(self, *arguments: str | Path) -> None:
        command = [str(word) for word in (BIN / "manapy", "trace", "serve", "--port", "0", *arguments)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def scrape(self) -> Samples:
        """All samples, by name and labels."""
        request = urllib.request.Request(self.url, headers={"Accept": "application/openmetrics-text;version=1.0.0"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            text = answer.read().decode()
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in openmetrics.text_string_to_metric_families(text)
            for sample in family.samples
        }

    def wait_for(self, what: Callable[[Samples], object]) -> Samples:
        """Scrape until the samples satisfy a condition."""
        deadline = time.monotonic() + PATIENCE
        while not what(found := self.scrape()):
            assert time.monotonic() < deadline, "\n".join(f"{key}: {value}" for key, value in found.items())
            time.sleep(0.1)
        return found

    def end(self) -> tuple[int, str]:
        """Wait until it has ended; its exit code and standard error."""
        _, said = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, said


def labels(**named: str) -> frozenset[tuple[str, str]]:
    return frozenset(named.items())


def by_rank(found: Samples, name: str) -> dict[int, float]:
    """The values of a metric, summed up for each rank."""
    values: Counter[int] = Counter()
    for (known, of), value in found.items():
        if known == name:
            values[int(dict(of)["rank"])] += value  # type: ignore[assignment]
    return dict(values)


def states(found: Samples) -> dict[int, str]:
    return {int(dict(of)["rank"]): dict(of)["state"] for name, of in found if name == "manapy_rank_state"}


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Return a function that starts a server."""
    made: list[Served] = []

    def start(*arguments: str | Path) -> Served:
        made.append(Served(*arguments))
        return made[-1]

    yield start
    for served in made:
        served.process.kill()
        served.process.communicate()


STANDS = ("manapy_verdict_seconds", labels(state="hung", cause="stopped process", rank="1"))


@pytest.mark.mpi
def test_from_a_job_that_works_to_its_end(
    make_job: Callable[..., Job], serve: Callable[..., Served], tmp_path: Path
) -> None:
    job = make_job(RANKS)
    job.start_python("trace/stuck.py", "healthy")
    job.wait_for("going on")
    served, other = serve(job.dir, "--every", "200ms"), serve(job.dir)

    found = served.scrape()
    assert found["manapy_job_ranks", labels()] == RANKS
    assert found["manapy_coordinator_ranks", labels(state="running")] == RANKS
    assert found["manapy_checkpoints_total", labels()] == 0 and ("manapy_checkpoint_age_seconds", labels()) not in found
    calls = by_rank(found, "manapy_mpi_calls_total")
    assert all(0 < made for made in calls.values())
    waited, observed = (by_rank(found, f"manapy_mpi_{name}_seconds_total") for name in ("wait", "observed"))
    assert all(0 <= waited[rank] <= observed[rank] for rank in range(RANKS))

    parallel, *factors = (
        found[f"manapy_{name}_efficiency_ratio", labels()] for name in ("parallel", "load_balance", "communication")
    )
    assert 0 < parallel == pytest.approx(factors[0] * factors[1]) and max(factors) <= 1

    job.checkpoint()
    found = served.wait_for(lambda now: ("manapy_checkpoint_stood_seconds", labels()) in now)
    status = job.status()
    assert found["manapy_checkpoints_total", labels()] == found["manapy_checkpoints_kept", labels()] == 1
    assert found["manapy_checkpoint_bytes", labels()] == status["last_checkpoint"]["bytes"]
    assert found["manapy_checkpoint_stood_seconds", labels()] == status["stood"] > 0
    age = found["manapy_checkpoint_age_seconds", labels()]
    assert 0 <= age <= time.time() - status["last_checkpoint"]["time"]
    served.wait_for(lambda now: now["manapy_checkpoint_age_seconds", labels()] > age)

    pid = job.pids()[1]
    os.kill(pid, signal.SIGSTOP)
    found = served.wait_for(lambda now: STANDS in now and states(now)[1] == "stopped")
    said = json.loads(manapy("trace", "top", job.dir, "--json").stdout)
    assert found["manapy_job_state", labels(state=said["state"])] == 1 and said["state"] == "hung"
    assert states(found) == {row["rank"]: row["state"] for row in said["ranks"]}
    assert by_rank(found, "manapy_rank_awaited_by") == {row["rank"]: row["awaited_by"] for row in said["ranks"]}
    exported = tmp_path / "calls.prom"
    assert manapy("trace", "export", job.dir, "--format", "openmetrics", "--out", exported).returncode == 0
    whole = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in openmetrics.text_string_to_metric_families(exported.read_text())
        for sample in family.samples
    }
    assert all(made > calls[rank] for rank, made in by_rank(found, "manapy_mpi_calls_total").items())
    assert by_rank(found, "manapy_mpi_calls_total") == by_rank(whole, "manapy_mpi_calls_total")
    os.kill(pid, signal.SIGCONT)
    found = served.wait_for(lambda now: STANDS not in now and states(now)[1] != "stopped")
    assert found["manapy_verdicts_total", labels(state="hung", cause="stopped process")] == 1

    with urllib.request.urlopen(served.url) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert "manapy_job_ranks" in {
            family.name for family in plain.text_string_to_metric_families(answer.read().decode())
        }
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(served.url.removesuffix("metrics"))
    port = served.url.split(":")[2].split("/")[0]
    taken = manapy("trace", "serve", job.dir, "--port", port)
    assert taken.returncode == 2 and taken.stderr.startswith(f"manapy: 127.0.0.1 port {port} cannot be used: ")
    assert len(taken.stderr.splitlines()) == 1

    other.process.send_signal(signal.SIGINT)
    assert other.end() == (0, "no longer served; the job goes on\n")
    (job.where / "end").touch()
    assert job.wait() == 0
    assert served.end() == (0, "the job has ended\n")

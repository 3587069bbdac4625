"""`manapy trace serve`: the metrics of made-up looks, the dashboard, and wrong input. A real job:
integration/trace/test_trace_serve.py."""

from __future__ import annotations

import json
import re
import socket
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.openmetrics import exposition, parser
from traces import receive, saved

from manapy import cli
from manapy.cli.watch.metrics import EACH, JobSample, Saved, families
from manapy.trace.capture import format
from manapy.trace.live.rank_rows import Row, State
from manapy.trace.live.totals import Totals
from manapy.trace.model import verdict
from manapy.trace.model.efficiency import Efficiency
from manapy.trace.model.verdict import Cause, Verdict

SAVED = Saved("job-1", 7, 2, 1000.0, 4096, 0.25, {"running": 2})
STOPPED = Verdict(verdict.State.HUNG, "rank 1 is stopped", Cause.STOPPED, 1)
KNOT = Verdict(verdict.State.HUNG, "deadlock", Cause.DEADLOCK)


def looked(rows: list[Row], *standing: tuple[Verdict, float]) -> JobSample:
    totals = Totals(len(rows))
    totals.calls += np.arange(len(rows))
    totals.sent += 8.0
    return JobSample(
        50.0,
        3,
        "job",
        verdict.State.HUNG,
        rows,
        totals,
        list(standing),
        Counter({("hung", "deadlock"): 2}),
        1.5,
        Efficiency(0.5, 0.8, 0, 10**9),
    )


def samples(look: JobSample, saved: Saved | None = SAVED) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """All samples, by name and labels, after a way through the format."""

    class Registry:
        def collect(self) -> Any:
            return families(look, saved, 60.0, 1030.0)

    text = exposition.generate_latest(Registry()).decode()  # type: ignore[arg-type]
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


ROWS = [
    Row(0, "a", State.WAITING, 2_500_000_000, awaited_by=0, mostly_for=1),
    Row(1, "b", State.STOPPED, None, awaited_by=1),
]


def test_every_value() -> None:
    found = samples(looked(ROWS, (STOPPED, 20.0), (STOPPED, 40.0), (KNOT, 55.0)))
    rank0, rank1 = (("host", "a"), ("rank", "0")), (("host", "b"), ("rank", "1"))
    assert found["manapy_job_info", (("id", "job-1"), ("recording", "job"))] == 1
    assert {labels[0][1]: value for (name, labels), value in found.items() if name == "manapy_job_state"} == {
        state.value: float(state is verdict.State.HUNG) for state in verdict.State
    }
    assert found["manapy_job_ranks", ()] == 2 and found["manapy_looks_total", ()] == 3
    assert found["manapy_look_age_seconds", ()] == 10
    assert found["manapy_ranks", (("host", "b"), ("state", "stopped"))] == 1
    assert found["manapy_rank_state", (*rank0, ("state", "waiting"))] == 1
    assert found["manapy_rank_state_seconds", rank0] == 2.5 and ("manapy_rank_state_seconds", rank1) not in found
    assert found["manapy_rank_awaited_by", rank1] == 1
    assert found["manapy_rank_mostly_waits_for", rank0] == 1
    assert found["manapy_mpi_calls_total", rank1] == 1 and found["manapy_mpi_sent_bytes_total", rank0] == 8
    assert found["manapy_iteration_seconds", ()] == 1.5
    assert found["manapy_parallel_efficiency_ratio", ()] == 0.4
    assert found["manapy_load_balance_efficiency_ratio", ()] == 0.5
    assert found["manapy_communication_efficiency_ratio", ()] == 0.8
    stands = (("cause", "stopped process"), ("rank", "1"), ("state", "hung"))
    assert found["manapy_verdict_seconds", stands] == 40
    assert found["manapy_verdict_seconds", (("cause", "deadlock"), ("rank", ""), ("state", "hung"))] == 5
    assert found["manapy_verdicts_total", (("cause", "deadlock"), ("state", "hung"))] == 2
    checkpoints = {name: value for (name, _), value in found.items() if name.startswith("manapy_checkpoint")}
    assert checkpoints == {
        "manapy_checkpoints_total": 7,
        "manapy_checkpoints_kept": 2,
        "manapy_checkpoint_age_seconds": 30,
        "manapy_checkpoint_bytes": 4096,
        "manapy_checkpoint_stood_seconds": 0.25,
    }
    assert found["manapy_coordinator_ranks", (("state", "running"),)] == 2


def test_what_is_not_known_has_no_samples() -> None:
    assert not [name for name, _ in samples(looked(ROWS), None) if "checkpoint" in name or "coordinator" in name]
    nothing = samples(looked(ROWS), Saved("job-1", 0, 0, None, None, None, {}))
    assert {name for name, _ in nothing if "checkpoint" in name} == {
        "manapy_checkpoints_total",
        "manapy_checkpoints_kept",
    }


def test_many_ranks_are_sums_of_hosts() -> None:
    rows = [Row(rank, f"node{rank % 4}", State.COMPUTING) for rank in range(EACH + 4)]
    found = samples(looked(rows))
    assert len(found) < 100
    assert found["manapy_ranks", (("host", "node1"), ("state", "computing"))] == EACH // 4 + 1
    calls = {labels: value for (name, labels), value in found.items() if name == "manapy_mpi_calls_total"}
    assert sum(calls.values()) == sum(range(EACH + 4))
    assert list(calls) == [(("host", f"node{i}"), ("rank", "")) for i in range(4)]


def test_the_dashboard_names_only_metrics_that_are_served(root: Path) -> None:
    board = json.loads((root / "docs/grafana.json").read_text())
    said = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    said += [variable["query"] for variable in board["templating"]["list"]]
    named = {name for text in said for name in re.findall(r"manapy_\w+", text)}
    assert named <= {name for name, _ in samples(looked(ROWS, (KNOT, 1.0)))} and len(named) > 12


# ---- wrong input: one line


def error(capsys: pytest.CaptureFixture[str], code: int, *arguments: str | Path) -> str:
    assert cli.main(["trace", "serve", *map(str, arguments)]) == code
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert not said.out
    return line


def test_a_saved_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = error(capsys, 2, saved(tmp_path / "saved", receive(1), receive(0)))
    assert "is a saved recording: nothing happens there; 'manapy trace export --format openmetrics'" in line


def test_no_such_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert "nowhere: no such recording" in error(capsys, 1, "nowhere")


def test_a_port_that_is_too_large(capsys: pytest.CaptureFixture[str]) -> None:
    assert error(capsys, 2, "--port", "65536") == "manapy: --port must be at most 65535"


def test_an_interval_that_is_too_short(capsys: pytest.CaptureFixture[str]) -> None:
    assert error(capsys, 2, "--every", "1ms") == "manapy: --every must be at least 0.1 s"


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a recording whose job has ended."""
    monkeypatch.setattr(format, "root", lambda uid=None: tmp_path)
    saved(tmp_path / "ended-00000000", receive(1), receive(0))
    return "ended-00000000"


def test_a_job_that_has_ended(ended: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert error(capsys, 1, ended, "--port", "0").startswith(f"manapy: {ended}: the job has ended; 'manapy trace")


def test_a_port_in_use(ended: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        line = error(capsys, 2, ended, "--port", str(port))
    assert f"127.0.0.1 port {port} cannot be used: Address already in use; give another --port" in line


def test_an_address_that_is_not_here(ended: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "192.0.2.1 port 0 cannot be used: " in error(capsys, 2, ended, "--port", "0", "--address", "192.0.2.1")


def test_without_the_package(ended: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert "metrics need the package prometheus-client, manapy's extra 'metrics'" in error(capsys, 1, ended)

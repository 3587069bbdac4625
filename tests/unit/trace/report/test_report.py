"""The page of `manapy trace report`: its content, the escaping of foreign markup, its limited size, and pages of traces
that contain little."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from traces import SECOND, Builder

from manapy.trace.live.diagnose import diagnose, labels_of
from manapy.trace.model.events import OPEN, Op, Trace
from manapy.trace.model.schedule import Schedule, parse
from manapy.trace.model.verdict import Cause, State, Verdict
from manapy.trace.report import critical, queues, report
from manapy.bench.trace.simulate import Fault, Kind, Model, simulate

MODEL = Model(parse("tp=2,pp=4,dp=2,micro=8"), iterations=8)
SLOW = Fault(Kind.COMPUTE, 5, 4, 2, seconds=0.8, segment=1)
VOID = {"meta"}


class Page(HTMLParser):
    """Parses a page, and checks that every element is closed.

    text: all text that is shown.
    texts: texts by element.
    elements: (tag, attributes).
    data: the data of the script.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.data: dict[str, Any] = {}
        self.text = ""
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self._open:
            return
        if self._open[-1] == "script" and self.elements[-1][1].get("id") == "data":
            self.data = json.loads(data)
        self.texts.setdefault(self._open[-1], []).append(data)
        if data.strip() and self._open[-1] not in ("script", "style", "title"):
            self.text += f"{data}\n"

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def column(known: dict[str, str]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(known["values"]), "<" + known["type"])


def made(trace: Trace, schedule: Schedule | None = None) -> tuple[Page, str]:
    """Make a page as the command makes it."""
    text = report.page(trace, diagnose(trace, schedule), labels_of(trace, schedule)[0])
    return Page(text), text


def simulated(*faults: Fault, model: Model = MODEL) -> Trace:
    trace = simulate(model, faults, 1).trace
    assert trace is not None
    return trace


def test_a_slow_iteration() -> None:
    trace = simulated(SLOW)
    page, _ = made(trace)
    assert "rank 5 (node00) is slow in forward of micro-batch 2, iteration 4" in "".join(page.texts["b"])
    assert {"class": "verdict slow"} in page.all("div")
    assert any(text.startswith("parallel efficiency ") for text in page.texts["p"])
    assert [c["id"] for c in page.all("canvas")] == ["timeline", "heatmap"]
    marks = {name: column(values) for name, values in page.data["marks"].items()}
    assert {len(values) for values in marks.values()} == {len(trace.events)}
    at = int(np.flatnonzero(trace.events["rank"] == 4)[marks["waited"][marks["lane"] == 4].argmax()])
    assert marks["who"][at] == 5 and (marks["iteration"][at], marks["micro"][at]) == (4, 2)
    begin = trace.events["enter"].min()
    assert (marks["begin"].astype(int) == trace.events["enter"] - begin).all()
    ratio = column(page.data["heat"]["cells"]["ratio"]).reshape(16, 8)
    assert np.unravel_index(ratio.argmax(), ratio.shape) == (5, 4) and ratio.max() > 1.5
    assert page.data["flags"][0]["text"] == "rank 5"


def test_the_critical_path_in_numbers() -> None:
    page, _ = made(simulated(SLOW), MODEL.schedule)
    assert "Critical path of iteration 4, which a verdict names" in page.texts["h2"]
    blocks = page.all("rect")
    assert len(blocks) == MODEL.schedule.pp * MODEL.schedule.blocks
    on = [block for block in blocks if "on" in str(block["class"]).split()]
    for block in blocks:
        assert (
            critical.LEFT - 0.1 <= float(str(block["x"]))
            and float(str(block["x"])) + float(str(block["width"])) <= critical.WIDTH
        )
    widest = max(blocks, key=lambda block: float(str(block["width"])))
    assert (
        widest in on and "forward of micro-batch 2 on rank 5 (stage 1)" in page.texts["title"][1 + blocks.index(widest)]
    )
    # together they cover the whole iteration, except for blocks shorter than a pixel
    path = sorted(on, key=lambda block: float(str(block["x"])))
    ends = [float(str(block["x"])) + float(str(block["width"])) for block in path]
    assert all(abs(float(str(after["x"])) - end) < 3 for after, end in zip(path[1:], ends, strict=False))
    first, second = page.text.split("on the critical path\n")[1].split("most expensive blocks on it")
    shares = [int(line) for line in first.splitlines() if line.isdigit()]
    assert "forward work" in first and len(shares) >= 5 and 97 <= sum(shares) <= 103
    name, took, usually = second.splitlines()[3:6]
    assert (
        name == "forward of micro-batch 2 on rank 5 (stage 1)"
        and took.startswith(("83", "84"))
        and usually.startswith(("39", "40", "41"))
    )


def test_a_link_on_the_critical_path() -> None:
    """If a sender waits for its previous message, the path goes through that message, not through the sender's work."""
    model = replace(MODEL, synchronous=True)
    page, _ = made(simulated(Fault(Kind.LINK, 5, 4, factor=200, until=5), model=model), model.schedule)
    sums = page.text.split("on the critical path\n")[1].split("most expensive blocks on it")[0].split("\n")
    shares = [int(line) for line in sums if line.isdigit()]
    assert 97 <= sum(shares) <= 103 and int(sums[sums.index("messages between stages") + 2]) > 50, sums


def test_a_job_that_is_stuck() -> None:
    trace = simulated(Fault(Kind.SPIN, 5, 5, 2))
    page, _ = made(trace, MODEL.schedule)
    assert {"class": "verdict late"} in page.all("div") and "Calls that have not returned" in page.texts["h2"]
    bits, length = column(page.data["marks"]["bits"]), column(page.data["marks"]["length"])
    stuck = trace.events["exit"] == OPEN
    assert ((bits & 1 == 1) == stuck).all() and (length[stuck] >= 4e9).all()
    rows = [text for text in page.texts["td"] if text.startswith("MPI_Recv from rank 5")]
    assert rows, "the call of a victim"
    assert "the longest" in next(text for text in page.texts["h2"] if text.startswith("Critical"))


def test_without_a_schedule_the_share_of_mpi() -> None:
    job = Builder(3)
    for i in range(20):
        for rank in range(3):
            job.call(rank, Op.BARRIER, i * 10**7 + rank * 10**6, i * 10**7 + 3 * 10**6)
    page, _ = made(job.trace(2 * 10**8))
    assert "Share of the time in MPI" in page.texts["h2"] and not page.all("svg")
    share = column(page.data["heat"]["cells"]["value"]).reshape(3, -1)
    assert np.nanmean(share, axis=1) == pytest.approx([0.3, 0.2, 0.1], rel=0.05)
    cells = page.texts["td"]
    first = cells.index("wait at N×N") - 3
    assert cells[first : first + 7] == [
        "rank 0 (node0)",
        "rank 2 (node0)",
        "MPI_Barrier",
        "wait at N×N",
        "20",
        "40 ms",
        "2 ms",
    ]


def test_a_schedule_that_does_not_fit_is_said_and_not_used() -> None:
    page, _ = made(simulated(), parse("tp=4,pp=4,dp=1,micro=8"))
    assert "doesn't fit" in page.text and not page.all("svg")


EVIL = '</script><img src=x onerror="alert(1)"><!-- &amp; \u2028\''


def test_names_are_text() -> None:
    trace = simulated(SLOW, model=replace(MODEL, iterations=5))
    trace.job = EVIL
    trace.problems.append(EVIL)
    trace.comms[:] = [replace(comm, name=EVIL) for comm in trace.comms]
    for known in trace.ranks.values():
        known.host = EVIL
        known.problems.append(EVIL)
    verdict = Verdict(
        State.HUNG, EVIL, Cause.DEAD, 3, evidence=(EVIL,), alternatives=(EVIL,), action=EVIL, since_ns=trace.now
    )
    text = report.page(trace, [verdict], labels_of(trace, MODEL.schedule)[0])
    page = Page(text)
    assert {tag for tag, _ in page.elements} <= set(
        "html head meta title style body h1 h2 p div b ul li i span button canvas svg text rect polyline "
        "table tr th td code noscript script".split()
    )
    assert not any(
        name.startswith("on") or name in ("src", "href") for _, attributes in page.elements for name in attributes
    )
    assert "<img" not in text and text.count("</script>") == 2 and "<!--" not in text
    assert page.texts["b"] == [EVIL] and EVIL in page.data["comms"] and page.data["lanes"][0] == f"rank 0 ({EVIL})"


def test_it_asks_nobody_for_anything() -> None:
    page, text = made(simulated(model=replace(MODEL, iterations=4)))
    assert {
        "http-equiv": "Content-Security-Policy",
        "content": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'",
    } in page.all("meta")
    assert "://" not in text and "@import" not in text and "url(" not in text
    assert not page.all("link") and not page.all("img")


def test_a_large_trace_makes_no_large_page() -> None:
    model = Model(parse("tp=2,pp=4,dp=128,micro=8"), iterations=12)
    trace = simulated(SLOW, model=model)
    assert len(trace.events) > 10**6
    page, text = made(trace, model.schedule)
    assert len(text) < 4_000_000
    assert (
        f"{1024 - report.LANES} of 1,024 ranks (or threads) are left out" in page.text
        and "are too many to be drawn one by one" in page.text
    )
    assert "more rows are left out" in page.text
    marks = {name: column(values) for name, values in page.data["marks"].items()}
    assert report.MARKS / 2 < len(marks["lane"]) <= report.MARKS
    assert "rank 5 (node00)" in page.data["lanes"]
    kept = [int(lane.split()[1]) for lane in page.data["lanes"]]
    assert marks["calls"].sum() == np.isin(trace.events["rank"], kept).sum()


def test_many_verdicts_and_problems_and_long_texts() -> None:
    trace = simulated(model=replace(MODEL, iterations=4))
    trace.problems += ["x" * 10**5] * 1000
    text = report.page(trace, [Verdict(State.SLOW, "y" * 10**5, evidence=("z" * 10**4,) * 1000)] * 1000)
    assert len(text) < 4_000_000 and "940 more" in text and "976 more verdicts" in text


def test_nothing_recorded() -> None:
    page, _ = made(Builder(2).trace(0))
    assert (
        "No call is recorded." in page.texts["p"]
        and not page.all("canvas")
        and {"class": "verdict unknown"} in page.all("div")
    )


def test_gaps_are_said() -> None:
    trace = simulated()
    keep = np.ones(len(trace.events), bool)
    mine = np.flatnonzero(trace.events["rank"] == 3)
    keep[mine[:500]] = False
    keep[trace.events["rank"] == 9] = False
    first = int(trace.events["enter"][mine[500]])
    ranks = {rank: known for rank, known in trace.ranks.items() if rank != 9}
    ranks[3] = replace(ranks[3], lost=500, first_ns=first)
    page, _ = made(replace(trace, events=trace.events[keep], ranks=ranks))
    assert "no records of rank 9" in page.texts["li"]
    assert any(text.startswith("rank 3: 500 records lost") and "whole from" in text for text in page.texts["li"])
    assert "15 of 16 ranks" in page.text
    assert np.isnan(column(page.data["heat"]["cells"]["value"]).reshape(16, -1)[9]).all()


def test_a_few_ranks_that_have_finalized() -> None:
    job = Builder(2)
    for rank in range(2):
        job.call(rank, Op.INIT, 0, 10, comm=-1, context=0)
        job.call(rank, Op.FINALIZE, 10**6, 2 * 10**6, comm=-1, context=0)
        job.ranks[rank] = replace(job.ranks[rank], ended=True)
    page, _ = made(job.trace(10**12))
    assert page.data["span"] == 2 * 10**6


def test_the_script_is_one() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is needed")
    subprocess.run([node, "--check", Path(report.__file__).with_suffix(".js")], check=True, timeout=60)


def with_queue_pairs() -> Trace:
    """Return a trace with two queue pairs. That of rank 0 switches to another device at 2 s and is slower afterwards;
    that of rank 1 does not."""
    job = Builder(2, hosts=2)
    for rank in range(2):
        job.call(rank, Op.BARRIER, 0, 4 * SECOND)
    for at, device, posted, completed in ((0, 0, 0, 0), (1, 0, 100, 100), (2, 0, 200, 150), (3, 1, 250, 200)):
        job.call(
            0,
            Op.RDMA_QP,
            at * SECOND,
            at * SECOND,
            thread=1,
            comm=0x11A,
            peer=0x22B,
            tag=device,
            request=posted,
            context=completed,
            bytes=posted * 1000,
        )
    for at in (0, 3):
        job.call(
            1,
            Op.RDMA_QP,
            at * SECOND,
            at * SECOND,
            thread=1,
            comm=0x11B,
            peer=0x22C,
            tag=0,
            request=at,
            context=at,
            bytes=at,
        )
    trace = job.trace(4 * SECOND)
    trace.devices += ["mlx5_0", "mlx5_<b>"]
    return trace


def test_queue_pairs() -> None:
    page = Page(report.page(with_queue_pairs(), []))
    cells = page.texts["td"]
    row = cells.index("0x11a")
    assert cells[row - 1 : row + 9] == [
        "rank 0",
        "0x11a",
        "0x22b",
        "mlx5_0, at last mlx5_<b>",
        "1",
        "250",
        "200",
        "50",
        "250,000",
        "1.0 s",
    ]
    assert ["rank 1", "0x11b", "0x22c", "mlx5_0", "0"] == cells[cells.index("0x11b") - 1 : cells.index("0x11b") + 4]
    assert {"node0 mlx5_0", "node0 mlx5_<b>", "node1 mlx5_0"} <= set(page.texts["text"])


def test_traffic_by_device_and_time() -> None:
    trace = with_queue_pairs()
    moved = queues.traffic(trace, queues.queue_pairs(trace), 0, 4 * SECOND, 4)
    assert {key: values.tolist() for key, values in moved.items()} == {
        ("node0", "mlx5_0"): [100e3, 100e3, 0, 0],
        ("node0", "mlx5_<b>"): [0, 0, 50e3, 0],
        ("node1", "mlx5_0"): [1, 1, 1, 0],
    }


def test_no_queue_pairs_no_section() -> None:
    job = Builder(1)
    job.call(0, Op.BARRIER, 0, 1)
    assert "RDMA" not in Page(report.page(job.trace(10), [])).text

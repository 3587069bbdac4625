"""`manapy bench fcdp` runs and prints every row, and the figures that do not depend on the machine's load are right.
Times are not checked."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from jobs import BIN, PATIENCE, manapy
from manapy.bench import FCDP_JOBS
from manapy.bench.fcdp.sharded_bytes import LIMIT, PARTS
from manapy.bench.shared.cluster import orphans
from manapy.fcdp.engine.strategy import STRATEGIES

NEEDED = (
    "fcdp-bytes",
    "fcdp-reduction",
    "fcdp-memory",
    "fcdp-paths",
    "fcdp-overlap",
    "fcdp-retention",
    "fcdp-timeline",
)
VARIANTS = {"alone", "fcdp-tau", "fcdp", "zero3", "hpz", "hpz_naive", "mics"}
needs_nodes = pytest.mark.skipif(os.geteuid() != 0, reason="emulated nodes need root")


@needs_nodes
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_quick_run(tmp_path: Path) -> None:
    # it needs none
    done = manapy(
        "bench",
        "--quick",
        "--timeout",  # other tests run at the same time
        "5m",
        "--only",
        ",".join(NEEDED),
        "--out",
        tmp_path / "out",
        timeout=580,
        cwd=tmp_path,
        env={"CC": "/no/such/compiler"},
    )
    written = json.loads((tmp_path / "out" / "result.json").read_text())
    if any("not available here" in why for why in written["left out"].values()):
        pytest.skip(str(written["left out"]))
    assert done.returncode == 0, done.stdout + done.stderr
    assert written["left out"] == {} and set(NEEDED) <= set(FCDP_JOBS)
    rows = {
        (row["job"], row["name"]): {variant: samples[0] for variant, samples in row["samples"].items()}
        for row in written["rows"]
    }
    for label in ("full, k=1", "full, k=2", "LoRA, k=1", "LoRA, k=2"):
        assert set(rows["fcdp-bytes", f"{label}: a step in all"]) == set(STRATEGIES)
        assert max(rows["fcdp-bytes", f"{label}: interfaces beside the closed form, at most"].values()) <= LIMIT
        # except for padding
        assert max(rows["fcdp-bytes", f"{label}: engine's counters beside the closed form, at most"].values()) < 0.1
        assert all(("fcdp-bytes", f"{label}: {title}") in rows for title in PARTS.values())
    assert rows["fcdp-bytes", "full, k=2: a step, in W"]["fcdp"] <= 1.02
    assert rows["fcdp-bytes", "LoRA, k=2: a step, in trainable bytes × 2(N−1)/N"]["fcdp"] <= 1.05
    assert rows["fcdp-reduction", "LoRA of rank 1 on 2 × 2 ranks, at the interfaces: less than zero3"]["fcdp"] > 99
    batches = rows["fcdp-memory", "largest batch, GPT-30B 16 times narrower, 2 nodes × 2"]
    assert batches["fcdp"] == batches["zero3"] == 256 and batches["hpz"] == batches["mics"] == 0
    for label, weights in (("LoRA, k=1", 1), ("full, k=1", 1), ("full, k=2", 2)):
        # units that are in progress are W / 16 each
        assert rows["fcdp-memory", f"{label}: beyond zero3's"]["fcdp"] == pytest.approx(weights, abs=0.25)
    assert all(
        rows["fcdp-paths", f"4 MB from {source}"]["fcdp"] > 0 for source in ("the host's memory", "all nodes, 1 Gb/s")
    )
    assert (
        set(rows["fcdp-overlap", "LoRA, 16 samples, 100 Mb/s: a step"])
        == set(rows["fcdp-retention", "1 Gb/s: a step"])
        == VARIANTS
    )
    assert rows["fcdp-timeline", "LoRA, 200 Mb/s: mean over steps but the first"]["zero3"] > 0
    lines = (tmp_path / "out" / "timeline.csv").read_text().splitlines()
    assert lines[0] == "strategy,seconds,MB/s" and {line.partition(",")[0] for line in lines[1:]} == {
        "zero3",
        "hpz_naive",
        "fcdp",
    }
    assert {path.name for path in (tmp_path / "out").glob("*.png")} == {"figure9-retention.png", "figure10-network.png"}
    assert list(tmp_path.iterdir()) == [tmp_path / "out"] and not orphans()  # it cleans up


@needs_nodes
@pytest.mark.long
@pytest.mark.timeout(600)
def test_beside_other_libraries(tmp_path: Path) -> None:
    peers = [name for name in FCDP_JOBS if name not in NEEDED]
    done = manapy(
        "bench",
        "--quick",
        "--timeout",  # other tests run at the same time
        "5m",
        "--only",
        ",".join(peers),
        "--out",
        tmp_path / "out",
        timeout=580,
        cwd=tmp_path,
        env={"CC": "/no/such/compiler"},
    )
    written = json.loads((tmp_path / "out" / "result.json").read_text())
    if not written["rows"] and written["left out"]:
        pytest.skip(str(written["left out"]))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {(row["job"], row["name"]): row["samples"] for row in written["rows"]}
    assert {job for job, _ in rows} | set(written["left out"]) == set(peers)
    if "fcdp-fsdp2" not in written["left out"]:
        sent = rows["fcdp-fsdp2", "full: sent by a node in a step"]
        assert sent["fcdp"][0] <= 1.03 and 2.95 <= sent["FSDP2"][0] <= 3.2  # including headers, for a small model
        assert rows["fcdp-fsdp2", "full: times fcdp's at 100 Mb/s"]["FSDP2"][0] > 0
    assert list(tmp_path.iterdir()) == [tmp_path / "out"] and not orphans()


@needs_nodes
def test_nodes_go_when_it_is_ended(tmp_path: Path) -> None:
    command = [BIN / "manapy", "bench", "--quick", "--only", "fcdp-bytes", "--out", tmp_path / "out"]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        deadline = time.monotonic() + PATIENCE
        while (
            not Path(f"/run/netns/manapy-bench{process.pid}-1").exists()
            and process.poll() is None
            and time.monotonic() < deadline
        ):
            time.sleep(0.02)
        process.terminate()
        _, said = process.communicate(timeout=PATIENCE)
    if "not available here" in said:
        pytest.skip(said)
    assert process.returncode == 1 and "interrupted" in said and "Traceback" not in said, said
    assert not list(Path("/run/netns").glob(f"manapy-bench{process.pid}-*")) and os.listdir(tmp_path) == ["out"]

"""tools/verdicts on a suite of our own in the layout of MPI-CorrBench: misuse is named, and nobody in correct
programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "conformance"))

import misuse  # noqa: E402

pytestmark = pytest.mark.mpi

FRAME = """#include <mpi.h>
#include "here.h"
int main(int argc, char **argv) {{
    int rank, data[4] = {{0}};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    {body}
    MPI_Finalize();
    return 0;
}}
"""
SUITE = {
    "0-level/pt2pt/ArgMismatch-MPIRecv-Tag-1.c": "if (rank == 0) MPI_Send(data, 4, MPI_INT, 1, 0, WORLD); else MPI_Recv(data, 4, MPI_INT, 0, 1, WORLD, MPI_STATUS_IGNORE);",
    "0-level/coll/MissingCall-MPIGather-Deadlock.c": "if (rank == 0) MPI_Gather(data, 1, MPI_INT, data + 1, 1, MPI_INT, 0, WORLD);",
    "0-level/pt2pt/ArgError-MPISend-Rank.c": "MPI_Barrier(WORLD); if (rank == 0) MPI_Send(data, 1, MPI_INT, 7, 0, WORLD); else MPI_Recv(data, 1, MPI_INT, 0, 0, WORLD, MPI_STATUS_IGNORE);",
    "0-level/correct/coll/barrier.c": "for (int i = 0; i < 20; i++) MPI_Barrier(WORLD);",
    "0-level/correct/coll/broken.c": "nonsense",
}


def test_a_small_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MANAPY_TRACE_ROOT", str(tmp_path))
    for name, body in SUITE.items():
        path = tmp_path / "suite" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(FRAME.format(body=body))
    (tmp_path / "suite" / "0-level" / "correct" / "include").mkdir()
    (tmp_path / "suite" / "0-level" / "correct" / "include" / "here.h").write_text("#define WORLD MPI_COMM_WORLD\n")
    assert misuse.main([str(tmp_path / "suite"), "--json", str(tmp_path / "said.json")]) == 0
    said = {one["name"]: one for one in json.loads((tmp_path / "said.json").read_text())}
    assert {name: one["result"] for name, one in said.items()} == dict(
        zip(SUITE, ("named", "named", "named", "quiet", "not compiled"), strict=True)
    ), said
    tag, gather, send = (said[name] for name in list(SUITE)[:3])
    assert (tag["state"], tag["cause"]) == ("hung", "mismatched calls") and "which nobody receives" in tag["sentence"]
    assert (gather["cause"], gather["rank"]) == ("missing call", 1) and "MPI_Gather with root 0" in gather["sentence"]
    assert send["rank"] == 0 and "failed" in send["sentence"] and send["code"], send
    shown = capsys.readouterr().out
    assert "rank and cause named of 3 of 3" in shown and "correct programs without a verdict: 1 of 1" in shown
    assert misuse.main([str(tmp_path / "suite"), "--only", "nothing like it"]) == 2

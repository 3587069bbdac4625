"""tools/verdicts on a suite in the layout of MPI-CorrBench: misuse is named with rank and cause, and no rank of a
correct program is accused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "conformance"))

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
    "0-level/pt2pt/ArgMismatch-MPIRecv-Tag-1.c": (
        "if (rank == 0) { MPI_Send(data, 4, MPI_INT, 1, 0, WORLD); }"
        " else { MPI_Recv(data, 4, MPI_INT, 0, 1, WORLD, MPI_STATUS_IGNORE); }",
        "named",
    ),
    "0-level/coll/MissingCall-MPIGather-Deadlock.c": (
        "if (rank == 0) { MPI_Gather(data, 1, MPI_INT, data + 1, 1, MPI_INT, 0, WORLD); }",
        "named",
    ),
    "0-level/coll/MissingCall-MPIReduce-Deadlock.c": (  # the name is wrong: MPI_Gather is missing
        "if (rank == 0) { MPI_Gather(data, 1, MPI_INT, data + 1, 1, MPI_INT, 0, WORLD); }",
        "wrong",
    ),
    "0-level/pt2pt/ArgError-MPISend-Rank.c": (
        "MPI_Barrier(WORLD); if (rank == 0) { MPI_Send(data, 1, MPI_INT, 7, 0, WORLD); }"
        " else { MPI_Recv(data, 1, MPI_INT, 0, 0, WORLD, MPI_STATUS_IGNORE); }",
        "refused",
    ),
    "0-level/pt2pt/ArgError-MPIBcast-Buffer.c": (
        "MPI_Bcast(rank == 1 ? (int *)1 : data, 4, MPI_INT, 0, WORLD);",
        "crashed",
    ),
    "0-level/coll/MisplacedCall-MPIBarrier.c": ("MPI_Barrier(WORLD);", "harmless"),
    "0-level/correct/coll/barrier.c": ("for (int i = 0; i < 20; i++) { MPI_Barrier(WORLD); }", "quiet"),
    "0-level/correct/coll/broken.c": ("nonsense", "not compiled"),
}


def test_a_small_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MANAPY_TRACE_ROOT", str(tmp_path))
    for name, (body, _) in SUITE.items():
        path = tmp_path / "suite" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(FRAME.format(body=body))
    (tmp_path / "suite" / "0-level" / "correct" / "include").mkdir()
    (tmp_path / "suite" / "0-level" / "correct" / "include" / "here.h").write_text("#define WORLD MPI_COMM_WORLD\n")
    arguments = [str(tmp_path / "suite"), "--json", str(tmp_path / "said.json")]
    assert misuse.main(arguments) == 1  # because of the program with the wrong name
    said = misuse.kept(tmp_path / "said.json")
    wanted = {name: result for name, (_, result) in SUITE.items()}
    wrong = {name: said[name] for name in said if said[name].result != wanted[name]}
    assert said.keys() == wanted.keys() and not wrong, [(one.result, one.otherwise, one) for one in wrong.values()]
    tag, gather, misnamed, send, crash = (said[name] for name in list(SUITE)[:5])
    assert (tag.state, tag.verdicts[0]["cause"]) == ("hung", "mismatched calls")
    assert "which nobody receives" in tag.sentence
    for one in (gather, misnamed):
        assert (one.verdicts[0]["cause"], one.verdicts[0]["rank"]) == ("missing call", 1)
        assert "MPI_Gather with root 0" in one.sentence
    assert misnamed.judged == "MPI_Reduce is not named"
    assert send.named and "rank 0" in send.sentence and "MPI_Send to an unknown rank, tag 0 failed" in send.sentence
    assert send.here.code and send.here.refusals == send.native.refusals == {("send", "Invalid rank")}, send
    first = crash.verdicts[0]  # it depends on chance whether mpirun has ended the other rank before the question
    assert any("was in MPI_Bcast with root 0" in text for text in (first["sentence"], *first["evidence"])), crash
    assert not any(one.otherwise for one in said.values()), [one.otherwise for one in said.values()]
    shown = capsys.readouterr().out
    assert "rank and cause named of 2 of 3; wrong: 1" in shown and "correct programs without a verdict: 1 of 1" in shown
    assert misuse.main(arguments) == 1 and (tmp_path / "said.json").read_text().count("\n") == len(SUITE)
    assert misuse.main([str(tmp_path / "suite"), "--only", "nothing like it"]) == 2

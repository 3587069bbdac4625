"""tools/applications on a small program: natively, under manapy, and through checkpoints, kills and restarts."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "conformance"))

from applications import __main__ as tool  # noqa: E402
from applications import extract  # noqa: E402
from applications.programs import Application  # noqa: E402
from applications.record import Records  # noqa: E402
from launchers import MPICH  # noqa: E402

PROGRAM = r"""#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
int main(int argc, char **argv) {
    int rank, steps = atoi(argv[1]);
    double x = 0, sum = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = 1; i <= steps; i++) {
        nanosleep(&(struct timespec){0, 10000000}, NULL);
        x += (rank + 1.0) / i;
        MPI_Allreduce(&x, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    if (rank == 0) printf("result: sum = %a\nresult: steps = %d\n", sum, steps);
    MPI_Finalize();
    return argc > 2 ? atoi(argv[2]) : 0;
}
"""


def test_a_small_program(
    tmp_path: Path,
    c_program: Callable[[Path], Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    source = tmp_path / "small.c"
    source.write_text(PROGRAM)
    program = str(c_program(source))
    good = Application("good", MPICH, (program, "300"), extract.named_values, 0.0, "")
    applications = (
        good,
        dataclasses.replace(good, name="failing", command=(program, "10", "3")),
        dataclasses.replace(good, name="absent", packages=("manapy-has-no-such-package",)),
    )
    arguments = ["--no-install", "--repeat", "1", "--results", str(tmp_path / "runs")]
    arguments += ["--only", "good,failing,absent", "--markdown", str(tmp_path / "table.md")]
    assert tool.main(arguments, applications) == 1  # because of the failing one
    found = Records(tmp_path / "runs" / "results.json").of
    assert found["good"].restarted is not None and found["good"].restarted.cause == ""
    assert found["good"].restarted.result == found["good"].native[0].result == found["good"].manapy[0].result
    assert 1 <= len(found["good"].moments) <= 3
    assert found["failing"].manapy[0].cause.startswith("exit code 3: ")
    rows = (tmp_path / "table.md").read_text().splitlines()[2:]
    assert "equal bit for bit" in rows[0] and "fails: exit code 3" in rows[1]
    assert "not run: apt install manapy-has-no-such-package" in rows[2]
    assert "equal bit for bit" in capsys.readouterr().out
    assert tool.main([*arguments, "--only", "good"], applications) == 0  # from the file

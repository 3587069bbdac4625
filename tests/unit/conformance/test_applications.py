"""Results out of the output of applications, how well they agree, and the table of them."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from applications import extract, inputs, running, table
from applications.programs import APPLICATIONS, Application
from applications.record import Moment, Record, Records, Run
from applications.results import Agreement, Result, ResultError, compare
from rich.console import Console

SCF = """\
!    total energy              =     -62.10000000 Ry
!    total energy              =     -62.56717002 Ry
     Total force =     0.039462     Total SCF correction =     0.000002
          total   stress  (Ry/bohr**3)                   (kbar)     P=      -44.39
   JOB DONE.
"""
LOG_LAMMPS = """\
   Step          Temp          TotEng
         0   1.44           -4.61
        50   0.75000000001  -4.62
Loop time of 1.2 on 2 procs for 50 steps with 864 atoms
Total wall time: 0:00:01
"""
MD_LOG = """\
   Energies (kJ/mol)
        LJ (SR)   Coulomb (SR)   Coul. recip.
    1.00000e+03   -1.00000e+04    1.00000e+02
 Pressure (bar)
   -1.53089e+03

   Energies (kJ/mol)
        LJ (SR)   Coulomb (SR)   Coul. recip.
    1.72945e+03   -1.13239e+04    1.03663e+02
 Pressure (bar)
   -2.00000e+03

\t<======  ###############  ==>
   Energies (kJ/mol)
        LJ (SR)   Coulomb (SR)   Coul. recip.
    9.00000e+00   -9.00000e+00    9.00000e+00

Finished mdrun on rank 0
"""
XDLU = """\
    4 tests completed and passed residual checks.
    0 tests completed and failed residual checks.
    8 tests skipped because of illegal input values.
"""
CP2K = """\
 ENERGY| Total FORCE_EVAL ( QS ) energy [a.u.]:              -17.1115352
 ENERGY| Total FORCE_EVAL ( QS ) energy [a.u.]:              -17.1117897
  **** **      *******  **  PROGRAM ENDED AT               2026-11-26 23:48:06
"""
NWCHEM = """\
         Total SCF energy =    -76.057127425196
          Total MP2 energy           -76.332244405248
 Total times  cpu:        3.0s     wall:        5.0s
"""
SOLUTION = "OUT OF THE PROGRAM\n Solution is   0.99999999999999878        2.0000000000000004     \n     3.0D+00\n\n end"


def test_quantum_espresso(tmp_path: Path) -> None:
    density = tmp_path / "out" / "si8.save" / "charge-density.dat"
    density.parent.mkdir(parents=True)
    density.write_bytes(b"density")
    found = extract.quantum_espresso(tmp_path, SCF)
    assert found.numbers == {"total energy": -62.56717002, "total force": 0.039462, "pressure": -44.39}
    assert found.digests == {"charge density": extract.digest(b"density")}


def test_lammps(tmp_path: Path) -> None:
    (tmp_path / "log.lammps").write_text(LOG_LAMMPS)
    (tmp_path / "atoms.txt").write_text("1 0 0 0")
    found = extract.lammps(tmp_path, "")
    assert found.numbers == {"Step": 50.0, "Temp": 0.75000000001, "TotEng": -4.62}
    (tmp_path / "log.lammps").write_text(LOG_LAMMPS.replace("Total wall time", "ERROR"))
    with pytest.raises(ResultError, match="not complete"):
        extract.lammps(tmp_path, "")


def test_cp2k_uses_the_last_step(tmp_path: Path) -> None:
    (tmp_path / "water-pos-1.xyz").write_text("3 atoms")
    found = extract.cp2k(tmp_path, CP2K)
    assert found == Result({"energy": -17.1117897}, digests={"positions": extract.digest(b"3 atoms")})
    with pytest.raises(ResultError, match="ENDED"):
        extract.cp2k(tmp_path, CP2K.replace("ENDED", "STOPPED"))


def test_gromacs_uses_the_last_step_and_not_the_averages(tmp_path: Path) -> None:
    (tmp_path / "md.log").write_text(MD_LOG)
    (tmp_path / "confout.gro").write_text("water")
    assert extract.gromacs(tmp_path, "").numbers == {
        "LJ (SR)": 1729.45,
        "Coulomb (SR)": -11323.9,
        "Coul. recip.": 103.663,
        "Pressure (bar)": -2000.0,
    }


def test_hpcc(tmp_path: Path) -> None:
    (tmp_path / "hpccoutf.txt").write_text(
        "||Ax-b|| ... PASSED\nHPL_N=300\nMPIFFT_maxErr=1.1e-15\nHPL_Tflops=3\nSuccess=1\n"
    )
    found = extract.hpcc(tmp_path, "")
    assert found == Result({"HPL_N": 300.0, "MPIFFT_maxErr": 1.1e-15}, {"checks": "1 passed, 0 failed"})


@pytest.mark.parametrize(
    ("of", "output", "numbers", "texts"),
    [
        (extract.nwchem, NWCHEM, {"energy": -76.057127425196, "MP2 energy": -76.332244405248}, {}),
        (
            extract.scalapack,
            XDLU,
            {},
            {"completed and passed": "4", "completed and failed": "0", "skipped because of illegal": "8"},
        ),
        (
            extract.named_values,
            "result: iterations 9 = 98\nresult: norm 9 = 0x1.8p+1\nresult: norm 9 = 0x1.8p+1\n",
            {"norm 9": 3.0},
            {"iterations 9": "98"},
        ),
        (
            extract.imb,
            "# Benchmarking PingPong \n# Benchmarking Bcast \n# All processes entering MPI_Finalize\n",
            {},
            {"benchmarks": "PingPong Bcast"},
        ),
    ],
)
def test_results_in_the_output(
    tmp_path: Path,
    of: Callable[[Path, str], Result],
    output: str,
    numbers: dict[str, float],
    texts: dict[str, str],
) -> None:
    assert of(tmp_path, output) == Result(numbers, texts)


def test_mumps(tmp_path: Path) -> None:
    found = extract.mumps(tmp_path, SOLUTION)
    assert found.numbers == pytest.approx({"values": 3.0, "sum": 6.0, "squares": 14.0})
    assert found.digests != extract.mumps(tmp_path, SOLUTION.replace("0000000000004", "0000000000009")).digests


EXTRACTORS = (
    "quantum_espresso", "lammps", "gromacs", "nwchem", "cp2k", "named_values", "mumps", "scalapack", "hpcc", "imb",
)  # fmt: skip


@pytest.mark.parametrize("name", EXTRACTORS)
def test_no_result_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(ResultError):
        getattr(extract, name)(tmp_path, "mpirun noticed that a process has died\n")


A = Result({"e": -10.0}, {"end": "yes"}, {"atoms": "1234"})


@pytest.mark.parametrize(
    ("other", "agreement", "detail"),
    [
        (A, Agreement.EXACT, ""),
        (Result({"e": -10.0}, A.texts, {"atoms": "5678"}), Agreement.WITHIN, "equal as printed"),
        (Result({"e": -10.0000001}, A.texts, A.digests), Agreement.WITHIN, "1e-08"),
        (Result({"e": -10.1}, A.texts, A.digests), Agreement.DIFFERENT, "e: -10.1, not -10.0"),
        (Result({"e": float("nan")}, A.texts, A.digests), Agreement.DIFFERENT, "e: nan, not -10.0"),
        (Result(A.numbers, {"end": "no"}, A.digests), Agreement.DIFFERENT, "end: 'no', not 'yes'"),
        (Result({}, A.texts, A.digests), Agreement.DIFFERENT, "e in one of them only"),
    ],
)
def test_agreement(other: Result, agreement: Agreement, detail: str) -> None:
    assert compare(A, other, 1e-6) == (agreement, detail)


NEAR = Result({"e": -10.0000001}, A.texts, {"atoms": "5678"})
FAR = Result({"e": -11.0}, A.texts, A.digests)
MOMENTS = [Moment(1.0, "MPICH 5.0"), Moment(2.0, "MPICH 4.0"), Moment(3.0, "MPICH 5.0")]


def record(native: list[Result], manapy: list[Result], restarted: Result) -> Record:
    return Record(
        "program",
        "Open MPI",
        2,
        native=[Run(1.0, result) for result in native],
        manapy=[Run(1.1, result) for result in manapy],
        restarted=Run(2.0, restarted),
        moments=MOMENTS,
    )


@pytest.mark.parametrize(
    ("found", "result", "good"),
    [
        (record([A, A], [A, A], A), "equal bit for bit", True),
        (record([A, A], [NEAR, NEAR], NEAR), "restart bit for bit; native to 1e-08 (tolerance 1e-06)", True),
        (record([A, NEAR], [A, NEAR], NEAR), "to 1e-08 (tolerance 1e-06); not reproducible natively", True),
        (record([A, A], [A, A], NEAR), "differs; reproducible natively, here 1e-08", False),
        (record([A, A], [FAR, FAR], FAR), "differs; native: e: -11.0, not -10.0", False),
        (record([A, A], [A, A], FAR), "differs; restarted: e: -11.0, not -10.0", False),
    ],
)
def test_verdict(found: Record, result: str, good: bool) -> None:
    assert table.verdict(found, 1e-6) == (result, good)
    assert table.row(found, 1e-6).cells == (
        "program",
        "Open MPI, 2",
        "1.0 s",
        "1.1 s",
        "1.10 (1.10 to 1.10; 2 pairs)",
        "3: 2 under MPICH 5.0, 1 under MPICH 4.0",
        result,
    )


def test_failures_stand_in_the_column_of_their_run() -> None:
    failed = Run(1.0, None, "exit code 127: undefined symbol: a|b")
    no_start = Record("program", "Open MPI", 2, native=[Run(1.0, A)], manapy=[failed])
    no_end = Record("program", "Open MPI", 2, native=[Run(1.0, A)], manapy=[Run(1.0, A)], restarted=failed)
    no_native = Record("program", "MPICH", 2, native=[failed], manapy=[Run(1.0, A)], restarted=Run(2.0, A))
    absent = Record("program", "Open MPI", 2, missing="apt install lammps")
    rows = table.rows([no_start, no_end, no_native, absent], {"program": 0.0})
    assert [row.good for row in rows] == [False, False, True, True]
    assert rows[0].cells[3] == "fails: exit code 127: undefined symbol: a|b"
    assert rows[1].cells[5] == "fails after 0 restarts: exit code 127: undefined symbol: a|b"
    assert rows[2].cells[6] == "under manapy bit for bit"
    assert rows[3].cells[2] == "not run: apt install lammps"
    lines = table.markdown(rows).splitlines()
    assert len(lines) == 6 and "a\\|b" in lines[2] and lines[1] == "|---|---|---|---|---|---|---|"
    shown = io.StringIO()
    Console(file=shown, width=300).print(table.table(rows))
    assert "undefined symbol: a|b" in shown.getvalue()


def test_records_are_kept_in_a_file(tmp_path: Path) -> None:
    found = record([A, A], [NEAR, A], A)
    Records(tmp_path / "results.json").add(found)
    assert Records(tmp_path / "results.json").of == {"program": found}


@pytest.mark.parametrize("app", APPLICATIONS, ids=lambda app: app.name)
def test_each_runs_natively_under_its_own_mpi(tmp_path: Path, app: Application) -> None:
    job = running.prepare(dataclasses.replace(app, prepare=inputs.nothing), tmp_path / "run", app.mpi)
    assert job.mpirun == app.mpi.mpirun

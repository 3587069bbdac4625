"""The comparison of MPICH's test programs (tests/conformance/mpich.py), with a tiny suite in the same layout."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "conformance"))

import mpich  # noqa: E402
from languages import LANGUAGES  # noqa: E402

SUPPORT = """\
#include <mpi.h>
#include <stdio.h>
#include <string.h>
static inline void finish(int errors)
{
    int rank;

    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0) puts(errors ? "Found errors" : " No Errors");
    MPI_Finalize();
}
"""
SUITE = {
    "util/mtest.c": "",
    "util/mtest_common.c": "",
    "util/mtest_single.c": "",
    "include/tiny.h": SUPPORT,
    "first/testlist.in": """
        @any@sums 2 arg=3
        sums 3
        quits 2 resultTest=TestStatus
        absent 1
        wide 99
        hopeless 1 xfail=1
        @belowdir@
    """,
    "first/sums.c": """
        #include "tiny.h"
        #include <stdlib.h>
        int main(int argc, char **argv)
        {
            int errors = 0, size;

            MPI_Init(&argc, &argv);
            MPI_Comm_size(MPI_COMM_WORLD, &size);
            for (int i = 0; i < 20; i++) {
                int one = 1, sum = 0;

                MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
                errors += sum != size;
            }
            finish(errors + (argc > 1 && atoi(argv[1]) != 3));
            return 0;
        }
    """,
    "first/quits.c": """
        #include "tiny.h"
        int main(int argc, char **argv)
        {
            MPI_Init(&argc, &argv);
            MPI_Finalize();
            return 7;
        }
    """,
    "first/below/testlist": "differs 1 env=WANTED=yes\n",
    "first/below/Makefile.am": r"""
differs_SOURCES = \
    other_name.c
differs_CPPFLAGS = -DNAME=\"manapy-launch\" $(AM_CPPFLAGS)
""",
    "first/below/data.txt": "read by the program\n",
    "first/below/other_name.c": """
        #include "tiny.h"
        #include <stdlib.h>
        int main(int argc, char **argv)
        {
            int errors = getenv("WANTED") == NULL || fopen("data.txt", "r") == NULL;
            char line[4096];

            MPI_Init(&argc, &argv);
            for (FILE *maps = fopen("/proc/self/maps", "r"); fgets(line, sizeof line, maps);)
                errors += strstr(line, NAME) != NULL;
            finish(errors);
            return 0;
        }
    """,
}


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    for name, text in SUITE.items():
        file = tmp_path / "suite" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "suite"


def test_what_differs_is_told(suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results"
    options = [str(suite), "--only", "first", "--results", str(results), "--limit", "30"]
    assert mpich.main([*options, "--way", "native,manapy"]) == 1
    printed = capsys.readouterr()
    assert printed.err == "", "progress is for terminals"
    assert "4 of 5 pass natively (1 not built)\n3 of 4 pass under manapy (1 fails)\n" in printed.out
    (line,) = (line for line in printed.out.splitlines() if line.startswith("first/"))
    assert line.startswith("first/below/differs 1 WANTED=yes") and "Found errors" in line

    before = (results / "results.json").read_text()
    assert mpich.main([*options, "--only", "first/sums,first/quits"]) == 0  # continues with the restarts
    assert "2 of 2 pass through a checkpoint, SIGKILL and a restart\nequal\n" in capsys.readouterr().out
    found = json.loads((results / "results.json").read_text())
    assert {name: {way: found[name][way] for way in ways} for name, ways in json.loads(before).items()} == json.loads(
        before
    )
    assert {name: sorted(ways) for name, ways in found.items()} == {
        "first/sums 2 3": ["manapy", "native", "restart"],
        "first/sums 3": ["manapy", "native", "restart"],
        "first/quits 2": ["manapy", "native"],
        "first/absent 1": ["native"],
        "first/below/differs 1 WANTED=yes": ["manapy", "native"],
    }


def test_each_program_on_another_number_of_ranks(suite: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    options = [str(suite), "--only", "first/sums", "--results", str(results), "--way", "native"]
    assert mpich.main([*options, "--each", "4"]) == 0
    found = json.loads((results / "results.json").read_text())
    assert sorted(found) == ["first/sums 4", "first/sums 4 3"]


FORTRAN = """
      program main
      include 'mpif.h'
      include 'size.h'
      integer ierr
      call mpi_init(ierr)
      asize = 7
      if (asize .eq. 7) call mtest_tell()
      call mpi_finalize(ierr)
      end
"""
TELL = """
      subroutine mtest_tell()
      include 'mpif.h'
      integer rank, ierr
      call mpi_comm_rank(MPI_COMM_WORLD, rank, ierr)
      if (rank .eq. 0) print *, ' No Errors'
      end
"""


@pytest.mark.skipif(LANGUAGES["f77"].missing is not None, reason=f"apt install {LANGUAGES['f77'].missing}")
def test_fortran(suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (
        ("util/mtest_f77.f", TELL),
        ("f77/testlist", "below\nelsewhere\n"),
        ("f77/below/testlist", "hello 2\nabsent 1\n"),
        ("f77/below/testlist.gpu", "hello 2\n"),
        ("f77/below/size.h.in", "      @F77_MPI_ADDRESS@ asize\n"),
        ("f77/below/hello.f", FORTRAN),
        ("strange/testlist", "hello 2\n"),
    ):
        file = suite / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert mpich.main([str(suite), "--only", "f77", "--results", str(tmp_path / "results")]) == 0
    told = capsys.readouterr().out
    assert "1 of 1 pass through a checkpoint, SIGKILL and a restart\n" in told, told
    assert "2 not built, no source in this copy: f77/below/absent, f77/elsewhere\n" in told, told
    assert "strange not run, this tool does not know it\n" in told, told
    assert "testlist.gpu of f77/below not run, they need GPUs\n" in told, told


CXX = """
#include <mpi.h>
#include "mpitestcxx.h"
int main()
{
    MPI::Init();
    MTest_Finalize();
    return 0;
}
"""
CXX_HELPER = """
#include <mpi.h>
#include <iostream>
#include "mpitestcxx.h"
extern "C" int mtest_shared(void);
void MTest_Finalize()
{
    if (mtest_shared() == 0 && MPI::COMM_WORLD.Get_rank() == 0) std::cout << " No Errors\\n";
    MPI::Finalize();
}
"""


@pytest.mark.skipif(LANGUAGES["cxx"].missing is not None, reason=f"apt install {LANGUAGES['cxx'].missing}")
def test_cxx(suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The code that C++ programs share is in C++ and partly in C."""
    for name, text in (
        ("util/mtest_cxx.cxx", CXX_HELPER),
        ("util/mtest_common.c", "int mtest_shared(void) { return 0; }\n"),
        ("include/mpitestcxx.h", "void MTest_Finalize();\n"),
        ("cxx/testlist", "hello 2\n"),
        ("cxx/hello.cxx", CXX),
    ):
        file = suite / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert mpich.main([str(suite), "--only", "cxx", "--results", str(tmp_path / "results")]) == 0
    told = capsys.readouterr().out
    assert "1 of 1 pass through a checkpoint, SIGKILL and a restart\n" in told, told


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["{suite}/first"], "is no copy of MPICH's test/mpi"),
        (["{suite}", "--only", "second"], "has no testlist"),
        (["{suite}", "--only", "first/nothing"], "first/nothing: no such program"),
        (["{suite}", "--way", "backwards"], "unknown way 'backwards'"),
    ],
)
def test_wrong_use(suite: Path, arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        sys.exit(mpich.main([argument.format(suite=suite) for argument in arguments]))
    assert stop.value.code == 2 and error in capsys.readouterr().err

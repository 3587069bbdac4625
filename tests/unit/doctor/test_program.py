"""`manapy doctor PROG`: obstacles to a checkpoint."""

from __future__ import annotations

import random
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from compiling import SHARED, build
from manapy.core import installation
from manapy.doctor import Level, _elf, _system, check_program, check_system
from manapy.mpi._find import PLACES, Candidate

SOURCE = "int main(void) { return 0; }\n"


def compile_program(directory: Path, *options: str, name: str = "program") -> Path:
    try:
        return build(directory / name, SOURCE, *options)
    except subprocess.CalledProcessError:
        pytest.skip(f"gcc {' '.join(options)} doesn't make a program")


def stub_library(directory: Path, name: str) -> Path:
    return build(directory / name, "int mpi_stub;\n", *SHARED, f"-Wl,-soname,{name}")


def worst(program: str | Path) -> tuple[Level, str]:
    findings = check_program(str(program))
    order = [Level.OK, Level.NOTE, Level.BAD]
    found = max(findings, key=lambda f: order.index(f.level))
    return found.level, found.text


def test_dynamic_program_is_fine(tmp_path: Path) -> None:
    assert worst(compile_program(tmp_path))[0] is Level.OK
    assert worst(compile_program(tmp_path, "-no-pie"))[0] is Level.OK
    assert worst("true")[0] is Level.OK


def test_python_is_fine() -> None:
    assert worst(sys.executable)[0] is not Level.BAD


def test_static_program(tmp_path: Path) -> None:
    assert "statically linked" in worst(compile_program(tmp_path, "-static"))[1]


def test_a_shell_script_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the programs with MPI that it names; not to those in variables and comments."""
    stub_library(tmp_path, "libmpi.so.20")
    for name in ("solver", "hidden"):
        compile_program(tmp_path, "-L", str(tmp_path), "-Wl,--no-as-needed", "-l:libmpi.so.20", name=name)
    script = tmp_path / "job.sh"
    script.write_text(
        '#!/bin/bash\nmodule load x\nexport OMP_NUM_THREADS=1 # ./hidden\necho "several\nlines"\n'
        "P=./hidden; $P\nif true; then timeout 10 ./solver \\\n --in 'a b' >out;fi\ntrue\n"
    )
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    found = check_program("./job.sh")
    assert [f.subject for f in found if f.level is Level.BAD] == ["libmpi.so.20"]
    assert [f.subject for f in found if "dynamic program" in f.text][1:] == ["solver"]
    script.write_text("#!/bin/bash\ntrue\n")
    assert worst(script)[0] is Level.OK


@pytest.mark.parametrize("command", ["timeout 10 ./solver --in file", "bash job.sh", "sh job.sh ./other"])
def test_arguments_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    stub_library(tmp_path, "libmpi.so.20")
    compile_program(tmp_path, "-L", str(tmp_path), "-Wl,--no-as-needed", "-l:libmpi.so.20", name="solver")
    (tmp_path / "job.sh").write_text("exec ./solver\n")
    monkeypatch.chdir(tmp_path)
    program, *arguments = command.split()
    found = check_program(program, arguments)
    assert [f.subject for f in found if f.level is Level.BAD] == ["libmpi.so.20"]


def test_32_bit_program(tmp_path: Path) -> None:
    path = compile_program(tmp_path)
    data = bytearray(path.read_bytes())
    data[4] = 1
    path.write_bytes(data)
    assert worst(path) == (Level.BAD, "a 32-bit program: manapy supports only 64-bit programs")


def test_no_such_program() -> None:
    assert worst("no-such-program") == (Level.BAD, "no such program")


def test_not_executable(tmp_path: Path) -> None:
    path = tmp_path / "solver.py"
    path.write_text("print(1)\n")
    path.chmod(0o644)
    assert worst(path) == (Level.BAD, f"is not executable: start it as 'python {path}'")


def test_script_leads_to_its_interpreter(tmp_path: Path) -> None:
    path = tmp_path / "solver"
    path.write_text("#!/usr/bin/env true\n")
    path.chmod(0o755)
    assert worst(path)[0] is Level.OK
    path.write_text("#!/no/such/interpreter\n")
    assert worst(path)[0] is Level.BAD and "interpreter is missing" in worst(path)[1]


def test_setuid(tmp_path: Path) -> None:
    path = compile_program(tmp_path)
    path.chmod(0o4755)
    assert worst(path)[0] is Level.NOTE


@pytest.mark.parametrize(
    ("library", "interface"), [("libmpi.so.40", "Open MPI's ABI"), ("libmpi_abi.so.1", "the MPI-5 standard ABI")]
)
def test_interfaces_with_a_front(tmp_path: Path, library: str, interface: str) -> None:
    stub_library(tmp_path, library)
    path = compile_program(tmp_path, "-Wl,--no-as-needed", str(tmp_path / library))
    findings = check_program(str(path))
    assert worst(path)[0] is not Level.BAD
    assert any(f.level is Level.OK and f"{interface}: manapy's library" in f.text for f in findings)


def test_fortran_of_the_standard_abi(tmp_path: Path) -> None:
    """Intel MPI's. It is not a second MPI."""
    libraries = [tmp_path / name for name in ("libmpi_abi.so.1", "libmpifort_abi.so.1")]
    for library in libraries:
        stub_library(tmp_path, library.name)
    level, text = worst(compile_program(tmp_path, "-Wl,--no-as-needed", *map(str, libraries)))
    assert level is Level.BAD and text.startswith("Intel MPI's Fortran for the standard ABI, which is not supported")


def test_two_mpis(tmp_path: Path) -> None:
    for name in ("libmpi.so.40", "libmpi.so.12"):
        stub_library(tmp_path, name)
    path = compile_program(tmp_path, "-Wl,--no-as-needed", *(str(tmp_path / f"libmpi.so.{n}") for n in (40, 12)))
    assert worst(path) == (Level.BAD, "linked to two MPIs (MPICH and Open MPI): link everything with one of them")


@pytest.mark.parametrize(
    ("library", "level"),
    [
        ("libmpi.so.40", Level.OK),
        ("libmpi_abi.so.1", Level.OK),
        ("libmpi_abi.so.0", Level.BAD),
        ("libmpi.so.12", Level.OK),
    ],
)
def test_python_with_an_mpi4py_for_another_mpi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, level: Level
) -> None:
    package = tmp_path / "mpi4py"
    package.mkdir()
    (package / "__init__.py").touch()
    stub_library(tmp_path, library)
    compile_program(
        package,
        "-shared",
        "-fPIC",
        "-Wl,--no-as-needed",
        str(tmp_path / library),
        name="MPI.cpython-311-x86_64-linux-gnu.so",
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    finding = next(f for f in check_program(sys.executable) if f.subject == "mpi4py")
    assert finding.level is level and str(package) in finding.text


def test_rpath_before_our_library(tmp_path: Path) -> None:
    stub_library(tmp_path, "libmpi.so.12")
    flags = ["-Wl,--no-as-needed", str(tmp_path / "libmpi.so.12"), f"-Wl,-rpath,{tmp_path}"]
    assert worst(compile_program(tmp_path, *flags, "-Wl,--disable-new-dtags"))[0] is Level.BAD
    assert worst(compile_program(tmp_path, *flags, "-Wl,--enable-new-dtags"))[0] is Level.OK


def test_io_uring_is_named(tmp_path: Path) -> None:
    stub_library(tmp_path, "liburing.so.2")
    path = compile_program(tmp_path, "-Wl,--no-as-needed", str(tmp_path / "liburing.so.2"), f"-Wl,-rpath,{tmp_path}")
    assert any("io_uring" in f.text for f in check_program(str(path)))


def test_system_says_something_about_everything(tmp_path: Path) -> None:
    subjects = {f.subject for f in check_system(str(tmp_path / "none"), tmp_path)}
    assert {
        "CPU",
        "kernel",
        "seccomp",
        "open files",
        "stack",
        "overcommit",
        "installation",
        "MPI by --mpi",
        "mpi4py",
        "job directory",
    } <= subjects


def test_elf_files_are_read_as_readelf_reads_them(tmp_path: Path) -> None:
    library = stub_library(tmp_path, "libstub.so.3")
    ours = build(
        tmp_path / "ours", SOURCE, "-Wl,--no-as-needed", library, f"-Wl,-rpath,{tmp_path}:/b,--disable-new-dtags"
    )
    for path in (ours, library, Path(shutil.which("true") or ""), Path(sys.executable).resolve()):
        said = subprocess.run(
            ["readelf", "-W", "-h", "-l", "-d", path], check=True, capture_output=True, text=True
        ).stdout
        elf = _elf.read(path)
        assert elf.needed == re.findall(r"\(NEEDED\).*\[(.*)\]", said)
        for name, found in (("RPATH", elf.rpath), ("RUNPATH", elf.runpath)):
            assert ":".join(found) == "".join(re.findall(rf"\({name}\).*\[(.*)\]", said))
        assert [elf.interpreter] == (re.findall(r"interpreter: (.*)\]", said) or [None])
        assert (elf.bits, elf.machine, elf.dynamic) == (
            64,
            "EM_X86_64",
            True,
        ) and elf.kind == f"ET_{said.split('Type:')[1].split()[0]}"


def test_damaged_elf_files_are_refused_or_read(tmp_path: Path) -> None:
    """The only possible error is NotElf."""
    whole, some, path = compile_program(tmp_path).read_bytes(), random.Random(1), tmp_path / "damaged"
    refused = 0
    for round in range(200):
        data = bytearray(whole[: some.randrange(len(whole)) if round % 4 == 0 else None])
        for _ in range(some.randrange(1, 12) if data else 0):
            data[some.randrange(min(len(data), 1200))] = some.randrange(256)  # mostly headers and tables
        path.write_bytes(data)
        try:
            _elf.read(path)
        except _elf.NotElf:
            refused += 1
    assert 20 < refused < 200


def test_libraries_are_looked_for_where_the_launcher_looks(root: Path) -> None:
    found = re.search(r"places\[\]\[\d\] = \{(.*?)\}\};", (root / "lowerhalf/mpi/find.c").read_text(), re.DOTALL)
    assert found and tuple(re.findall(r'"(.*?)"', found[1])) == PLACES


def test_system_finds_open_mpi(tmp_path: Path) -> None:
    text = (
        '#include <string.h>\nint MPI_Get_library_version(char *s, int *n) { strcpy(s, "Open MPI v5.0.1, package: '
        'fake"); *n = 30; return 0; }\n'
    )
    library = build(tmp_path / "libmpi.so.40", text, *SHARED)
    finding = next(f for f in check_system(str(library), tmp_path) if f.subject == "MPI by --mpi")
    assert finding.level is Level.OK and "Open MPI v5.0.1" in finding.text and "Open MPI's mpirun" in finding.text


@pytest.mark.parametrize(
    ("version", "level", "said"),
    [
        ("MPICH Version: 5.0", Level.OK, ""),
        ("Intel(R) MPI Library 2021.18 for Linux* OS", Level.NOTE, "use its libmpi.so.12"),
    ],
)
def test_system_finds_the_standard_abi(tmp_path: Path, version: str, level: Level, said: str) -> None:
    text = (
        '#include <string.h>\nint MPI_Get_library_version(char *s, int *n) { *n = (int)strlen(strcpy(s, "'
        + version
        + '")); return 0; }\n'
        "int MPI_Abi_get_version(int *major, int *minor) { *major = 1; *minor = 0; return 0; }\n"
    )
    library = build(tmp_path / "libmpi_abi.so.1", text, *SHARED)
    finding = next(f for f in check_system(str(library), tmp_path) if f.subject == "MPI by --mpi")
    assert finding.level is level and f"MPI-5 standard ABI, {version}" in finding.text and said in finding.text


def test_system_tells_which_mpi_srun_gets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "executable", lambda name: tmp_path / "own/bin" / name)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("MANAPY_LIBMPI", raising=False)
    assert not _system._srun(None)
    for name in ("bin/srun", "bin/mpirun", "lib/libmpi.so.12"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch(0o755)
    (found,) = _system._srun(None)
    library, mpirun = tmp_path / "lib/libmpi.so.12", tmp_path / "bin/mpirun"
    assert found.level is Level.OK and f"srun --mpi=pmi2: {library} (PATH: {mpirun}); srun --mpi=pmix: " in found.text
    monkeypatch.setattr(_system, "under_srun", lambda family: Candidate("PATH", "no mpirun", None))
    (found,) = _system._srun(None)
    assert found.level is Level.NOTE and "MANAPY_LIBMPI" in found.text and "/etc/manapy.toml" in found.text
    assert not _system._srun("/opt/mpi")


@pytest.mark.parametrize("hard", [300, 4096])
def test_few_open_files_are_no_obstacle(monkeypatch: pytest.MonkeyPatch, hard: int) -> None:
    before = resource.getrlimit
    monkeypatch.setattr(
        resource, "getrlimit", lambda what: (256, hard) if what == resource.RLIMIT_NOFILE else before(what)
    )
    files = _system._limits()[0]
    assert files.level is Level.NOTE and "256" in files.text

"""`manapy doctor PROG`: obstacles to a checkpoint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from manapy.doctor import Level, check_program, check_system

SOURCE = "int main(void) { return 0; }\n"


def compile_program(directory: Path, *options: str, name: str = "program") -> Path:
    source = directory / "program.c"
    source.write_text(SOURCE)
    path = directory / name
    done = subprocess.run(["gcc", str(source), "-o", str(path), *options], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"gcc {' '.join(options)}: {done.stderr.splitlines()[0]}")
    return path


def stub_library(directory: Path, name: str) -> Path:
    source = directory / "stub.c"
    source.write_text("int mpi_stub;\n")
    path = directory / name
    subprocess.run(["gcc", "-shared", "-fPIC", f"-Wl,-soname,{name}", str(source), "-o", str(path)], check=True)
    return path


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


def test_open_mpi(tmp_path: Path) -> None:
    stub_library(tmp_path, "libmpi.so.40")
    path = compile_program(tmp_path, "-Wl,--no-as-needed", str(tmp_path / "libmpi.so.40"))
    assert worst(path)[0] is Level.BAD and "Open MPI" in worst(path)[1]


@pytest.mark.parametrize(("library", "level"), [("libmpi.so.40", Level.BAD), ("libmpi_abi.so.1", Level.BAD), ("libmpi.so.12", Level.OK)])
def test_python_with_an_mpi4py_for_another_mpi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, level: Level) -> None:
    package = tmp_path / "mpi4py"
    package.mkdir()
    (package / "__init__.py").touch()
    stub_library(tmp_path, library)
    compile_program(package, "-shared", "-fPIC", "-Wl,--no-as-needed", str(tmp_path / library), name="MPI.cpython-311-x86_64-linux-gnu.so")
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
    assert {"CPU", "kernel", "seccomp", "open files", "stack", "overcommit", "installation", "MPI by --mpi", "mpi4py", "job directory"} <= subjects


def test_system_finds_open_mpi_unusable(tmp_path: Path) -> None:
    source = tmp_path / "fake.c"
    source.write_text('#include <string.h>\nint MPI_Get_library_version(char *s, int *n) { strcpy(s, "Open MPI v5.0.1, package: fake"); *n = 30; return 0; }\n')
    library = tmp_path / "libmpi.so.40"
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    finding = next(f for f in check_system(str(library), tmp_path) if f.subject == "MPI by --mpi")
    assert finding.level is Level.BAD and "Open MPI not supported yet" in finding.text

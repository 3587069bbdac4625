"""Compiles programs of a copy of MPICH's test/mpi one by one, against the MPI of this Python environment.

The suite is not configured and none of its build files is executed. From a folder's Makefile.am two things are read:
which source a program has if it isn't PROGRAM.c, and the macros it is compiled with. What configure would have found
out about the system is written here for Linux with glibc and gcc. Everything is built in a directory of its own; the
copy of the suite is never written to.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path

from testlist import Case

SYSTEM = """\
#define HAVE_STDARG_H 1
#define HAVE_STDINT_H 1
#define HAVE_STDLIB_H 1
#define HAVE_STRING_H 1
#define HAVE_STRINGS_H 1
#define HAVE_MEMORY_H 1
#define HAVE_UNISTD_H 1
#define HAVE_SYS_TIME_H 1
#define HAVE_SYS_RESOURCE_H 1
#define HAVE_GETRUSAGE 1
#define HAVE_STRDUP 1
#define HAVE_USLEEP 1
#define HAVE_LONG_DOUBLE 1
#define HAVE_LONG_LONG 1
#define HAVE_LONG_LONG_INT 1
#define HAVE_ATOMIC 1
#define HAVE__BOOL 1
#define HAVE_FLOAT__COMPLEX 1
#define HAVE_DOUBLE__COMPLEX 1
#define HAVE_LONG_DOUBLE__COMPLEX 1
#define USE_LONG_DOUBLE_COMPLEX 1
#define HAVE_H_ADDR_LIST 1
#define HAVE_PTHREAD_H 1
#define HAVE_PTHREAD_BARRIER_INIT 1
#define HAVE_MPI_IO 1
#define MPIO_USES_MPI_REQUEST 1
#define HAVE_MPI_SPAWN 1
#define HAVE_MPI_WIN_CREATE 1
#define MTEST_LARGE_PORT_NAME 1
#define HAVE_MPI_INIT_THREAD 1
#define HAVE_MPI_INTEGER16 1
#define HAVE_MPI_REAL16 1
#define HAVE_MPI_COMPLEX32 1
#define POINTERINT_t long
#define SIZEOF_VOID_P 8
#define THREAD_PACKAGE_NONE 1
#define THREAD_PACKAGE_POSIX 2
#define THREAD_PACKAGE_NAME THREAD_PACKAGE_POSIX
"""
SUPPORT = ("util/mtest.c", "util/mtest_common.c", "util/dtypes.c", "dtpools/src/*.c")
HOLD = Path(__file__).resolve().parent / "hold.c"
STARTER = "util/run_mpitests.c"  # main() of programs that have a run() only
MAIN = re.compile(r"\bmain\s*\(")
THREADED = "Makefile_threads.mtest"  # what the Makefile.am of a folder of programs with threads includes
FLAGS = ["-O1", "-g", "-w", "-std=gnu11", "-pthread"]
PATIENCE = 300.0  # seconds for one compilation


class BuildError(Exception):
    """A program that can't be built here; the compiler's first complaint."""


class Builder:
    """Builds into `where`; keeps what is built. Safe to use from several threads. Raises BuildError."""

    def __init__(self, suite: Path, where: Path) -> None:
        self.suite, self.where = suite, where
        self._lock = threading.Lock()
        self._programs: dict[str, threading.Lock] = {}
        prefix = Path(sys.prefix)
        self._library = prefix / "lib" / "libmpi.so.12"
        if not (prefix / "include" / "mpi.h").exists() or not self._library.exists():
            raise BuildError(f"{prefix} has no MPI to compile with: pip install mpich")
        include = where / "include"
        include.mkdir(parents=True, exist_ok=True)
        (include / "mpitestconf.h").write_text(SYSTEM)
        (include / "mtest_mpix.h").write_text("")
        (where / "dtpoolsconf.h").write_text(SYSTEM)
        folders = (include, suite / "include", suite / "dtpools" / "include", prefix / "include")
        self._flags = [*FLAGS, *(f"-I{folder}" for folder in folders)]

    def program(self, case: Case) -> Path:
        """The executable of a case."""
        with self._lock:
            lock = self._programs.setdefault(case.path, threading.Lock())
        with lock:
            target = self.where / case.folder / case.program
            if not target.exists():
                self._build(case, target)
            return target

    def _build(self, case: Case, target: Path) -> None:
        folder = self.suite / case.folder
        recipe = folder / "Makefile.am"
        text = recipe.read_text(errors="replace").replace("\\\n", " ") if recipe.exists() else ""
        sources = [folder / name for name in _assigned(text, case.program, "SOURCES") if name.endswith(".c")]
        macros = [word for word in _assigned(text, case.program, "CPPFLAGS") if word.startswith("-D")]
        threads = THREADED in text
        if not sources:
            sources = [folder / f"{case.program}.c"]
        if missing := [source for source in sources if not source.exists()]:
            raise BuildError(f"no source {missing[0].relative_to(self.suite)}")
        if not any(MAIN.search(source.read_text(errors="replace")) for source in sources):
            sources.append(self.suite / STARTER)
        support = self._support(threads)
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.part")
        flags = [*self._flags, f"-I{folder}", *macros, *(["-DMTEST_USE_THREAD"] if threads else [])]
        found = f"-Wl,--enable-new-dtags,-rpath,{self._library.parent}"  # behind LD_LIBRARY_PATH, as mpicc does
        link = [support, self._library, found, "-Wl,--allow-shlib-undefined", "-lm"]
        _compile([*flags, *map(str, sources), "-o", str(part), *map(str, link)])
        part.rename(target)

    def _support(self, threads: bool) -> Path:
        """What all programs are linked with."""
        kind = "thread" if threads else "single"
        target = self.where / f"support-{kind}.o"
        with self._lock:
            if not target.exists():
                sources = [file for pattern in SUPPORT for file in sorted(self.suite.glob(pattern))]
                sources += [self.suite / "util" / f"mtest_{kind}.c", HOLD]
                objects = self.where / f"support-{kind}"
                objects.mkdir(exist_ok=True)
                flags = [*self._flags, *(["-DMTEST_USE_THREAD"] if threads else [])]
                built = [objects / f"{source.stem}.o" for source in sources if source.exists()]
                for source, one in zip((s for s in sources if s.exists()), built, strict=True):
                    _compile([*flags, "-c", str(source), "-o", str(one)])
                part = target.with_suffix(".part")
                _compile(["-r", "-nostdlib", "-o", str(part), *map(str, built)])
                part.rename(target)
        return target


def _assigned(makefile: str, program: str, variable: str) -> list[str]:
    """The words of PROGRAM_VARIABLE = ... in a Makefile.am."""
    name = re.sub(r"\W", "_", program)
    found = re.search(rf"^{re.escape(name)}_{variable}\s*=(.*)$", makefile, re.MULTILINE)
    return shlex.split(found[1]) if found else []


def _compile(arguments: list[str]) -> None:
    try:
        done = subprocess.run(
            [os.environ.get("CC", "gcc"), *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(str(error)) from None
    if done.returncode:
        lines = done.stderr.splitlines() or ["the compiler failed"]
        raise BuildError(next((line for line in lines if "error" in line or "undefined" in line), lines[-1]))

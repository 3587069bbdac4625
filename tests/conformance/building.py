"""Compiles programs of a copy of MPICH's test/mpi one by one, each against the MPI of its language (languages.py).

The suite is not configured, and its build files are not executed. Two things are read from a folder's Makefile.am: the
sources of a program, if they aren't PROGRAM.c, and its macros. The results that configure would find are written here
for Linux with glibc and gcc. Everything is built in a separate directory; the copy of the suite is never changed.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from languages import C, Language, language
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
#define HAVE_IOSTREAM 1
#define HAVE_NAMESPACE_STD 1
#define F77_NAME_LOWER_USCORE 1
"""
FORTRAN_TYPES = {"@F77_MPI_ADDRESS@": "integer*8", "@F77_MPI_OFFSET@": "integer*8"}  # in NAME.h.in
SUPPORT = ("util/mtest.c", "util/mtest_common.c", "util/dtypes.c", "dtpools/src/*.c")
HOLD = Path(__file__).resolve().parent / "hold.c"
STARTER = "util/run_mpitests.c"  # main() of C programs that have only a run()
MAIN = re.compile(r"\bmain\s*\(")
THREADED = "Makefile_threads.mtest"  # included by the Makefile.am of a folder of programs with threads
RECIPES = ("Makefile.am", "Makefile.ap")  # the suite's own build adds the second one to the first
FLAGS = ["-O1", "-g", "-w", "-pthread"]
PATIENCE = 300.0  # seconds for one compilation


class BuildError(Exception):
    """A program that can't be built here; the text is the compiler's first error."""


class Builder:
    """Builds into `where` and keeps the results. Safe to use from several threads. Raises BuildError.

    open_mpi: programs in Fortran become programs of Open MPI; standard: programs in C become programs of the MPI-5
    standard ABI."""

    def __init__(self, suite: Path, where: Path, open_mpi: bool = False, standard: bool = False) -> None:
        self.suite, self.where, self.open_mpi = suite, where, open_mpi
        self._lock = threading.Lock()
        self._programs: dict[str, threading.Lock] = {}
        prefix = Path(sys.prefix)
        library = prefix / "lib" / ("libmpi_abi.so.1" if standard else "libmpi.so.12")
        if not (prefix / "include" / "mpi.h").exists() or not library.exists():
            raise BuildError(f"{prefix} has no MPI to compile with: pip install mpich")
        self._mpi = [f"-I{prefix / 'include'}", *(["-DMPI_ABI"] if standard else [])]
        found = f"-Wl,--enable-new-dtags,-rpath,{library.parent}"  # searched after LD_LIBRARY_PATH, as with mpicc
        self._library = [str(library), found, "-Wl,--allow-shlib-undefined"]
        include = where / "include"
        include.mkdir(parents=True, exist_ok=True)
        (include / "mpitestconf.h").write_text(SYSTEM)
        (include / "mtest_mpix.h").write_text("")
        (where / "dtpoolsconf.h").write_text(SYSTEM)
        folders = (include, suite / "include", suite / "dtpools" / "include")
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
        folder, of = self.suite / case.folder, language(case.folder, self.open_mpi)
        if of.missing:
            raise BuildError(f"no compiler: apt install {of.missing}")
        recipes = [folder / name for name in RECIPES if (folder / name).exists()]
        text = "\n".join(recipe.read_text(errors="replace") for recipe in recipes).replace("\\\n", " ")
        named = [folder / name for name in _assigned(text, case.program, "SOURCES")]
        sources = [source for source in named if source.suffix in (C.suffix, of.suffix)]
        sources = sources or [folder / f"{case.program}{of.suffix}"]
        if not all(source.exists() for source in sources):
            raise BuildError("no source in this copy")
        if of is C and not any(MAIN.search(source.read_text(errors="replace")) for source in sources):
            sources.append(self.suite / STARTER)
        macros = [word for word in _assigned(text, case.program, "CPPFLAGS") if word.startswith("-D")]
        threads = THREADED in text
        only_c = all(source.suffix == C.suffix for source in sources)
        support = self._support(of, threads) if of is C or not only_c else self._support(of, threads, helpers=False)
        target.parent.mkdir(parents=True, exist_ok=True)
        made = self._headers(case.folder)
        flags = [f"-I{target.parent}", f"-I{made}", f"-I{folder}", *macros]
        flags += ["-DMTEST_USE_THREAD"] if threads else []
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            objects = self._objects(of, sources, flags, Path(scratch))
            part = Path(scratch) / case.program
            library = self._library if of is C else []
            _compile(of.compiler, [*FLAGS, "-o", str(part), *objects, str(support), *library, "-lm"])
            part.rename(target)

    def _headers(self, folder: str) -> Path:
        """Make the headers that configure would make from NAME.h.in in this folder and its neighbours. Returns the
        directories with them."""
        beside = Path(folder).parent
        where = self.where / "include" / beside
        with self._lock:
            where.mkdir(parents=True, exist_ok=True)
            for template in (self.suite / beside).glob("*/*.h.in"):
                text = template.read_text(errors="replace")
                for word, kind in FORTRAN_TYPES.items():
                    text = text.replace(word, kind)
                (where / template.stem).write_text(text)
        return where

    def _support(self, of: Language, threads: bool, helpers: bool = True) -> Path:
        """The libraries of all programs of a language. helpers: those of languages other than C, which aren't all
        written in C."""
        kind = "thread" if threads else "single"
        if of is C or not helpers:
            files = [file for pattern in SUPPORT for file in sorted(self.suite.glob(pattern))]
            files.append(self.suite / "util" / f"mtest_{kind}.c")
        else:
            files, kind = [self.suite / name for name in of.helpers], Path(of.helpers[0]).stem
        name = f"support-{kind}" if of is C else f"support-{kind}-{of.c_compiler}"
        target = self.where / f"{name}.o"
        with self._lock:
            if not target.exists():
                scratch = self.where / name
                scratch.mkdir(exist_ok=True)
                flags = ["-DMTEST_USE_THREAD"] if threads else []
                objects = self._objects(of, [*(file for file in files if file.exists()), HOLD], flags, scratch)
                part = scratch / "all.part"
                _compile(C.compiler, ["-r", "-nostdlib", "-o", str(part), *objects])
                part.rename(target)
        return target

    def _objects(self, of: Language, sources: Sequence[Path], flags: Sequence[str], where: Path) -> list[str]:
        """Compile sources, each into an object in `where`."""
        objects = []
        for source in sources:
            objects.append(str(where / f"{source.name}.o"))
            c = source.suffix == C.suffix
            more = ["-std=gnu11"] if c else [f"-J{where}", *of.flags] if of.is_fortran else ["-fpermissive"]
            mpi = self._mpi if of is C else []
            arguments = [*self._flags, *more, *flags, *mpi, "-c", str(source), "-o", objects[-1]]
            _compile(of.c_compiler if c else of.compiler, arguments)
        return objects


def _assigned(makefile: str, program: str, variable: str) -> list[str]:
    """The words of PROGRAM_VARIABLE = ... in a Makefile.am."""
    name = re.sub(r"\W", "_", program)
    found = re.search(rf"^{re.escape(name)}_{variable}\s*=(.*)$", makefile, re.MULTILINE)
    return shlex.split(found[1]) if found else []


def _compile(compiler: str, arguments: Sequence[str]) -> None:
    try:
        done = subprocess.run([compiler, *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(str(error)) from None
    if done.returncode:
        lines = done.stderr.splitlines() or ["the compiler failed"]
        told = (line for line in lines if re.search("error|undefined", line, re.IGNORECASE))
        raise BuildError(next(told, lines[-1]))

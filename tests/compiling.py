"""Compiling C: the only way in which tests build programs and libraries, and read the values of C constants."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
LOWER = TESTS.parent / "lowerhalf"
SHARED = ("-shared", "-fPIC")  # options that make a library
STRICT = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror")
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def build(
    output: Path, sources: Path | str | Iterable[Path], *options: str | Path, compiler: str | Path = "gcc"
) -> Path:
    """Build a program, or with SHARED a library. The test is skipped if there is no such compiler.

    sources: files, or a text, which is written to a file beside the output.
    """
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    if isinstance(sources, str):
        text, sources = sources, output.with_name(f"{output.name}.c")
        sources.write_text(text)
    files = [sources] if isinstance(sources, Path) else sources
    subprocess.run([str(word) for word in (compiler, *files, *options, "-o", output)], check=True)
    return output


@dataclass(frozen=True)
class Programs:
    """Compiles each program once. where: the folder for them; the processes that share the whole suite share it."""

    where: Path
    compiler: str | Path
    options: tuple[str | Path, ...]
    libraries: tuple[str | Path, ...] = ()

    def __call__(self, source: Path) -> Path:
        """A program of one source file."""
        return self._once(source.stem, source, *self.libraries)

    def together(self, sources: Iterable[Path]) -> Path:
        """One program that is several of programs/surface (programs/surface/together.c)."""
        sources = list(sources)
        objects = [
            self._once(f"{source.stem}.o", source, "-c", "-DTOGETHER", f"-Dmain={source.stem}") for source in sources
        ]
        every = "".join(f" P({source.stem})" for source in sources)
        name = f"together-{zlib.crc32(every.encode()):08x}"
        frame = TESTS / "programs/surface/together.c"
        return self._once(name, [frame, *objects], "-DTOGETHER", f"-DPROGRAMS(P)={every}", *self.libraries)

    def _once(self, name: str, sources: Path | Iterable[Path], *options: str | Path) -> Path:
        return once(self.where, name, sources, *self.options, *options, compiler=self.compiler)


shared: Path | None = None  # a folder that all processes of a test run share (conftest.py)


def mpi_programs() -> Programs:
    """Compiles MPI programs. They are linked to the real library only by its soname, and at run time they find
    manapy's."""
    include, lib = Path(sys.prefix) / "include", Path(sys.prefix) / "lib"
    if not (include / "mpi.h").exists():
        pytest.skip("no mpi.h (pip install mpich)")
    assert shared is not None
    options = (*STRICT, "-Wno-deprecated-declarations", "-pthread", f"-I{include}")
    return Programs(
        shared / "programs/mpich", "gcc", options, (lib / "libmpi.so.12", "-Wl,--allow-shlib-undefined", "-lm")
    )


def build_core(output: Path, sources: Iterable[Path], *options: str | Path) -> Path:
    """Build a driver together with files of lowerhalf/: with strict warnings, and with the headers of lowerhalf/ and
    check.h. Each source is compiled once with the same options, because many drivers contain the same files."""
    assert shared is not None
    places = (f"-I{LOWER}", f"-I{LOWER / 'include'}", f"-I{TESTS}")
    every = [*STRICT, "-D_GNU_SOURCE=", *places, *options]
    flags = [word for word in every if not str(word).startswith(("-shared", "-l", "-Wl"))]
    return build(output, [_object(shared / "objects", source, flags) for source in sources], *every)


def dirty_library(output: Path) -> Path:
    """What finds changed pages (lowerhalf/image/dirty), as a library."""
    image = LOWER / "image"
    sources = [*(image / "dirty").glob("*.c"), image / "file/polyval.c", LOWER / "isolate/fdguard.c"]
    return build_core(output, sources, *SHARED)


def _object(where: Path, source: Path, flags: list[str | Path]) -> Path:
    key = zlib.crc32("\0".join(map(str, [source, *flags])).encode())
    return once(where, f"{source.stem}-{key:08x}.o", source, "-c", *flags)


def once(
    where: Path, name: str, sources: Path | Iterable[Path], *options: str | Path, compiler: str | Path = "gcc"
) -> Path:
    """Build a file in a folder that several processes share, unless one of them has already built it."""
    target = where / name
    if not target.exists():
        where.mkdir(parents=True, exist_ok=True)
        build(where / f"{os.getpid()}-{name}", sources, *options, compiler=compiler).rename(target)
    return target


def c_values(directory: Path, prologue: str, expressions: Mapping[str, str], *options: str | Path) -> dict[str, int]:
    """The value of each C expression, by its name. prologue: the #include lines."""
    lines = "\n".join(f'    printf("%lld\\n", (long long)({expression}));' for expression in expressions.values())
    text = f"#include <stddef.h>\n#include <stdio.h>\n{prologue}\nint main(void) {{\n{lines}\n    return 0;\n}}\n"
    probe = build(directory / "probe", text, "-std=gnu11", "-w", *options)
    output = subprocess.run([probe], check=True, capture_output=True, text=True).stdout
    return dict(zip(expressions, map(int, output.split()), strict=True))

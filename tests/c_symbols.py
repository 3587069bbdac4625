"""Which functions and variables each C file of lowerhalf/ and wrappers/ defines and uses: nm of the object files from
which manapy was installed; also those of the files that wrappers/generate has made. What an inline function of a header
uses counts as used by each file that calls this function."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import takewhile
from pathlib import Path

import pytest

VERBS = Path("/usr/include/infiniband/mlx5dv.h")  # the interposer of lowerhalf/rdma is compiled only where this is
OURS = re.compile(r"(mpy|front|core|fortran|standard)_\w+|P?MPI_\w+|MPII_\w+|ibv_\w+|rdma_\w+|shift_\w+")
GENERATED = "generated"  # the folder of what is generated, instead of lowerhalf or wrappers
OBJECT = re.compile(r"^build (\S+\.o): \S+ (\S+)", re.M)  # in Ninja's file: an object file, and its source


@dataclass(frozen=True)
class Symbols:
    """Names of global symbols of one file. strong and weak: those it defines."""

    strong: set[str]
    weak: set[str]
    used: set[str]


@cache
def build_folder(root: Path) -> Path:
    """Where the installed manapy was built. The test is skipped if that was not here, and fails if a source has changed
    since."""
    manifests = [
        path for path in (root / "build").glob("*/install_manifest.txt") if path.with_name("build.ninja").exists()
    ]
    if not manifests:
        pytest.skip("manapy was not built here (pip install .)")
    built = max(manifests, key=lambda path: path.stat().st_mtime)
    sources = [path for top in ("lowerhalf", "wrappers") for path in (root / top).rglob("*.[chS]")]
    newer = [path for path in sources if path.stat().st_mtime > built.stat().st_mtime]
    assert not newer, f"{newer[0]} was changed after manapy had been installed (pip install .)"
    return built.parent


@cache
def read(root: Path) -> dict[str, Symbols]:
    """Of each file, by its path below `root`, without contracts that both halves include. A file that is compiled for
    several libraries has the symbols of all its objects."""
    folder = build_folder(root)
    objects = OBJECT.findall((folder / "build.ninja").read_text())
    names = {compiled: _name(root, folder, Path(source)) for compiled, source in objects}
    found = {name: Symbols(set(), set(), set()) for name in names.values() if name}
    command = ["nm", "--extern-only", "--print-file-name", *names]
    listed = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    for line in listed.splitlines():
        name = names[line.partition(":")[0]]
        kind, symbol = line.split()[-2:]
        if name and OURS.fullmatch(symbol):
            file = found[name]
            (file.used if kind == "U" else file.weak if kind in "WV" else file.strong).add(symbol)
    return found


def callees(symbols: dict[str, Symbols]) -> dict[str, dict[str, set[str]]]:
    """For each file: the files that define what it uses, and the names. Of several files that define a name, those are
    meant whose folders have the most in common with that of the file: they are linked with it. lowerhalf/ and wrappers/
    never are."""
    strong = _definers((name, file.strong) for name, file in symbols.items())
    weak = _definers((name, file.weak) for name, file in symbols.items())
    found: dict[str, dict[str, set[str]]] = {name: {} for name in symbols}
    for name, file in symbols.items():
        for symbol in file.used:
            for definer in _meant(name, strong.get(symbol, set()) or weak.get(symbol, set())):
                found[name].setdefault(definer, set()).add(symbol)
    return found


def circle(graph: dict[str, set[str]]) -> list[str]:
    """One circle, from its first file back to it; [] if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def _definers(files: Iterable[tuple[str, Iterable[str]]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, symbols in files:
        for symbol in symbols:
            found.setdefault(symbol, set()).add(name)
    return found


def _meant(user: str, definers: set[str]) -> set[str]:
    common = {definer: len(_common(_folders(user), _folders(definer))) for definer in definers}
    return {definer for definer, n in common.items() if n == max(common.values()) > 0}


def _common(a: list[str], b: list[str]) -> list[str]:
    return [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))]


def _folders(name: str) -> list[str]:
    """Those of the room to which a generated file belongs."""
    return name.removeprefix(f"{GENERATED}/").split("/")[:-1]


def _name(root: Path, folder: Path, source: Path) -> str | None:
    """Of a file of lowerhalf/ or wrappers/, or one that is generated: the room that it belongs to, below GENERATED."""
    made = folder / "generated"
    if not source.is_relative_to(made):
        name = source.relative_to(root).as_posix()
        return name if name.startswith(("lowerhalf/", "wrappers/")) and "/include/" not in name else None
    place, name = source.relative_to(made).parent.as_posix(), source.name
    if name.startswith("recorder"):
        return f"{GENERATED}/lowerhalf/trace/preload/{name}"
    if place.startswith("back/"):
        return f"{GENERATED}/lowerhalf/mpi/{place}/{name}"
    if place == ".":
        return f"{GENERATED}/wrappers/{name}"
    return f"{GENERATED}/wrappers/front/{place}/{'fortran/' if name.startswith('fortran') else ''}{name}"

"""Which functions and variables each C file of lowerhalf/ and wrappers/ defines and uses, by compiling all of them and
asking nm; also those of the files that wrappers/generate makes. What an inline function of a header uses counts as used
by each file that calls this function."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import takewhile
from pathlib import Path

import pytest
from compiling import build

VERBS = Path("/usr/include/infiniband/mlx5dv.h")  # the interposer of lowerhalf/rdma is compiled only where this is
OURS = re.compile(r"(mpy|front|core|fortran|standard)_\w+|P?MPI_\w+|MPII_\w+|ibv_\w+|rdma_\w+|shift_\w+")
GENERATED = "generated"  # the folder of what is generated, instead of lowerhalf or wrappers
GENERATORS = ("generate", "generate.other_abis.back")
FLAGS = ("-std=gnu11", "-D_GNU_SOURCE", '-DMPY_VERSION="0"', "-O0", "-fPIC", "-mfsgsbase", "-w")


@dataclass(frozen=True)
class Symbols:
    """Names of global symbols of one file. strong and weak: those it defines."""

    strong: frozenset[str]
    weak: frozenset[str]
    used: frozenset[str]


def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for `read` in this run of tests, which all its processes share."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "c-symbols"


def sources(root: Path) -> list[Path]:
    """All files that are compiled, except contracts that both halves include."""
    files = [path for top in ("lowerhalf", "wrappers") for path in (root / top).rglob("*.[cS]")]
    return sorted(path for path in files if "include" not in path.relative_to(root).parts)


def read(root: Path, where: Path) -> dict[str, Symbols]:
    """Of each file, by its path below `root`. Several processes may ask at once; the first one compiles."""
    where.mkdir(parents=True, exist_ok=True)
    known = where / "symbols.json"
    with (where / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not known.exists():
            known.write_text(json.dumps(_compiled(root, where)))
    return {name: Symbols(*map(frozenset, lists)) for name, lists in json.loads(known.read_text()).items()}


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


def _compiled(root: Path, where: Path) -> dict[str, tuple[list[str], list[str], list[str]]]:
    made = where / "made"
    made.mkdir()
    files = {path.relative_to(root).as_posix(): path for path in sources(root)}
    if not VERBS.exists():
        files = {name: path for name, path in files.items() if not name.startswith("lowerhalf/rdma/")}
    files |= {_name_of_made(path.relative_to(made)): path for path in _generate(root, made)}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        lists = pool.map(lambda name: _symbols(root, made, name, files[name]), files)
        return dict(zip(files, lists, strict=True))


def _generate(root: Path, made: Path) -> list[Path]:
    wrappers = root / "wrappers"
    if not (wrappers / "generate").exists():
        return []
    tables = [wrappers / "table" / name for name in ("functions.txt", "abi.txt")]
    commands = [[module, *tables, made] for module in GENERATORS]
    commands.append(["generate.recorder", tables[0], made / "preload"])
    (made / "preload").mkdir()
    for command in commands:
        subprocess.run([sys.executable, "-m", *map(str, command)], cwd=wrappers, check=True)
    shutil.copy(wrappers / "core/mpich.h", made)
    return sorted(made.rglob("*.c"))


def _name_of_made(path: Path) -> str:
    """The room that the file belongs to, below GENERATED."""
    folder, name = path.parent.as_posix(), path.name
    if folder == "preload":
        return f"{GENERATED}/lowerhalf/trace/preload/{name}"
    if folder.startswith("back/"):
        return f"{GENERATED}/lowerhalf/mpi/{folder}/{name}"
    if folder == ".":
        return f"{GENERATED}/wrappers/{name}"
    return f"{GENERATED}/wrappers/front/{folder}/{'fortran/' if name.startswith('fortran') else ''}{name}"


def _symbols(root: Path, made: Path, name: str, path: Path) -> tuple[list[str], list[str], list[str]]:
    compiled = made / (name.replace("/", "_") + ".o")
    build(compiled, path, *FLAGS, *(f"-I{place}" for place in _places(root, made, name)), "-c")
    listed = subprocess.run(["nm", compiled], check=True, capture_output=True, text=True).stdout
    strong, weak, used = [], [], []
    for line in listed.splitlines():
        kind, symbol = line.split()[-2:]
        if OURS.fullmatch(symbol):
            (used if kind == "U" else weak if kind in "WV" else strong if kind.isupper() else []).append(symbol)
    return strong, weak, used


def _places(root: Path, made: Path, name: str) -> list[Path]:
    """Where the compiler looks for headers, as in the CMakeLists.txt of the folders."""
    lower, wrappers = root / "lowerhalf", root / "wrappers"
    family = "openmpi" if "openmpi" in name else "standard"  # what both share is compiled for one
    if _folders(name)[0] == "wrappers":
        own = [wrappers, made / family]
    elif "mpi/back/" in name:
        own = [lower / "mpi/back" / family, made / "back" / family]
    elif "trace/preload/" in name:
        own = [made / "preload", lower / "trace/preload"]
    elif "/rdma/" in name:
        own = [lower / "rdma"]
    else:
        own = []
    return [*own, lower, lower / "include", made]

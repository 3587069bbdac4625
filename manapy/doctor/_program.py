"""Checks of a program: can manapy-launch start it, will it find our MPI, and what could make a checkpoint fail?"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from . import _elf, _shell
from ._finding import Finding, Level

SYSTEM_DIRECTORIES = (
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/usr/local/lib",
    "/lib",
    "/usr/lib",
)
OPEN_MPI = ("libmpi.so.40",)
OLD_OPEN_MPI = ("libmpi.so.20", "libmpi.so.12.openmpi")
STANDARD_ABI = ("libmpi_abi.so.1",)
DRAFT_ABI = ("libmpi_abi.so.0",)
FORTRAN_ABI = ("libmpifort_abi.so.1",)  # Intel MPI's, which calls internal functions of Intel's libmpi_abi.so.1
MPICH = ("libmpi.so.12", "libmpich.so.12", "libmpi.so")
MPI_LIBRARIES = {
    library: family
    for family, libraries in {
        "MPICH": MPICH,
        "Open MPI": OPEN_MPI,
        "an old Open MPI": OLD_OPEN_MPI,
        "the MPI-5 standard ABI": STANDARD_ABI,
        "a draft of the standard ABI": DRAFT_ABI,
        "Intel MPI's Fortran for the standard ABI": FORTRAN_ABI,
    }.items()
    for library in libraries
}
# A library in lib/manapy/upper takes their place.
SERVED = {
    "MPICH": "MPICH's ABI",
    "Open MPI": "Open MPI's ABI",
    "the MPI-5 standard ABI": "the MPI-5 standard ABI",
}

# What a needed library means for checkpoints of the program.
OBSTACLES = {
    "liburing.so": "io_uring: rings can't be saved; a checkpoint fails while one is open",
    "libcuda.so": "what is on a GPU is saved only by NVIDIA's driver 570 or newer (docs/gpu.md)",
    "libcudart.so": "what is on a GPU is saved only by NVIDIA's driver 570 or newer (docs/gpu.md)",
    "libamdhip64.so": "a GPU context can't be saved; a checkpoint fails while one is open",
    "libze_loader.so": "a GPU context can't be saved; a checkpoint fails while one is open",
    "libibverbs.so": "RDMA devices opened by the program itself can't be saved (those of MPI are no obstacle)",
}


def check_program(program: str, arguments: Sequence[str] = (), search_path: str | None = None) -> list[Finding]:
    """Check PROG as manapy-launch finds it: through PATH and through #! lines; of a shell script, also the programs in
    it that use MPI. Likewise those in its arguments: `timeout 1h ./solver`, `bash job.sh`."""
    path = _locate(program, search_path)
    if path is None:
        return [Finding(program, Level.BAD, "no such program")]
    findings: list[Finding] = []
    seen: set[Path] = set()
    started: list[Finding] = []
    while path not in seen:
        seen.add(path)
        problem = _permissions(path)
        findings += problem
        if any(f.level is Level.BAD for f in problem):
            return findings
        try:
            elf = _elf.read(path)
        except _elf.NotElf:
            interpreter, found = _script(path)
            findings.append(found)
            if interpreter is None:
                return findings
            if interpreter.name in _shell.SHELLS:
                started += _started_by(_shell.words(path), search_path)
            path = interpreter
            continue
        if path.name in _shell.SHELLS and arguments and Path(arguments[0]).is_file():
            started += _started_by(_shell.words(Path(arguments[0])), search_path)
        started += _started_by(arguments, search_path)
        return findings + _binary(path, elf) + _python(path) + started
    return [*findings, Finding(str(path), Level.BAD, "its #! line names the script itself")]


def _locate(program: str, search_path: str | None) -> Path | None:
    if "/" in program:
        return Path(program) if Path(program).exists() else None
    found = shutil.which(program, path=search_path)
    return Path(found) if found else (Path(program) if Path(program).exists() else None)


def _permissions(path: Path) -> list[Finding]:
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        return [Finding(str(path), Level.BAD, "is a directory")]
    if not os.access(path, os.R_OK):
        return [Finding(str(path), Level.BAD, "can't be read, so it can't be loaded")]
    if not os.access(path, os.X_OK):
        hint = f": start it as 'python {path}'" if path.suffix == ".py" else ""
        return [Finding(str(path), Level.BAD, f"is not executable{hint}")]
    if mode & (stat.S_ISUID | stat.S_ISGID):
        return [Finding(str(path), Level.NOTE, "setuid or setgid: loses this privilege under manapy (no_new_privs)")]
    return []


def _script(path: Path) -> tuple[Path | None, Finding]:
    with path.open("rb") as stream:
        line = stream.readline(256).decode(errors="replace").rstrip("\n")
    if not line.startswith("#!"):  # execvp(3) treats it as a shell script, and so does manapy-launch
        return Path("/bin/sh"), Finding(
            str(path), Level.NOTE, "neither an ELF program nor a script with a #! line: /bin/sh will read it"
        )
    words = line[2:].split()
    if words and Path(words[0]).name == "env":
        names = [w for w in words[1:] if not w.startswith("-") and "=" not in w]
        target = _locate(names[0], None) if names else None
    else:
        target = Path(words[0]) if words and Path(words[0]).exists() else None
    if target is None:
        return None, Finding(str(path), Level.BAD, f"script whose interpreter is missing: {line}")
    return target, Finding(str(path), Level.OK, f"script for {target}")


def _started_by(words: Iterable[str], search_path: str | None) -> list[Finding]:
    """Findings on the programs with MPI among these words, and on Python's mpi4py."""
    findings: list[Finding] = []
    for word in words:
        path = _locate(word, search_path)
        if path is None or not path.is_file() or not os.access(path, os.X_OK | os.R_OK):
            continue
        try:
            elf = _elf.read(path)
        except _elf.NotElf:
            continue
        if elf.interpreter is not None and any(library in MPI_LIBRARIES for library, _ in _libraries(path, elf)):
            findings += _permissions(path) + _binary(path, elf)
        findings += _python(path)
    return findings


def _binary(path: Path, elf: _elf.Elf) -> list[Finding]:
    name = str(path)
    if elf.bits == 32:
        return [Finding(name, Level.BAD, "a 32-bit program: manapy supports only 64-bit programs")]
    if elf.machine != "EM_X86_64":
        return [Finding(name, Level.BAD, f"for another machine (ELF machine {elf.machine})")]
    if elf.interpreter is None:
        return [
            Finding(
                name,
                Level.NOTE,
                (
                    "statically linked: fine without MPI; an MPI program must be linked dynamically, or its MPI is "
                    "lost at a restart"
                ),
            )
        ]
    if not Path(elf.interpreter).exists():
        return [Finding(name, Level.BAD, f"its loader {elf.interpreter} is missing")]
    kind = "dynamic program at a fixed address" if elf.kind == "ET_EXEC" else "dynamic program"
    findings = [Finding(name, Level.OK, f"{kind}, loader {elf.interpreter}")]
    if "musl" in elf.interpreter:
        findings.append(Finding(name, Level.BAD, "linked to musl: only glibc programs are supported"))
    libraries = dict(_libraries(path, elf))
    findings += _mpi_linkage(name, elf, libraries)
    for library, where in libraries.items():
        for prefix, text in OBSTACLES.items():
            if library.startswith(prefix):
                findings.append(Finding(library, Level.NOTE, text))
        if where is None and not library.startswith(("libmpi", "libmpich")):
            findings.append(Finding(library, Level.NOTE, "not found by this check"))
    return findings


def _mpi_linkage(name: str, elf: _elf.Elf, libraries: dict[str, Path | None]) -> list[Finding]:
    findings = [_interface(library) for library in libraries if library in MPI_LIBRARIES]
    families = {MPI_LIBRARIES[library] for library in libraries if library in {*MPI_LIBRARIES} - {*FORTRAN_ABI}}
    if len(families) > 1:
        text = f"linked to two MPIs ({' and '.join(sorted(families))}): link everything with one of them"
        findings.append(Finding(name, Level.BAD, text))
    for directory in elf.rpath if not elf.runpath else []:
        place = Path(directory.replace("$ORIGIN", str(Path(name).resolve().parent)))
        if any((place / library).exists() for library in MPI_LIBRARIES):
            findings.append(
                Finding(
                    name,
                    Level.BAD,
                    (
                        f"DT_RPATH {directory} holds another libmpi and goes before LD_LIBRARY_PATH: 'chrpath -c' or "
                        "link with --enable-new-dtags"
                    ),
                )
            )
    return findings


def _interface(library: str) -> Finding:
    family = MPI_LIBRARIES[library]
    if family in SERVED:
        return Finding(library, Level.OK, f"{SERVED[family]}: manapy's library takes its place")
    text = f"{family}, which is not supported: build it with MPICH, Intel MPI, or Open MPI 4 or 5"
    return Finding(library, Level.BAD, text)


def _libraries(path: Path, elf: _elf.Elf) -> Iterator[tuple[str, Path | None]]:
    """The needed libraries, also those that libraries need, and their paths."""
    seen: set[str] = set()
    queue = [(path, elf)]
    while queue:
        owner, current = queue.pop(0)
        for library in current.needed:
            if library in seen:
                continue
            seen.add(library)
            where = _search(library, owner, current)
            yield library, where
            # The libraries that an MPI library needs are loaded only in the lower half.
            if where is not None and library not in MPI_LIBRARIES:
                try:
                    queue.append((where, _elf.read(where)))
                except (_elf.NotElf, OSError):
                    continue


def _search(library: str, owner: Path, elf: _elf.Elf) -> Path | None:
    origin = str(owner.resolve().parent)
    places = [
        d.replace("$ORIGIN", origin).replace("${ORIGIN}", origin) for d in (elf.rpath or []) + (elf.runpath or [])
    ]
    places += [d for d in os.environ.get("LD_LIBRARY_PATH", "").split(":") if d]
    for place in (*places, *SYSTEM_DIRECTORIES):
        candidate = Path(place) / library
        if candidate.is_file():
            return candidate
    return None


def _python(path: Path) -> list[Finding]:
    """If the program is a Python interpreter: which mpi4py will it import?"""
    if not path.name.startswith("python"):
        return []
    code = "import importlib.util as u; spec = u.find_spec('mpi4py'); print(spec.origin if spec else '')"
    try:
        answer = subprocess.run([str(path), "-c", code], capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return []
    if not answer:
        return [Finding("mpi4py", Level.NOTE, f"not installed for {path}")]
    return [_mpi4py(Path(answer).parent, path)]


def _mpi4py(package: Path, python: Path) -> Finding:
    """The finding on mpi4py. Wheels contain a module per ABI, and manapy-launch chooses MPICH's; a build contains
    one."""
    found: set[str] = set()
    for module in package.glob("MPI.*.so"):
        try:
            found.update(_elf.read(module).needed)
        except (_elf.NotElf, OSError):
            continue
    families = {MPI_LIBRARIES[library] for library in found if library in MPI_LIBRARIES}
    if families and families.isdisjoint(SERVED):
        text = (
            f"{package} is made for {', '.join(sorted(families))}, which is not supported: 'pip install mpi4py' in a "
            "virtual environment gives one that is"
        )
        return Finding("mpi4py", Level.BAD, text)
    if len(families) == 1 and families != {"MPICH"}:
        return Finding("mpi4py", Level.OK, f"{package} for {python}, built for {SERVED[families.pop()]}")
    return Finding("mpi4py", Level.OK, f"{package} for {python}")

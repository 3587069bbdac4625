"""Checks of this machine: CPU, kernel, limits, MPI, directory."""

from __future__ import annotations

import os
import platform
import resource
import shutil
from pathlib import Path

from ..core import installation
from ..core.units import size
from ..mpi import Candidate, Family, candidates, family_of, find_pmix, under_srun
from ._account import check_account
from ._finding import Finding, Level
from ._mounts import mount_of

HWCAP2_FSGSBASE = 1 << 1
AT_HWCAP2 = 26
KERNEL = (5, 9)  # FSGSBASE for user space
NOFILE = 1024  # below, the lower half has its descriptors among fewer, and lower, numbers (lowerhalf/isolate/fdguard.h)
LOCAL = {"tmpfs", "ramfs", "overlay"}


def check_system(mpi: str | None = None, directory: Path | None = None) -> list[Finding]:
    """All checks that need no program. mpi: as --mpi of manapy-launch; directory: where jobs will be."""
    return [
        _cpu(),
        _kernel(),
        _seccomp(),
        *_limits(),
        _overcommit(),
        *_installation(),
        *_mpi(mpi),
        *_srun(mpi),
        _pmix(),
        _mpi4py(),
        _directory(directory or Path.cwd()),
        *check_account(directory or Path.cwd()),
    ]


def _cpu() -> Finding:
    from ..core.boundary import getauxval

    if platform.machine() != "x86_64":
        return Finding("CPU", Level.BAD, f"{platform.machine()}: manapy needs x86-64")
    if getauxval(AT_HWCAP2) & HWCAP2_FSGSBASE:
        return Finding("CPU", Level.OK, "x86-64 with fsgsbase")
    return Finding(
        "CPU", Level.BAD, "fsgsbase is missing (CPU before 2012, or kernel older than 5.9, or booted with nofsgsbase)"
    )


def _kernel() -> Finding:
    release = platform.release()
    digits = release.replace("-", ".").split(".")
    version = tuple(int(d) for d in digits[:2] if d.isdigit())
    if version >= KERNEL:
        return Finding("kernel", Level.OK, release)
    return Finding("kernel", Level.BAD, f"{release}: {KERNEL[0]}.{KERNEL[1]} or newer is needed")


def _seccomp() -> Finding:
    status = Path("/proc/self/status").read_text()
    if "Seccomp:" not in status:
        return Finding("seccomp", Level.BAD, "the kernel has no seccomp filters (CONFIG_SECCOMP_FILTER)")
    actions = Path("/proc/sys/kernel/seccomp/actions_avail")
    if actions.exists() and "trap" not in actions.read_text().split():
        return Finding("seccomp", Level.BAD, "the kernel's seccomp has no 'trap' action")
    mode = next(line.split()[1] for line in status.splitlines() if line.startswith("Seccomp:"))
    return Finding(
        "seccomp",
        Level.OK,
        "filters available" + (" (this shell runs under one already: a container?)" if mode == "2" else ""),
    )


def _limits() -> list[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
    if soft == resource.RLIM_INFINITY or soft >= NOFILE:
        files = Finding("open files", Level.OK, f"ulimit -n {shown}")
    else:
        can = hard == resource.RLIM_INFINITY or hard >= NOFILE
        more = f"'ulimit -n {NOFILE}' allows more" if can else f"no more than {hard} allowed"
        text = f"ulimit -n {shown}: enough for programs with few open files, as manapy needs some itself; {more}"
        files = Finding("open files", Level.NOTE, text)
    stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
    shown = "unlimited" if stack == resource.RLIM_INFINITY else f"{stack // 1024} KiB"
    level = Level.OK if stack == resource.RLIM_INFINITY or stack >= 1 << 20 else Level.NOTE
    findings = [files, Finding("stack", level, f"ulimit -s {shown}")]
    memory = resource.getrlimit(resource.RLIMIT_AS)[0]
    if memory != resource.RLIM_INFINITY:
        findings.append(
            Finding(
                "address space",
                Level.NOTE,
                f"ulimit -v {memory // 1024}: a restart needs as much as the job and some 200 MiB",
            )
        )
    return findings


def _overcommit() -> Finding:
    mode = Path("/proc/sys/vm/overcommit_memory").read_text().strip()
    if mode == "2":
        return Finding(
            "overcommit",
            Level.NOTE,
            "vm.overcommit_memory = 2: memory is reserved in advance; a launch may fail for lack of it",
        )
    return Finding("overcommit", Level.OK, f"vm.overcommit_memory = {mode}")


def _installation() -> list[Finding]:
    missing = [name for name in ("manapy-launch", "manapy-restart") if installation.executable(name) is None]
    missing += [name for name in ("libmanapy_image.so", "upper/libmpi.so.12") if installation.library(name) is None]
    if missing:
        return [Finding("installation", Level.BAD, f"missing: {', '.join(missing)}: install manapy again")]
    return [Finding("installation", Level.OK, str(installation.executable("manapy-launch")))]


def _user_of(candidate: Candidate, chosen: bool) -> str:
    """Which launch uses this library. The launcher's place decides, unless --mpi or the environment does."""
    if candidate.rule in ("--mpi", "MANAPY_LIBMPI"):
        return "" if chosen else " (a launch uses this one)"
    if candidate.rule == "mpirun's prefix":
        return "" if chosen else f" (a launch under {candidate.source} uses this one)"
    beside = [
        path for name in ("mpirun", "mpiexec") if os.access(path := Path(candidate.source) / "bin" / name, os.X_OK)
    ]
    if beside and "MANAPY_LIBMPI" not in os.environ:
        return f" (a launch under {beside[0]} uses this one)"
    return "" if chosen else " (a launch uses this one)"


def _mpi(option: str | None) -> list[Finding]:
    findings = []
    chosen = False
    for candidate in candidates(option):
        name = f"MPI by {candidate.rule}"
        if candidate.path is None:
            given = candidate.source not in ("not given", "not set", "no mpirun on PATH")
            wrong = given and candidate.rule in ("--mpi", "MANAPY_LIBMPI")
            findings.append(
                Finding(
                    name,
                    Level.BAD if wrong else Level.OK,
                    f"{candidate.source}: no libmpi there" if given else candidate.source,
                )
            )
            continue
        family, text = family_of(candidate.path)
        used = _user_of(candidate, chosen)
        if family is Family.UNKNOWN:
            level = Level.BAD if not chosen else Level.NOTE
            findings.append(Finding(name, level, f"{candidate.path}: {family.value} can't be used: {text}{used}"))
        elif family is Family.STANDARD and text.startswith("Intel"):
            faults = "it crashes in some calls (MPI_File_get_group, MPI_T_pvar_start): use its libmpi.so.12"
            findings.append(Finding(name, Level.NOTE, f"{candidate.path}: {family.value}, {text}; {faults}{used}"))
        else:
            whose = "; its ranks need Open MPI's mpirun" if family is Family.OPENMPI else ""
            findings.append(Finding(name, Level.OK, f"{candidate.path}: {family.value}, {text}{whose}{used}"))
        chosen = True
    if not chosen:
        findings.append(
            Finding(
                "MPI", Level.BAD, "no MPI found: install one (pip install mpich), or give --mpi PATH or MANAPY_LIBMPI"
            )
        )
    return findings


def _srun(option: str | None) -> list[Finding]:
    """The MPI of steps of srun, which has none beside it. Nothing if there is no srun, or if the user names the MPI."""
    if shutil.which("srun") is None or option or os.environ.get("MANAPY_LIBMPI"):
        return []
    texts, level = [], Level.NOTE
    for how, family in (("pmi2", Family.MPICH), ("pmix", Family.OPENMPI)):
        found = under_srun(family)
        level = Level.OK if found.path else level
        texts.append(f"srun --mpi={how}: {found.path or 'none'} ({found.rule}: {found.source})")
    if level is Level.NOTE:
        texts.append("name it with MANAPY_LIBMPI, or with `mpi` of [launch] in /etc/manapy.toml")
    return [Finding("MPI under srun", level, "; ".join(texts))]


def _pmix() -> Finding:
    """Check for PMIx, which matters only with Open MPI, or with Slurm's PMIx."""
    found = find_pmix()
    whose = f"Open MPI's mpirun ({found.mpirun})" if found.mpirun else "Open MPI's mpirun"
    jobs = f"jobs of {whose} and of srun --mpi=pmix"
    if found.version:
        return Finding("PMIx", Level.OK, f"{found.library}: {found.text}; {jobs} may run programs that call no MPI")
    if os.environ.get("MANAPY_LIBPMIX"):
        return Finding("PMIx", Level.BAD, f"MANAPY_LIBPMIX: {found.text}")
    level = Level.NOTE if found.mpirun else Level.OK
    return Finding("PMIx", level, f"no {found.library} that can be loaded: {jobs} need one (apt install libpmix2)")


def _mpi4py() -> Finding:
    from importlib import metadata

    try:
        version = metadata.version("mpi4py")
    except metadata.PackageNotFoundError:
        return Finding(
            "mpi4py", Level.NOTE, "not installed in this Python (needed only by Python programs that use MPI)"
        )
    if int(version.split(".")[0]) < 4:
        text = f"{version}: must be built for MPICH or Open MPI; wheels of 4.1 and newer run under either"
        return Finding("mpi4py", Level.NOTE, text)
    return Finding("mpi4py", Level.OK, version)


def _directory(directory: Path) -> Finding:
    name, level = "job directory", Level.OK
    place = directory.resolve()
    kind = mount_of(place).kind
    text = f"{place} on {kind}"
    if not os.access(place, os.W_OK):
        return Finding(name, Level.BAD, f"{text}: not writable")
    if kind in LOCAL:
        level = Level.NOTE
        text += ": lost at a reboot" if kind != "overlay" else ": a container's own file system"
        text += "; seen only on this host"
    status = os.statvfs(place)
    return Finding(name, level, f"{text}, {size(status.f_bavail * status.f_frsize)} free")

"""Obstacles of a fresh account on a cluster: what an administrator, a container or a batch system has set."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from ..core import installation
from ..core.units import size
from ._finding import Finding, Level
from ._mounts import mount_of

SMALL = 256 << 20  # bytes of /dev/shm that MPI and recordings of a few ranks can fill
OF_ONE_HOST = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "ramfs", "overlay")
SELINUX = Path("/sys/fs/selinux")
SAVES_GPUS = 570  # version of NVIDIA's driver that has cuCheckpointProcessCheckpoint (wrappers/cuda.c)


def check_account(directory: Path) -> list[Finding]:
    """directory: where jobs will be. Findings only on what is an obstacle, or may become one."""
    findings = [_libc(), _shared_memory(Path("/dev/shm")), *_noexec(directory), _selinux(SELINUX)]
    findings += [_lazy(Path("/proc/sys/vm/unprivileged_userfaultfd")), _gpu(Path("/sys/module/nvidia/version"))]
    findings.append(_shared_directory(directory, os.environ))
    return [finding for finding in findings if finding is not None]


def _libc() -> Finding | None:
    name, version = platform.libc_ver()
    if name == "glibc":
        return None
    return Finding("C library", Level.BAD, f"{name or 'unknown'} {version}".strip() + ": manapy needs glibc (no musl)")


def _shared_memory(place: Path) -> Finding | None:
    if not place.is_dir() or not os.access(place, os.W_OK):
        text = "missing or not writable: MPI's shared memory, semaphores and recordings need it"
        return Finding(str(place), Level.BAD, text)
    status = os.statvfs(place)
    free = status.f_bavail * status.f_frsize
    if free >= SMALL:
        return None
    text = f"{size(free)} free: MPI and recordings may fail for lack of room (in a container: --shm-size=1g)"
    return Finding(str(place), Level.NOTE, text)


def _noexec(directory: Path) -> list[Finding]:
    findings = []
    launcher = installation.executable("manapy-launch")
    for what, place, level, then in (
        ("installation", launcher, Level.BAD, "nothing there can be run: install manapy elsewhere"),
        ("job directory", directory, Level.NOTE, "programs there can't be started"),
    ):
        if place is not None and "noexec" in mount_of(place.resolve()).options:
            findings.append(Finding(what, level, f"{place} is mounted noexec: {then}"))
    return findings


def _selinux(place: Path) -> Finding | None:
    try:
        enforces = (place / "enforce").read_text().strip() == "1"
        denies = (place / "booleans/deny_execmem").read_text().split()[:1] == ["1"]
    except OSError:
        return None
    if not enforces:
        return None
    if denies:
        text = "forbids executable memory, which manapy needs: ask for 'setsebool deny_execmem off'"
        return Finding("SELinux", Level.BAD, text)
    return Finding("SELinux", Level.NOTE, "enforces a policy: if a launch is denied, look at 'ausearch -m avc'")


def _lazy(setting: Path) -> Finding | None:
    try:
        forbidden = setting.read_text().strip() == "0" and os.geteuid() != 0
    except OSError:
        return None
    if not forbidden:
        return None
    text = "vm.unprivileged_userfaultfd = 0: `manapy restart --lazy` reads all memory before the program runs"
    return Finding("lazy restart", Level.NOTE, text)


def _gpu(version: Path) -> Finding | None:
    try:
        driver = version.read_text().strip()
    except OSError:
        return None
    major = driver.partition(".")[0]
    if not major.isdigit() or int(major) >= SAVES_GPUS:
        return None
    text = f"NVIDIA's driver {driver}: no checkpoint while a GPU is open ({SAVES_GPUS} or newer saves what is on it)"
    return Finding("GPU", Level.NOTE, text)


def _shared_directory(directory: Path, environment: os._Environ[str] | dict[str, str]) -> Finding | None:
    nodes = environment.get("SLURM_JOB_NUM_NODES", "1")
    kind = mount_of(directory.resolve()).kind
    if not nodes.isdigit() or int(nodes) < 2 or kind not in OF_ONE_HOST:
        return None
    text = f"{directory} is on {kind} of this host, and the allocation has {nodes} nodes: give --dir on a shared one"
    return Finding("shared directory", Level.BAD, text)

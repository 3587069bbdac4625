"""Facts about the machine and the software, without which the figures have no meaning."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

from ... import __version__
from ...core.units import size
from ...mpi import family_of
from .tools import Tools


def facts(tools: Tools, work: Path) -> dict[str, str]:
    """Names and values, for users and for the result file."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    model = re.search(r"model name\s*:\s*(.+)", cpuinfo)
    return {
        "host": platform.node(),
        "cpu": f"{model[1] if model else platform.processor()}, {os.cpu_count()} processors"
        + (", virtual" if re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo, re.MULTILINE) else ""),
        "memory": size(int(memory[1]) * 1000, 0) if memory else "?",
        "kernel": platform.release(),
        "file system": " ".join(_output("findmnt", "-no", "FSTYPE,SOURCE", "-T", str(work)).split()) or "?",
        "python": platform.python_version(),
        "mpi": family_of(tools.library)[1].replace("Version: ", ""),
        "manapy": __version__ + _commit(tools),
        "mpi4py": _version("mpi4py"),
        "load before": " ".join(f"{load:.1f}" for load in os.getloadavg()),
    }


def _commit(tools: Tools) -> str:
    """The commit of the source tree that contains the programs, otherwise of the tree in whose top folder this was
    called; " (commit)", or nothing."""
    trees = [
        path
        for path in (tools.sources.parent, Path.cwd())
        if (path / "osu_bench").is_dir() and (path / ".git").exists()
    ]
    commit = _output("git", "-C", str(trees[0]), "describe", "--always", "--dirty") if trees else ""
    return f" ({commit})" if commit else ""


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "?"


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""

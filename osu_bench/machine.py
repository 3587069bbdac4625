"""Facts about the machine and the software, without which a figure says nothing."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path

from commands import BIN, SOURCES


def facts(work: Path) -> dict[str, str]:
    """Name and value, for people and for the result file."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    model = re.search(r"model name\s*:\s*(.+)", cpuinfo)
    return {
        "host": platform.node(),
        "cpu": f"{model[1] if model else platform.processor()}, {os.cpu_count()} processors"
        + (", virtual" if re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo, re.MULTILINE) else ""),
        "memory": f"{int(memory[1]) / 1e6:.0f} GB" if memory else "?",
        "kernel": platform.release(),
        "file system": " ".join(_output("findmnt", "-no", "FSTYPE,SOURCE", "-T", str(work)).split()) or "?",
        "python": platform.python_version(),
        "mpi": " ".join((_output(str(BIN / "mpichversion")).splitlines() or ["?"])[0].replace("Version:", "").split()),
        "manapy": _version("manapy"),
        "commit": _output("git", "-C", str(SOURCES), "describe", "--always", "--dirty"),
        "mpi4py": _version("mpi4py"),
        "load before": " ".join(f"{load:.1f}" for load in os.getloadavg()),
    }


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

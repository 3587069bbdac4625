"""The manual pages that the build installs: they are there, complete, and groff formats them without a warning."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import manual
import pytest
from manapy import cli

INSTALLED = Path(sys.prefix) / "share/man/man1"


def test_pages_are_installed() -> None:
    names = {"manapy", "manapy-launch", *(f"manapy-{name}" for name in cli.COMMANDS)}
    assert {page.stem for page in INSTALLED.glob("manapy*.1")} == names == set(manual.pages())


def test_man_finds_the_pages() -> None:
    """Those of the environment in which manapy is installed, by its bin on PATH."""
    if shutil.which("man") is None:
        pytest.skip("needs man")
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(["man", "-w", "manapy-why"], env=environment, capture_output=True, text=True)
    assert Path(done.stdout.strip()) == INSTALLED / "manapy-why.1", done.stderr


def test_pages_format_without_warnings() -> None:
    if shutil.which("groff") is None:
        pytest.skip("needs groff")
    pages = sorted(INSTALLED.glob("manapy*.1"))
    done = subprocess.run(["groff", "-man", "-ww", "-Tutf8", "-rLL=100n", *pages], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    text = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout)
    for words in (
        "manapy trace report [OPTIONS] [JOB]",
        "--patience TIME",
        "--compress auto|on|off",
        "$MANAPY_FROM",
        "90 %",
    ):
        assert words in text


def test_text_is_printed_as_it_is() -> None:
    if shutil.which("groff") is None:
        pytest.skip("needs groff")
    text = ".a 'b' `c` \\d --e ~f ^g …"
    done = subprocess.run(["groff", "-man", "-Tutf8"], input=f".TH X 1\n{manual._safe(text)}\n", stdout=-1, text=True)
    assert text in done.stdout

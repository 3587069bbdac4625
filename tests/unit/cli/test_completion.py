"""`manapy completion`: the scripts load, and complete commands and options."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from manapy import cli


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a shell would read."""
    pytest.importorskip("shtab")
    assert cli.main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("manapy ch", ["checkpoint"]),
        ("manapy why --pat", ["--patience"]),
        ("manapy trace re", ["record", "report"]),
        ("manapy why --on-hang c", ["checkpoint"]),
        ("manapy _coord", []),
    ],
)
def test_bash(words: str, found: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = script("bash", capsys)
    ask = f'COMP_WORDS=({words}); COMP_CWORD={len(words.split()) - 1}; _shtab_manapy; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", f"{text}\n{ask}"], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == found, done.stderr


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    assert "--patience" in text or "patience" in text
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell} to read the script")
    assert subprocess.run([shell, "-n"], input=text, text=True, timeout=60).returncode == 0


def test_without_shtab(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["completion", "bash"]) == 1
    assert capsys.readouterr().err == ("manapy: the Python package shtab is missing (manapy's extra 'completion')\n")

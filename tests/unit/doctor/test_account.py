"""`manapy doctor`: obstacles of an account, and the report."""

from __future__ import annotations

import os
import stat
import tarfile
from pathlib import Path

import pytest
from manapy import cli
from manapy.core.errors import ManapyError
from manapy.doctor import Finding, Level, _account, _mounts, report


def test_file_systems() -> None:
    assert _mounts.mount_of(Path("/proc/self/status")).kind == "proc"
    assert "/" in {_mounts.mount_of(Path("/")).place, ""}


def test_a_shared_directory_is_needed_on_several_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("ext4", "tmpfs", "overlay"):
        monkeypatch.setattr(_account, "mount_of", lambda _, kind=kind: _mounts.Mount("/", kind, ()))
        found = _account._shared_directory(tmp_path, {"SLURM_JOB_NUM_NODES": "4"})
        assert found and found.level is Level.BAD and "4 nodes" in found.text
    for environment in ({}, {"SLURM_JOB_NUM_NODES": "1"}, {"SLURM_JOB_NUM_NODES": "x"}):
        assert _account._shared_directory(tmp_path, environment) is None
    monkeypatch.setattr(_account, "mount_of", lambda _: _mounts.Mount("/", "nfs4", ()))
    assert _account._shared_directory(tmp_path, {"SLURM_JOB_NUM_NODES": "4"}) is None


def test_noexec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not _account._noexec(tmp_path)
    monkeypatch.setattr(_account, "mount_of", lambda _: _mounts.Mount("/", "nfs", ("rw", "noexec")))
    assert [f.level for f in _account._noexec(tmp_path)] == [Level.BAD, Level.NOTE]


def test_selinux(tmp_path: Path) -> None:
    assert _account._selinux(tmp_path) is None
    (tmp_path / "booleans").mkdir()
    for enforce, deny, level in (("0", "1 1", None), ("1", "0 0", Level.NOTE), ("1", "1 1", Level.BAD)):
        (tmp_path / "enforce").write_text(enforce)
        (tmp_path / "booleans/deny_execmem").write_text(deny)
        found = _account._selinux(tmp_path)
        assert (found and found.level) == level


def test_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = _account._shared_memory(tmp_path / "none")
    assert missing and missing.level is Level.BAD
    monkeypatch.setattr(_account, "SMALL", 0)
    assert _account._shared_memory(tmp_path) is None
    monkeypatch.setattr(_account, "SMALL", 1 << 60)
    small = _account._shared_memory(tmp_path)
    assert small and small.level is Level.NOTE and "--shm-size" in small.text


def test_driver_of_gpus(tmp_path: Path) -> None:
    version = tmp_path / "version"
    assert _account._gpu(version) is None
    for text, level in (
        ("580.159.04\n", None),
        ("570.86.10\n", None),
        ("535.183.01\n", Level.NOTE),
        ("unknown\n", None),
    ):
        version.write_text(text)
        found = _account._gpu(version)
        assert (found and found.level) == level


def test_a_report_has_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = tmp_path / "job"
    (job / "ckpt-000001").mkdir(parents=True)
    for name in ("job.json", "coordinator.log", "secret", "ckpt-000001/manifest.json", "ckpt-000001/rank-00000.img"):
        (job / name).write_text(f"content of {name}\n" * 100000)
    (job / "link.log").symlink_to("/etc/passwd")
    monkeypatch.setenv("MANAPY_SOME_TOKEN", "hidden")
    monkeypatch.setenv("AWS_THING", "hidden")
    monkeypatch.setenv("UCX_TLS", "tcp")
    path = tmp_path / "report.tar.gz"
    report.write(path, [Finding("CPU", Level.OK, "fine")], job)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as archive:
        contents = {name: archive.extractfile(name).read() for name in archive.getnames()}  # type: ignore[union-attr]
    assert set(contents) == {
        f"manapy-report/{name}"
        for name in ("findings.txt", "system.txt", "environment.txt", "job/job.json", "job/coordinator.log")
    } | {"manapy-report/job/ckpt-000001/manifest.json"}
    assert contents["manapy-report/findings.txt"] == b"ok   CPU: fine\n"
    assert b"UCX_TLS=tcp\n" in contents["manapy-report/environment.txt"]
    assert not any(b"hidden" in content for content in contents.values())
    assert all(len(content) <= report.MOST for content in contents.values())
    with pytest.raises(ManapyError, match="exists"):
        report.write(path, [])
    with pytest.raises(ManapyError, match="No such file"):
        report.write(tmp_path / "none/report", [])


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["doctor", "true", "--report", "r.tar.gz"]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[-1].startswith("try next: mpirun -n 2 manapy-launch true;") and "r.tar.gz" in said.err
    assert os.path.exists("r.tar.gz")
    assert cli.main(["doctor", "none-such"]) == 1
    assert "try next" not in capsys.readouterr().out
    assert cli.main(["doctor", "--job", "x"]) == 2

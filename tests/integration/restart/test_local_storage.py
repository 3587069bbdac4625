"""Checkpoints on local storage of one host: full disks, and directories that others may have written or may write."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from disks import disk
from jobs import Job, JobError
from manapy.ckpt.store import publish, verify
from solver import MIDDLE, after, step
from waiting import until

NOBODY = 65534


def start(job: Job, local: Path, *options: str | Path) -> None:
    job.hold(MIDDLE)
    job.start_solver(options=("--local", local, *options))
    job.wait_for(after(100))


def copied(checkpoint: Path) -> bool:
    return publish.read_manifest(checkpoint).levels.shared


def names_in(local: Path) -> set[str]:
    (root,) = local.iterdir()
    return {path.name for path in root.iterdir()} - {"manapy-job"}


def test_full_local_disk(job: Job, tmp_path: Path) -> None:
    """A checkpoint that does not fit fails, and leaves nothing. The next one fits."""
    local = tmp_path / "small"
    with disk(local, "256k") as resize:
        start(job, local)
        with pytest.raises(JobError, match="No space left on device"):
            job.checkpoint()
        assert not publish.checkpoints(job.dir)
        until(lambda: not names_in(local), job.report)
        resize("500m")
        path = job.checkpoint()
        last = step(job.output())
        job.kill()
        job.restart()
        assert step(job.finish()) > last
        assert f"continuing {path}: " in job.output()


def test_full_job_directory(job: Job, tmp_path: Path, undisturbed: bytes) -> None:
    """A copy that does not fit leaves the checkpoint on local storage, and the user is told. The next one fits."""
    job.where = tmp_path / "shared"
    with disk(job.where, "512k") as resize:
        start(job, tmp_path / "local")
        path = job.checkpoint()
        trouble = f"{path} stays on local storage only: host "
        job.wait_for(lambda text: trouble in text and "No space left on device" in text)
        assert not copied(path)
        until(lambda: not list(path.glob("node-*")), job.report)
        job.kill()
        resize("500m")
        job.restart(options=("--local", tmp_path / "local"))
        job.wait_for(f"continuing {path}: 2 images from local storage")
        job.wait_until_it_runs()
        newer = job.checkpoint()
        until(lambda: copied(newer), job.report)
        job.finish()
        assert (job.where / "field.npy").read_bytes() == undisturbed


def test_copied_before_the_end(job: Job, tmp_path: Path) -> None:
    """Ranks that end with a checkpoint, as at the end of an allocation, wait until it is in the job directory."""
    start(job, tmp_path / "local")
    path = job.checkpoint("--then", "exit")
    assert copied(path)
    job.finish()
    job.restart()
    job.wait_for(f"continuing {path}: 2 images from local storage")
    job.finish()


def test_incremental_images(job: Job, tmp_path: Path, undisturbed: bytes) -> None:
    """What a checkpoint needs is copied before it, and stays on local storage as long as the checkpoint."""
    local = tmp_path / "local"
    start(job, local, "--dirty", "hash", "--flush", "1h")
    first = job.checkpoint()
    until(lambda: copied(first), job.report)
    second = job.checkpoint()
    assert publish.read_manifest(second).parent == first.name and not copied(second)
    last = job.checkpoint("--then", "exit")
    assert publish.read_manifest(last).parent == second.name and copied(second) and copied(last)
    assert names_in(local) == {first.name, second.name, last.name}
    assert job.wait() == 0
    job.restart(options=("--local", local, "--dirty", "hash", "--flush", "0s"))
    job.wait_for(f"continuing {last}: 2 images from local storage")
    job.wait_until_it_runs()
    newest = job.checkpoint()
    until(lambda: copied(newest), job.report)
    until(lambda: names_in(local) == {newest.name}, job.report)
    job.kill()
    shutil.rmtree(local)
    job.restart(last)
    assert not (last / "local").exists()  # an ordinary checkpoint
    job.finish()
    assert (job.where / "field.npy").read_bytes() == undisturbed


def test_kept(job: Job, tmp_path: Path) -> None:
    """Local storage keeps the newest checkpoint; --keep limits those in the job directory."""
    local = tmp_path / "local"
    start(job, local, "--keep", "2", "--dirty", "off")
    paths = [job.checkpoint() for _ in range(3)]
    until(lambda: copied(paths[-1]), job.report)
    until(lambda: names_in(local) == {"ckpt-000003"}, job.report)
    images = [*paths[-1].rglob("*.img"), *local.rglob("*.img")]
    assert [image.stat().st_mode & 0o777 for image in images] == 4 * [0o600]
    until(lambda: not paths[0].exists(), job.report)
    held = publish.read_manifest(paths[1]).levels
    assert (held.local, held.shared) == ("", True)
    assert not (paths[1] / "local").exists()
    job.kill()
    last = step(job.output())
    job.restart(paths[1])  # as any other checkpoint
    assert step(job.finish()) > last
    assert "local storage" not in job.output()


def test_partner_on_one_host(job: Job, tmp_path: Path) -> None:
    """There is no other host: the job ends at once, and says so."""
    options = ("--local", tmp_path / "local", "--redundancy", "partner")
    job.start_solver(options=options)
    assert job.wait() == 2
    assert job.output().count("--redundancy partner needs ranks on at least two hosts") == 1


def test_foreign_directory(job: Job, tmp_path: Path) -> None:
    """A directory that another user may have written to is not used, neither for new images nor for old ones."""
    if os.geteuid():
        pytest.skip("needs root, to give a directory away")
    local = tmp_path / "local"
    start(job, local, "--flush", "off")
    path = job.checkpoint()
    (root,) = local.iterdir()
    os.chown(root, NOBODY, NOBODY)
    complaint = f"{root} belongs to another user (uid {NOBODY}): it is not used"
    with pytest.raises(JobError) as failed:
        job.checkpoint()
    assert f"the local directory for checkpoints cannot be used: {complaint}" in str(failed.value)
    job.kill()
    job.restart()
    assert job.wait() != 0
    assert complaint in job.output()
    os.chown(root, 0, 0)
    job.restart()
    job.wait_for(f"continuing {path}: ")
    job.finish()


@pytest.mark.parametrize("storage", ["shared", "local"])
def test_a_group_that_may_write(make_job: Callable[..., Job], tmp_path: Path, storage: str) -> None:
    """The umask lets others write new files, as on systems where each user has a group, and the job directory was made
    so. Manapy's own files are written by their owner only, so they are trusted."""
    job = make_job()
    job.mpirun = ["sh", "-c", 'umask 0 && exec "$@"', "sh", *job.mpirun]
    job.dir.mkdir()
    job.dir.chmod(0o775)
    options = ["--keep", "1", "--dirty", "off", *(["--local", tmp_path / "local"] if storage == "local" else [])]
    job.hold(MIDDLE)
    job.start_solver(options=options)
    job.wait_for(after(100))
    first, second = job.checkpoint(), job.checkpoint()
    until(lambda: copied(second), job.report)
    job.checkpoint()
    until(lambda: not first.exists(), job.report)
    last = step(job.output())
    job.kill()
    job.restart_by_command()
    job.wait_for(after(last))
    newest = job.checkpoint()
    assert job.finish() and not verify.headers(newest, publish.read_manifest(newest))[1]

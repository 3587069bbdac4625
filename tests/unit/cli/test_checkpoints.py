"""Commands on checkpoints, with synthetic images: list, inspect, verify, prune, restart (with a fake mpirun)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import images
import pytest
from manapy import cli
from manapy.ckpt.store import image, known, publish
from manapy.ckpt.store.job import Job, find_ended
from manapy.cli.start.restart import find_mpirun
from manapy.core import launchers
from manapy.core.errors import JobError, ManapyError

RANKS = 3


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job that has ended, with two checkpoints."""
    path = tmp_path / "manapy-test"
    path.mkdir()
    record = dict(
        format=1,
        id="test",
        state="ended",
        host="127.0.0.1",
        port=1,
        ranks=RANKS,
        argv=["python3", "solver.py"],
        started=1.7e9,
    )
    (path / "job.json").write_text(json.dumps(record))
    (path / "secret").write_bytes(bytes(32))
    images.checkpoint(path, RANKS, 1)
    images.checkpoint(path, RANKS, 2)
    return path


@pytest.fixture
def mpirun(tmp_path: Path) -> Path:
    """It writes its arguments to a file and fails with exit code 7."""
    path = tmp_path / "bin" / "mpirun"
    path.parent.mkdir()
    path.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$0.arguments"\nexit 7\n')
    path.chmod(0o755)
    return path


def restart(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    code = "import sys; from manapy.cli import main; sys.exit(main())"
    return subprocess.run([sys.executable, "-c", code, "restart", *map(str, arguments)], capture_output=True, text=True)


def test_restart_of_the_only_ended_job(job: Path, mpirun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(job.parent)
    (job.parent / "manapy-without").mkdir()
    shutil.copy(job / "job.json", job.parent / "manapy-without/job.json")  # it has no checkpoint
    done = restart("--mpirun", mpirun)
    assert done.returncode == 7 and f"continues {job / 'ckpt-000002'}" in done.stderr
    assert mpirun.with_name("mpirun.arguments").read_text().splitlines()[-1] == str(job / "ckpt-000002")
    monkeypatch.chdir(job)  # the job's directory itself
    assert restart("--mpirun", mpirun).returncode == 7
    monkeypatch.chdir(job.parent)
    shutil.copytree(job, job.parent / "manapy-other", symlinks=True)
    done = restart("--mpirun", mpirun)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "2 ended jobs here have a checkpoint, name one: manapy-" in done.stderr
    monkeypatch.setattr(Job, "is_live", lambda self: True)
    with pytest.raises(JobError, match="no ended job with a checkpoint is in"):
        find_ended()


def test_list_jobs(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", str(job.parent), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["id"], found["live"], found["checkpoints"], found["ranks"]) == ("test", False, 2, RANKS)
    assert cli.main(["list", str(job.parent)]) == 0
    assert "python3 solver.py" in capsys.readouterr().out


def test_list_all(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert cli.main(["list", "--all"]) == 0
    assert "no jobs of this user are known" in capsys.readouterr().err
    known.note(job)
    assert cli.main(["list", "--all"]) == 0
    assert str(job.parent) in capsys.readouterr().out
    assert cli.main(["list", "test"]) == 0
    assert "ckpt-000002" in capsys.readouterr().out
    assert cli.main(["list", "--all", "test"]) == 2
    assert "--all lists all jobs" in capsys.readouterr().err


def test_list_checkpoints(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", str(job), "--json"]) == 0
    assert [(Path(c["path"]).name, c["latest"]) for c in json.loads(capsys.readouterr().out)] == [
        ("ckpt-000001", False),
        ("ckpt-000002", True),
    ]
    assert cli.main(["list", str(job)]) == 0
    assert "ckpt-000002 (latest)" in capsys.readouterr().out


def test_list_verified(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", str(job), "--verify"]) == 0
    assert capsys.readouterr().out.count("good") == 2
    images.flip(job / "ckpt-000001" / "rank-00001.img", 5000)
    assert cli.main(["list", str(job), "--verify", "--json"]) == 0
    older, newer = json.loads(capsys.readouterr().out)
    assert older["state"].startswith("damaged: ") and "rank-00001.img" in older["state"] and newer["state"] == "good"
    images.flip(job / "ckpt-000002" / "rank-00000.img", 5000)
    assert cli.main(["list", str(job), "--verify"]) == 1
    assert cli.main(["list", str(job.parent), "--verify"]) == 2
    assert "--verify needs one job" in capsys.readouterr().err


def test_drop(job: Path, mpirun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The older checkpoint continues, until that is taken back."""
    older, newer = job / "ckpt-000001", job / "ckpt-000002"
    assert cli.main(["drop", str(newer)]) == 0
    assert capsys.readouterr().out == f"{newer} is dropped; the newest one is now {older}\n"
    assert cli.main(["list", str(job)]) == 0
    text = capsys.readouterr().out
    assert "ckpt-000001 (latest)" in text and "ckpt-000002 (dropped)" in text
    assert publish.resolve(job) == older and (job / "latest").resolve() == older
    assert publish.resolve(newer) == newer
    assert cli.main(["drop", str(older)]) == 1
    assert "the job has no other checkpoint" in capsys.readouterr().err
    (job / "latest").unlink()
    assert publish.latest(job) == older
    assert cli.main(["prune", str(job), "--keep", "1"]) == 0 and older.exists() and newer.exists()
    images.checkpoint(job, RANKS, 3)
    assert cli.main(["prune", str(job), "--keep", "1"]) == 0 and not older.exists() and not newer.exists()
    assert cli.main(["drop", str(job / "ckpt-000003"), "--undo"]) == 0


def test_drop_is_taken_back(job: Path) -> None:
    assert cli.main(["drop", str(job)]) == 0 and publish.latest(job) == job / "ckpt-000001"
    assert cli.main(["drop", str(job / "ckpt-000002"), "--undo"]) == 0 and publish.latest(job) == job / "ckpt-000002"


def test_inspect(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", str(job)]) == 0
    text = capsys.readouterr().out
    assert "ckpt-000002" in text and "python3 solver.py" in text and "testhost" in text
    assert cli.main(["inspect", str(job / "ckpt-000001"), "--rank", "1", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [i["rank"] for i in record["images"]] == [1]
    assert record["images"][0]["regions"][0]["saved"] == 8 * image.PAGE
    assert cli.main(["inspect", str(job), "--rank", "1"]) == 0
    assert "rw-p" in capsys.readouterr().out
    assert cli.main(["inspect", str(job), "--rank", "9"]) == 1
    assert "no rank 9" in capsys.readouterr().err


def test_verify(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(job)]) == 0
    assert "3 images" in capsys.readouterr().out
    images.flip(job / "ckpt-000002" / "rank-00001.img", 5000)
    (job / "ckpt-000002" / "rank-00002.img").write_bytes(b"short")
    assert cli.main(["verify", str(job)]) == 1
    assert "rank-00002.img: truncated" in capsys.readouterr().err
    (job / "ckpt-000002" / "rank-00002.img").write_bytes((job / "ckpt-000001" / "rank-00002.img").read_bytes())
    assert cli.main(["verify", str(job)]) == 1
    assert "not the image that the manifest names" in capsys.readouterr().err
    assert cli.main(["verify", str(job / "ckpt-000001"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"magic": "other"}',
        '{"magic": "manapy checkpoint", "format": 9}',
        '{"magic": "manapy checkpoint", "format": 1, "ranks": 5}',
    ],
)
def test_damaged_manifest(job: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (job / "ckpt-000002" / "manifest.json").write_text(text)
    for command in ("verify", "inspect", "restart"):
        assert cli.main([command, str(job)]) == 1
        error = capsys.readouterr().err
        assert "manifest.json" in error and len(error.splitlines()) == 1


def test_prune(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["prune", str(job), "--keep", "1"]) == 0
    assert "ckpt-000001" in capsys.readouterr().out
    assert sorted(p.name for p in job.iterdir()) == ["ckpt-000002", "job.json", "latest", "secret"]
    assert cli.main(["prune", str(job / "ckpt-000002"), "--keep", "1"]) == 1


def test_restart_becomes_mpirun(job: Path, mpirun: Path) -> None:
    done = restart(job, "--mpirun", mpirun, "-n", "3", "--", "-hosts", "a,b")
    assert done.returncode == 7, done.stderr
    words = Path(f"{mpirun}.arguments").read_text().splitlines()
    assert words[:4] == ["-n", "3", "-hosts", "a,b"]
    assert words[4].endswith("manapy-restart") and words[5:] == ["--no-config", str((job / "ckpt-000002").resolve())]


def test_restart_takes_the_recorded_mpirun(job: Path, mpirun: Path) -> None:
    path = images.checkpoint(job, RANKS, 3, str(mpirun))
    assert restart(path, "--interval", "10m").returncode == 7
    assert Path(f"{mpirun}.arguments").read_text().splitlines()[-3:] == ["--interval", "10m", str(path)]


def test_restart_with_another_number_of_ranks(job: Path, mpirun: Path) -> None:
    done = restart(job, "--mpirun", mpirun, "-n", "4")
    assert done.returncode == 1 and "has 3 ranks: it cannot be restarted with 4" in done.stderr
    assert not Path(f"{mpirun}.arguments").exists()


def test_restart_finds_damaged_headers_before_anything_starts(job: Path, mpirun: Path) -> None:
    images.flip(job / "ckpt-000002" / "rank-00002.img", 100)
    images.flip(job / "ckpt-000002" / "rank-00001.img", 100)
    done = restart(job, "--mpirun", mpirun)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert "rank-00001.img: damaged" in done.stderr and "and 1 more" in done.stderr
    assert not Path(f"{mpirun}.arguments").exists()


def test_restart_takes_no_mpirun_of_open_mpi(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's mpirun may point to Open MPI's, though the job ran under MPICH's, which is installed beside it."""
    manifest = publish.read_manifest(images.checkpoint(job, RANKS, 3, str(tmp_path / "mpirun")))
    for name, says in (
        ("mpirun", "mpirun (Open MPI) 4.1.4"),
        ("mpiexec.openmpi", "mpirun (Open MPI) 4.1.4"),
        ("mpiexec.mpich", "HYDRA build details:"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{says}'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "manapy")])
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_mpirun(None, manifest) == [str(tmp_path / "mpiexec.mpich")]
    assert find_mpirun(str(tmp_path / "mpiexec.openmpi"), manifest) == [str(tmp_path / "mpiexec.openmpi")]
    (tmp_path / "mpiexec.mpich").unlink()
    with pytest.raises(ManapyError, match="mpirun is Open MPI's.*: give it with --mpirun"):
        find_mpirun(None, manifest)


def test_restart_takes_open_mpis_mpirun_if_it_has_started_the_job(job: Path, tmp_path: Path) -> None:
    """By the name that only Open MPI's has, with the options that it needs."""
    orterun = tmp_path / "orterun"
    orterun.write_text("#!/bin/sh\n")
    orterun.chmod(0o755)
    manifest = publish.read_manifest(images.checkpoint(job, RANKS, 3, f"{orterun} --oversubscribe"))
    assert find_mpirun(None, manifest) == [str(orterun), "--oversubscribe"]


def test_launcher_that_runs_is_recorded(tmp_path: Path) -> None:
    """It isn't the one that `mpirun` beside it names: Debian has both MPIs in one directory."""
    hydra = Path("/usr/bin/mpiexec.hydra")
    if not hydra.exists():
        pytest.skip("Debian's MPICH is missing")
    with subprocess.Popen(
        [hydra, "-n", "1", "sh", "-c", "echo $$; exec sleep 60"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert launchers.command(int(process.stdout.readline())) == str(hydra)
        finally:
            process.terminate()


@pytest.mark.parametrize("what", ["", "manifest.json", "rank-00001.img"])
def test_checkpoint_of_another_user(job: Path, mpirun: Path, what: str) -> None:
    """Its content can't be trusted: it isn't restarted. Neither is one that other users may write."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    path = job / "ckpt-000002" / what
    os.chown(path, 65533, 65533)
    done = restart(job, "--mpirun", mpirun, "--unsigned")
    assert (
        done.returncode == 1 and done.stderr.count("\n") == 1 and "belongs to another user (uid 65533)" in done.stderr
    )
    os.chown(path, 0, 0)
    path.chmod(0o777)
    done = restart(job, "--mpirun", mpirun, "--unsigned")
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "is writable by others (mode 0777)" in done.stderr
    assert not Path(f"{mpirun}.arguments").exists()


def test_nothing_that_an_unchecked_manifest_names_is_run(job: Path, mpirun: Path) -> None:
    """Nor asked for its version."""
    path = images.checkpoint(job, RANKS, 3, str(mpirun))
    (path / "manifest.json").chmod(0o666)
    done = restart(path)
    assert done.returncode == 1 and "is writable by others" in done.stderr
    assert not Path(f"{mpirun}.arguments").exists()


@pytest.mark.parametrize("forged", ["argv", "image", "no signature", "another secret"])
def test_forged_checkpoint(job: Path, mpirun: Path, forged: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = job / "ckpt-000002"
    manifest = json.loads((path / "manifest.json").read_text())
    if forged == "argv":
        manifest["argv"] = ["rm"]
    elif forged == "image":
        images.forge(path / "rank-00001.img")
        manifest["ranks"][1]["crc"] = image.read_header(path / "rank-00001.img").crc
    elif forged == "no signature":
        del manifest["signature"]
    else:
        manifest["signature"] = publish.sign(manifest, b"x" * 32)
    (path / "manifest.json").write_text(json.dumps(manifest))
    words = (
        "its manifest is not signed"
        if forged == "no signature"
        else "was changed after the job had written it: the signature is wrong"
    )
    assert cli.main(["verify", str(job)]) == 1
    assert words in capsys.readouterr().err
    done = restart(job, "--mpirun", mpirun)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and words in done.stderr


def test_copies(job: Path, mpirun: Path, tmp_path: Path) -> None:
    """A copy of a whole job directory can be restarted elsewhere. A copy of a checkpoint alone needs the secret, or the
    user's confirmation."""
    whole, alone = (
        shutil.copytree(job, tmp_path / "moved", symlinks=True),
        shutil.copytree(job / "ckpt-000001", tmp_path / "alone"),
    )
    assert restart(whole, "--mpirun", mpirun).returncode == 7
    done = restart(alone, "--mpirun", mpirun)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert (
        "without the job's secret" in done.stderr
        and "copy the secret from the job directory into the checkpoint" in done.stderr
        and "--unsigned" in done.stderr
    )
    assert restart(alone, "--mpirun", mpirun, "--unsigned").returncode == 7
    assert Path(f"{mpirun}.arguments").read_text().splitlines()[-2:] == ["--unsigned", str(alone)]
    shutil.copy(job / "secret", alone)
    assert restart(alone, "--mpirun", mpirun).returncode == 7


def test_restart_without_such_an_mpirun(job: Path, tmp_path: Path) -> None:
    done = restart(job, "--mpirun", tmp_path / "nothing")
    assert done.returncode == 1 and "no such program" in done.stderr


def test_a_job_that_has_ended(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("checkpoint", "status", "stop"):
        assert cli.main([command, str(job)]) == 1
        error = capsys.readouterr().err
        assert "no longer running" in error and len(error.splitlines()) == 1


def test_a_directory_that_cannot_be_read(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    (job / "ckpt-000002" / "rank-00000.img").chmod(0)
    assert cli.main(["verify", str(job)]) == 1
    assert "Permission denied" in capsys.readouterr().err

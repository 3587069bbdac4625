"""Configuration files set the options of real jobs: at a start, over an exec, and at a restart."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import PROGRAMS, Job, launch, manapy

from manapy.ckpt.store import image

pytestmark = pytest.mark.mpi
SOLVER = ("steps/heat2d.py", "--n", "64", "--steps", "3000", "--every", "20", "--pause", "0.03")


def compressed(checkpoint: Path) -> bool:
    """Has any rank compressed pages?"""
    return any(image.Image.open(path).bytes_of(image.RUN_ZIPPED) for path in checkpoint.rglob("rank-*.img"))


def coordinators_words(job: Job) -> list[str]:
    """The command line that rank 0 has given to the coordinator."""
    return Path(f"/proc/{job.status()['pid']}/cmdline").read_text().split("\0")


def kept(job: Job) -> int:
    """The number of checkpoints."""
    return len(list(job.dir.glob("ckpt-*")))


@pytest.mark.parametrize("behind", ["", "a shell"])
def test_start_and_restart(behind: str, make_job: Callable[..., Job]) -> None:
    """Each command reads its own table. Ranks behind a shell's exec have the options of their first process."""
    job = make_job(2)
    (job.where / "manapy.toml").write_text(
        "[launch]\ncompress = 'on'\nkeep = 2\ninterval = '1h'\ndirty = 'off'\n"
        "[restart]\ncompress = 'off'\nkeep = 1\nchild-grace = '3s'\ndirty = 'off'\n"
    )
    program = [sys.executable, PROGRAMS / SOLVER[0], *SOLVER[1:]]
    job.hold(1000)
    job.start(*(["sh", "-c", 'exec "$@"', "sh", *program] if behind else program))
    job.wait_for("step 200 ")
    words = coordinators_words(job)
    assert words[words.index("--keep") + 1] == "2" and words[words.index("--interval") + 1] == "3600.000"
    checkpoint = [job.checkpoint() for _ in range(3)][-1]
    job.wait_for(lambda _: kept(job) == 2)  # the oldest one is deleted when the newest is there
    assert compressed(checkpoint)
    job.kill()
    job.restart_by_command()
    job.wait_until_it_runs()
    checkpoint = job.checkpoint()
    words = coordinators_words(job)
    assert words[words.index("--keep") + 1] == "1" and words[words.index("--child-grace-ms") + 1] == "3000"
    job.wait_for(lambda _: kept(job) == 1)
    assert not compressed(checkpoint)
    job.kill()
    job.restart(options=["--keep", "3"])  # manapy-restart reads the table itself
    job.wait_until_it_runs()
    job.checkpoint()
    words = coordinators_words(job)
    assert words[words.index("--keep") + 1] == "3" and words[words.index("--child-grace-ms") + 1] == "3000"


def test_a_wrong_file_is_one_line_and_not_one_for_each_rank(tmp_path: Path) -> None:
    (tmp_path / "manapy.toml").write_text("[launch]\ncompress = 'fast'\n")
    done = launch("true", ranks=3, cwd=tmp_path)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "manapy-launch:" in line]
    assert lines == ["manapy-launch: manapy.toml: --compress needs auto, on or off, not fast"]
    assert done.returncode == 2
    done = launch("--compress", "on", "true", ranks=3, cwd=tmp_path)
    assert done.returncode == 0


def test_a_wrong_value_for_a_restart_is_found_before_ranks_start(make_job: Callable[..., Job]) -> None:
    job = make_job(2).start_python(*SOLVER)
    job.wait_for("step 40 ")
    job.checkpoint()
    job.kill()
    file = job.where / "manapy.toml"
    file.write_text("[restart]\ncompress = 'fast'\n")
    done = manapy("restart", job.dir, "--mpirun", "true", cwd=job.where)
    assert (done.returncode, done.stderr) == (2, "manapy: manapy.toml: --compress needs auto, on or off, not fast\n")
    done = manapy("restart", job.dir, "--mpirun", "true", "--compress", "off", cwd=job.where)
    assert done.returncode == 0


def test_the_sites_file(tmp_path: Path) -> None:
    """/etc is another folder, for the command alone."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root can put another folder in the place of /etc")
    etc = tmp_path / "etc"
    etc.mkdir()
    (etc / "manapy.toml").write_text("[launch]\nkeep = 7\n[why]\nevery = 8\n")
    script = f'mount --bind {etc} /etc && "$@"'
    inside = ["unshare", "-m", "sh", "-c", script, "sh"]
    done = subprocess.run([*inside, "true"], capture_output=True)
    if done.returncode != 0:
        pytest.skip("the kernel does not allow mounts")
    done = manapy("config", "--json", cwd=tmp_path, inside=inside)
    assert [(row["table"], row["option"], row["value"]) for row in json.loads(done.stdout)["options"]] == [
        ("launch", "keep", "7"),
        ("why", "every", "8"),
    ]

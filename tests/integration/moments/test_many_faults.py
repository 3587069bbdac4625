"""Random faults, one after the other, on one job: disks that fail, processes that are killed at any moment, images that
are damaged, a second job in the same directory. Nothing that was published is lost, and each complaint is one line."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from compiling import build
from jobs import BIN, PROGRAMS, Job, manapy
from manapy.ckpt.store import publish
from phases import BESIDE, STANDING, answer, is_one_line, request
from rounds import rounds
from test_random_moments import ENV, SEED, in_output, native, stress

RANKS, STEPS = 2, rounds(400, 3000)
LONGEST = 0.4  # seconds from a request to a death: until the checkpoint was published
DAMAGE = ("damaged", "truncated", "missing", "changed after its job", "not an image")


def latest(job: Job) -> Path:
    found = publish.latest(job.dir)
    assert found is not None
    return found


class Faults:
    """One job, and what can happen to it. After each fault it runs, from its newest checkpoint that is whole."""

    def __init__(self, job: Job, generator: random.Random, options: tuple[str, ...], order: Path) -> None:
        self.job, self.generator, self.options, self.order = job, generator, options, order

    def disk(self) -> None:
        """A disk that is full or broken, under an image or under the manifest."""
        number = self.generator.choice((errno.EIO, errno.ENOSPC, errno.EDQUOT))
        call, name = self.generator.choice(
            (("pwrite", "rank-00000.img"), ("pwrite", "rank-00001.img"), ("fsync", "rank-00001.img"),
             ("write", "manifest.json"), ("fsync", "manifest.json"))
        )  # fmt: skip
        before = latest(self.job)
        self.order.write_text(f"{number} {call} {name}")
        code, _, errors = answer(request(self.job))
        self.order.unlink()
        assert code == 1 and is_one_line(errors) and os.strerror(number) in errors, (call, name, errors)
        assert latest(self.job) == before and not list(self.job.dir.glob("tmp-*"))
        assert self.job.status()["state"] == "running"

    def death(self) -> None:
        """The death of a rank, of mpirun or of the coordinator, at any moment of a checkpoint. A job whose coordinator
        dies may go on without checkpoints."""
        before, status = latest(self.job), self.job.status()
        assert self.job.process is not None
        pids = [rank["pid"] for rank in status["ranks"]]
        coordinator = int(status["pid"])
        victim = self.generator.choice([self.job.process.pid, coordinator, *pids])
        asked = request(self.job)
        time.sleep(self.generator.random() * LONGEST)
        os.kill(victim, signal.SIGKILL)
        code, path, errors = answer(asked)
        assert (code == 0 and path) or is_one_line(errors), errors
        if victim == coordinator:
            self.job.end()
        self.job.wait()
        assert latest(self.job) >= (Path(path) if code == 0 else before)
        self.restart(coordinator)

    def damage(self) -> None:
        """A changed bit, a lost end, a lost file: in an image of the newest checkpoint. An older checkpoint helps."""
        older, newer = self.job.checkpoint(), self.job.checkpoint()
        self.job.kill()
        victim = newer / self.generator.choice(["rank-00000.img", "rank-00001.img"])
        size, place = victim.stat().st_size, self.generator.randrange(victim.stat().st_size)
        how = self.generator.choice(["bit", "end", "file"])
        if how == "bit":
            with victim.open("r+b") as stream:
                stream.seek(place)
                byte = stream.read(1)[0]
                stream.seek(place)
                stream.write(bytes([byte ^ 1 << self.generator.randrange(8)]))
        elif how == "end":
            os.truncate(victim, place)
        else:
            victim.unlink()
        done = manapy("verify", newer)
        assert done.returncode == 1 and is_one_line(done.stderr), (how, place, size, done.stderr)
        self.job.restart(options=self.options)
        assert self.job.wait() != 0
        said = [line for line in self.job.output().splitlines() if str(victim) in line]
        assert said and any(word in said[0] for word in DAMAGE), (how, place, size, self.job.output())
        assert manapy("verify", older).returncode == 0
        self.job.restart(older, options=self.options).wait_until_it_runs()
        shutil.rmtree(newer)

    def second_job(self) -> None:
        """In the same directory."""
        before = latest(self.job)
        second = Job(self.job.where / "second", RANKS, env=self.job.env)
        second.where.mkdir(exist_ok=True)
        second.spawn([*second.mpirun, "-n", str(RANKS), BIN / "manapy-launch", "--dir", self.job.dir, "/bin/true"])
        assert second.wait() != 0
        complaints = [line for line in second.output().splitlines() if "manapy" in line]
        assert len(complaints) == 1 and "is still running" in complaints[0], second.output()
        assert latest(self.job) == before and self.job.status()["state"] == "running"

    def restart(self, coordinator: int) -> None:
        """From the newest checkpoint. coordinator: process id of the one that has gone."""
        assert manapy("verify", latest(self.job)).returncode == 0
        self.job.killed = coordinator
        self.job.restart(options=self.options).wait_until_it_runs()


@pytest.mark.slow
@pytest.mark.timeout(20000)
@pytest.mark.parametrize("options", [STANDING, BESIDE], ids=["standing", "beside"])
def test_faults(make_job: Callable[..., Job], tmp_path: Path, options: tuple[str, ...]) -> None:
    preload, order = tmp_path / "disk_errors.so", tmp_path / "order"
    build(preload, PROGRAMS / "moments" / "disk_errors.c", "-shared", "-fPIC", "-ldl")
    job = make_job(RANKS, env={**ENV, "LD_PRELOAD": str(preload), "DISK_ERRORS": str(order)})
    generator = random.Random(SEED)
    go = job.hold(STEPS - 20)
    stress(job, SEED, STEPS, options=options)
    job.wait_for("step 1")
    job.checkpoint()
    faults = Faults(job, generator, options, order)
    kinds = [faults.disk, faults.death, faults.damage, faults.second_job]
    for number in range(rounds(8, 500)):
        kinds[number % 4]() if number < 4 else generator.choice(kinds)()
    go.touch()
    job.finish()
    assert in_output(job, native(SEED, RANKS, STEPS)), job.report()

"""Restarts whose program runs before all of its memory has been read (manapy-restart --lazy)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from compiling import Programs, build
from jobs import BIN, PROGRAMS, Job, manapy, oks
from manapy.ckpt.store import publish
from phases import BESIDE, STANDING

RANKS, MEGABYTES = 2, 96
LAZY = ("--lazy",)


@pytest.fixture
def saved(make_job: Callable[..., Job], c_program: Programs, tmp_path: Path) -> tuple[Job, Path, Path]:
    """A job that was killed after a checkpoint, the file that lets it act, and the file that makes its disk slow."""
    slow, act = tmp_path / "slow", tmp_path / "act"
    preload = build(tmp_path / "disk_errors.so", PROGRAMS / "moments" / "disk_errors.c", "-shared", "-fPIC", "-ldl")
    job = make_job(RANKS, env={"LD_PRELOAD": str(preload), "DISK_ERRORS": str(slow)})
    job.start(c_program(PROGRAMS / "moments" / "touches.c"), str(MEGABYTES), act, options=STANDING)
    job.wait_for("step 100")
    job.checkpoint()
    job.kill()
    return job, act, slow


def test_memory_that_is_not_there_yet(saved: tuple[Job, Path, Path]) -> None:
    job, act, slow = saved
    slow.write_text("0 pread rank-")
    act.touch()
    job.restart(options=LAZY)
    output = job.finish()
    assert oks(output) == RANKS and output.count("some pages are missing") == RANKS, output


@pytest.mark.parametrize("options", [STANDING, BESIDE], ids=["standing", "beside"])
def test_checkpoint_while_memory_is_read(saved: tuple[Job, Path, Path], options: tuple[str, ...]) -> None:
    """It waits."""
    job, act, slow = saved
    slow.write_text("0 pread rank-")
    job.restart(options=(*LAZY, *options))
    checkpoint = job.checkpoint()
    assert checkpoint.name == "ckpt-000002" and manapy("verify", checkpoint).returncode == 0
    job.kill()
    act.touch()
    job.restart(options=LAZY)
    assert oks(job.finish()) == RANKS


HUGE = """
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
enum { MIB = 1 << 20, PAGE = 4096, BYTES = 6 * MIB, HOLE = MIB - PAGE };
static void until(const char *file) { while (access(file, F_OK)) usleep(1000); }
int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    char *all = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < BYTES; i += PAGE) if (i != HOLE) all[i] = (char)(i / PAGE * 7 + 1);
    puts("ready"), fflush(stdout);
    until(argv[1]);
    int bad = mlock(all + 5 * MIB / 2, PAGE) || madvise(all, BYTES, MADV_HUGEPAGE);
    puts("locked"), fflush(stdout);
    until(argv[2]);
    for (int i = 0; i < BYTES; i += PAGE) bad |= all[i] != (i == HOLE ? 0 : (char)(i / PAGE * 7 + 1));
    puts(bad ? "FAILED" : "ok");
    return MPI_Finalize();
}
"""


def test_memory_that_is_there_at_once_is_no_part_of_huge_pages(
    make_job: Callable[..., Job], c_program: Programs, tmp_path: Path
) -> None:
    """A locked page comes at once, and with it its whole run, which begins in the middle of a huge page."""
    source, locks, checks = tmp_path / "huge.c", tmp_path / "locks", tmp_path / "checks"
    source.write_text(HUGE)
    job = make_job(1)
    job.start(c_program(source), locks, checks, options=("--dirty", "auto"))
    job.wait_for("ready")
    job.checkpoint()
    locks.touch()
    job.wait_for("locked")
    assert publish.read_manifest(job.checkpoint()).ranks[0].kept > 0
    job.kill()
    checks.touch()
    job.restart(options=LAZY)
    assert oks(job.finish()) == 1


def test_image_is_removed_meanwhile(saved: tuple[Job, Path, Path]) -> None:
    job, act, slow = saved
    slow.write_text("0 pread rank-")
    job.restart(options=LAZY).wait_until_it_runs()
    shutil.rmtree((job.dir / "latest").resolve())
    act.touch()
    assert oks(job.finish()) == RANKS


def test_damage_is_found_late(saved: tuple[Job, Path, Path]) -> None:
    """A changed byte in the middle of the memory ends the job with one line."""
    job, act, slow = saved
    image = (job.dir / "latest").resolve() / "rank-00001.img"
    with image.open("r+b") as stream:
        stream.seek(image.stat().st_size // 2)
        byte = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte[0] ^ 1]))
    slow.write_text("0 pread rank-")
    act.touch()
    job.restart(options=LAZY)
    assert job.wait() != 0
    said = [line for line in job.output().splitlines() if str(image) in line]
    assert len(said) == 1 and "damaged" in said[0], job.output()
    assert oks(job.output()) == 0 and "BAD" not in job.output()


def test_by_command(saved: tuple[Job, Path, Path]) -> None:
    job, act, _ = saved
    act.touch()
    job.restart_by_command("--lazy")
    assert oks(job.finish()) == RANKS


def test_no_userfaultfd(saved: tuple[Job, Path, Path]) -> None:
    """If the kernel does not allow userfaultfd(2), the restart is an ordinary one, and one line says so."""
    if Path("/proc/sys/vm/unprivileged_userfaultfd").read_text().strip() != "0":
        pytest.skip("every user is allowed userfaultfd(2) here")
    job, act, _ = saved
    act.touch()
    without = ["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace"]
    if os.geteuid() == 0 and subprocess.run([*without, "true"], capture_output=True, check=False).returncode:
        pytest.skip("setpriv cannot drop a capability here")
    command = [*job.mpirun, "-n", str(RANKS), BIN / "manapy-restart", *LAZY, job.dir]
    job.spawn([*without, *command] if os.geteuid() == 0 else command)
    output = job.finish()
    assert oks(output) == RANKS and output.count("--lazy is not possible") == 1
    assert output.count("all pages are there") == RANKS

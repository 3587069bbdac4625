"""`manapy run`: real programs are killed, interrupted and stopped, and still give the same result."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import images
import pytest
from jobs import BIN, PATIENCE, PROGRAMS, manapy
from launchers import ENVIRONMENT, MPICH, OPEN_MPIS, Launcher
from manapy.core import proc
from manapy.core.files import replace_file
from runs import LAUNCH, Run, heat
from solver import after, in_c, step
from terminal import Terminal
from waiting import until, until_gone

SHORT_LAST = 580


def short(steps: int = 600) -> list[str]:
    """The command of the solver with fewer steps; 200 of them take a second."""
    options = ("--n", "64", "--steps", str(steps), "--every", "20", "--pause", "0.1", "--out", "short.npy")
    return [*LAUNCH[:-1], str(in_c()), *options]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Run]:
    """A chain that hasn't started."""
    made = Run(tmp_path)
    yield made
    made.end()


def family(job: Run) -> set[int]:
    assert job.process is not None
    return set(proc.descendants(job.process.pid))


def segments(pids: set[int]) -> set[str]:
    """MPICH's files in /dev/shm that these processes have mapped."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            found |= {
                line.split()[5]
                for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
                if "/dev/shm/mpich" in line
            }
    return found


def result(job: Run) -> bytes:
    return (job.where / "field.npy").read_bytes()


def test_crash_with_local_images(job: Run, undisturbed: bytes) -> None:
    """The job directory has no image: the next attempt finds them on local storage."""
    launch = [*LAUNCH[:4], "--local", str(job.where / "storage"), "--flush", "off"]
    job.run("--interval", "1s", command=[*launch, *heat()[4:]])
    job.wait_for_event("checkpoint")
    job.kill_rank()
    job.wait_for(lambda text: f"continuing {job.dir}/ckpt-" in text)
    job.finish()
    assert not list(job.chain.rglob("*.img"))
    assert job.ends() == ["crashed", "finished"]
    assert (job.where / "field.npy").read_bytes() == undisturbed


def test_coordinator_is_killed(job: Run, undisturbed: bytes) -> None:
    """The job could not be saved any more: it continues from its last checkpoint, under another coordinator."""
    job.run("--interval", "1s", command=heat())
    job.wait_for_event("checkpoint")
    os.kill(job.status()["pid"], signal.SIGKILL)
    job.wait_for_event("end")
    job.finish()
    assert job.ends() == ["crashed", "finished"] and result(job) == undisturbed
    assert f"the coordinator of {job.dir} is lost, so the job cannot be saved any more" in job.output()


def test_crash(job: Run, undisturbed: bytes) -> None:
    job.run("--interval", "1s", command=heat())
    job.wait_for_event("checkpoint")
    job.kill_rank()
    job.finish()
    assert result(job) == undisturbed
    assert job.ends() == ["crashed", "finished"]
    assert re.search(r"rank 1 died on \S+: starting again\n", job.output()), "at once: it has come further"
    assert [e["verdict"] for e in job.events("step")] == ["new", "resume"]
    done = manapy("history", job.chain)
    rows = done.stdout.splitlines()[2:4]
    assert "crashed" in rows[0] and "finished" in rows[1] and "ckpt-" in rows[1], done.stdout
    assert (job.chain / "history.png").read_bytes().startswith(b"\x89PNG") and done.stdout.splitlines()[-1] == str(
        job.chain / "history.png"
    )
    data = json.loads(manapy("history", job.chain, "--json").stdout)
    assert [row["how"] for row in data["history"]] == ["crashed", "finished"] and data[
        "state"
    ] == "finished with exit code 0"
    assert "finished with exit code 0" in manapy("status", job.chain).stdout
    job.run()
    assert job.wait() == 0 and "has finished: exit code 0" in job.output() and len(job.events("attempt")) == 2


def test_interrupt(job: Run, undisturbed: bytes) -> None:
    """Ctrl-C: the job is saved, no process remains, and the chain can be continued."""
    job.run(command=heat())
    job.wait_for(after(200))
    below = family(job)
    assert job.process is not None
    shared = segments(below)
    assert shared, "no shared memory: the test sees nothing"
    job.process.send_signal(signal.SIGINT)
    assert job.wait() == 130
    until_gone(below)
    assert not any(Path(path).exists() for path in shared)
    assert f"interrupted: saved; continue: manapy run --dir {job.chain}" in job.output()
    assert job.ends() == ["yielded"] and len(job.events("checkpoint")) == 1
    assert "stopped: interrupted" in manapy("status", job.chain).stdout
    last = step(job.output())
    job.run()
    job.finish()
    assert f"step {last - 20} " not in job.output(), "it began again"
    assert result(job) == undisturbed


def test_stopped_by_the_user(job: Run, undisturbed: bytes) -> None:
    """The ranks exit with 0, but the program has not ended: the chain is stopped, and can be continued."""
    job.run(command=heat())
    job.wait_for(after(200))
    assert Path(manapy("stop", job.dir).stdout.strip()).parent == job.dir
    assert job.wait() == 75
    assert f"step 1 was stopped by the user; continue: manapy run --dir {job.chain}" in job.output()
    assert job.ends() == ["stopped"] and not job.events("finished")
    shown = manapy("status", job.chain).stdout
    assert "stopped: step 1 was stopped by the user" in shown
    assert f"to continue: manapy run --dir {job.chain}" in shown
    assert "stopped" in manapy("history", job.chain, "--no-plot").stdout
    last = step(job.output())
    job.run()
    job.finish()
    assert [event["verdict"] for event in job.events("step")] == ["new", "resume"]
    assert f"step {last - 20} " not in job.output(), "it began again"
    assert result(job) == undisturbed


def test_second_interrupt(job: Run) -> None:
    """The checkpoint waits for a rank that computes for ten minutes. The user doesn't wait."""
    job.run(command=[*LAUNCH, str(PROGRAMS / "moments/long_compute.py")])
    job.wait_for("computing")
    job.wait_for(lambda text: job.status()["state"] == "running")
    below = family(job)
    assert job.process is not None
    job.process.send_signal(signal.SIGINT)
    job.wait_for("interrupted: saving the job")
    job.process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    assert job.wait() == 130
    assert time.monotonic() - begin < 30
    assert "interrupted twice: the work since the last checkpoint is lost; continue" in job.output()
    until_gone(below)
    assert job.ends() == ["expired"] and job.events("checkpoint") == []


def test_script_of_three_steps(job: Run) -> None:
    """The step that is done doesn't run again, but its exit code is returned again. The commands after the crashed step
    run only after that step has ended."""
    first = f"{' '.join(LAUNCH)} -c 'from mpi4py import MPI; print(\"first runs\", flush=True); raise SystemExit(5)'"
    script = job.where / "script"
    script.write_text(
        f"{first}\necho code $? >> codes\n{' '.join(short())} || exit\necho between >> codes\n"
        f"{' '.join(LAUNCH)} -c 'from mpi4py import MPI; print(\"last runs\")'\n"
    )
    job.number = 2
    job.hold(SHORT_LAST)
    job.run("--interval", "500ms", command=["sh", "script"])
    job.wait_for(lambda text: any("step-002" in event["path"] for event in job.events("checkpoint")))
    assert (job.where / "codes").read_text() == "code 5\n"
    job.kill_rank(0)
    job.finish()
    assert job.ends() == ["crashed", "finished"]
    assert (job.where / "codes").read_text() == "code 5\ncode 5\nbetween\n"
    assert job.output().count("first runs") == 2 and job.output().count("last runs") == 2, "each once on 2 ranks"
    assert [(e["step"], e["verdict"]) for e in job.events("step")] == [
        (1, "new"),
        (2, "new"),
        (1, "done"),
        (2, "resume"),
        (3, "new"),
    ]


def test_held_script(job: Run) -> None:
    """The script is left before the time ends. The commands after the step don't notice, and the script doesn't go
    on."""
    script = job.where / "script"
    script.write_text(f"{' '.join(short())}\necho code $? >> codes\ntouch behind\n")
    job.run("--time", "6s", command=["sh", "script"])
    assert job.wait() == 130
    assert "the time of --time ends at" in job.output()
    assert not (job.where / "codes").exists() and not (job.where / "behind").exists()
    assert job.ends() == ["left"]
    job.run()
    job.finish()
    assert (job.where / "codes").read_text() == "code 0\n"


def test_exit_code(job: Run) -> None:
    job.run(command=[*LAUNCH, "-c", "from mpi4py import MPI; MPI.COMM_WORLD.Barrier(); raise SystemExit(3)"])
    assert job.wait() == 3
    assert job.ends() == ["finished"] and len(job.events("attempt")) == 1
    job.run()
    assert job.wait() == 3


def test_short_program_of_one_rank(job: Run) -> None:
    """It ends before its coordinator listens. Later attempts must still know its exit code."""
    script = job.where / "script"
    script.write_text(f"mpirun -n 1 manapy-launch false\necho $? >> codes\n{' '.join(short())}\n")
    job.number = 2
    job.hold(SHORT_LAST)
    job.run(command=["sh", "script"])
    job.wait_for(after(20))
    job.kill_rank()
    job.finish()
    assert job.ends() == ["crashed", "finished"]
    assert (job.where / "codes").read_text() == "1\n1\n"
    assert [e["verdict"] for e in job.events("step")] == ["new", "new", "done", "new"]


def test_program_that_always_aborts(job: Run) -> None:
    program = (
        "from mpi4py import MPI; MPI.COMM_WORLD.Barrier(); MPI.COMM_WORLD.rank or MPI.COMM_WORLD.Abort(9); "
        "MPI.COMM_WORLD.Barrier()"
    )
    job.run("--max-crashes", "2", "--back-off", "100ms", command=[*LAUNCH, "-c", program])
    assert job.wait() == 1
    assert job.ends() == ["crashed", "crashed"]
    assert re.search(
        r"giving up: it crashed 2 times in a row \(--max-crashes 2\); last reason: (rank [01] died|ranks ended "
        r"during their start)",
        job.output(),
    )
    assert f"one more attempt: manapy run --dir {job.chain} --force" in job.output()
    job.run("--max-crashes", "2")
    assert job.wait() == 1 and len(job.events("attempt")) == 2, "it has given up"
    job.run("--force")
    assert job.wait() == 1 and len(job.events("attempt")) == 3, "one more, not any number"


def test_limits(job: Run) -> None:
    job.run("--interval", "500ms", "--max-restarts", "0", command=short())
    job.wait_for_event("checkpoint")
    job.kill_rank()
    assert job.wait() == 1
    assert "giving up: it was restarted 0 times, the maximum (--max-restarts 0)" in job.output()
    job.run("--budget", "1ms")
    assert job.wait() == 1
    assert "the whole budget (--budget)" in job.output()
    assert len(job.events("attempt")) == 1
    job.run()
    job.finish()


def test_interval_by_mtbf(job: Run, undisturbed: bytes) -> None:
    job.run("--mtbf", "2s", command=heat())
    job.wait_for_event("checkpoint", 3)
    job.finish()
    assert result(job) == undisturbed
    (line,) = [line for line in job.output().splitlines() if "(Daly's formula; Young's:" in line][:1]
    assert "failures occur every 2 s: one checkpoint every" in line
    interval = float(line.partition("one checkpoint every ")[2].split()[0])
    times = [event["time"] for event in job.events("checkpoint")]
    assert job.events("checkpoint")[0]["cause"] == "measure"
    assert all(later - earlier > 0.5 * interval for earlier, later in zip(times, times[1:], strict=False))


def test_failing_checkpoint(job: Run, undisturbed: bytes, small_disk: Path) -> None:
    """There is no room for the next checkpoint. A message says so, the previous checkpoint stays, and the job goes
    on."""
    command = [*LAUNCH[:4], "--dir", str(small_disk / "step"), *heat()[4:]]
    job.run("--interval", "1s", command=command)
    job.wait_for_event("checkpoint")
    filler = small_disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb") as stream:
        while True:
            stream.write(bytes(1 << 16))
    failed = job.wait_for_event("failed")
    assert "No space left on device" in failed["reason"]
    job.wait_for("the checkpoint failed: ")
    newest = Path([event["path"] for event in job.events("checkpoint") if event["time"] < failed["time"]][-1])
    assert f"remains: {newest}" in job.output()
    assert manapy("verify", newest).returncode == 0
    filler.unlink()
    job.finish()
    assert job.ends() == ["finished"] and result(job) == undisturbed


@pytest.mark.parametrize("launcher", [MPICH, *OPEN_MPIS], ids=lambda launcher: launcher.name)
def test_damaged_checkpoints(job: Run, undisturbed: bytes, launcher: Launcher) -> None:
    """Two ranks find damage in their images, in two rounds under one mpirun: its process manager speaks PMI-1 or
    PMIx."""
    launcher.skip_if_missing()
    job.env |= ENVIRONMENT
    job.run("--interval", "500ms", command=[*map(str, launcher.mpirun), *heat()[1:]])
    job.wait_for_event("checkpoint", 3)
    assert job.process is not None
    job.process.send_signal(signal.SIGINT)
    assert job.wait() == 130
    *_, older, newer, newest = sorted(job.dir.glob("ckpt-*"))
    for image in (newest / "rank-00001.img", newer / "rank-00000.img"):
        images.flip(image, image.stat().st_size // 2)
    job.run()
    job.finish()
    assert [e["path"] for e in job.events("skipped")] == [str(newest), str(newer)]
    assert [job.output().count(f"{path} is damaged") for path in (newest, newer)] == [1, 1]
    assert [e["path"] for e in job.events("step")[1:]] == [str(newest), str(newer), str(older)]
    assert result(job) == undisturbed


def test_checkpoints_in_another_directory(job: Run) -> None:
    """dmtcp_set_ckpt_dir: the chain continues from the newest complete checkpoint, wherever it is."""
    elsewhere = job.where / "elsewhere"
    job.run("--interval", "500ms", command=[*LAUNCH, str(PROGRAMS / "dmtcp/dmtcp_places.py")])
    job.wait_for_event("checkpoint")
    replace_file(job.where / "send", str(elsewhere).encode())
    job.wait_for(lambda text: any(event["path"].startswith(f"{elsewhere}/") for event in job.events("checkpoint")))
    job.kill_rank()
    job.wait_for(lambda text: text.count(f"is back in {elsewhere} image ") == 2)
    assert job.process is not None
    job.process.send_signal(signal.SIGINT)
    assert job.wait() == 130
    assert [e["path"].startswith(f"{elsewhere}/") for e in job.events("step")] == [False, True] and job.events(
        "checkpoint"
    )[-1]["path"].startswith(f"{elsewhere}/")
    for path in elsewhere.glob("*/ckpt-*/rank-00001.img"):
        images.flip(path, path.stat().st_size // 2)
    job.run()
    job.wait_for(lambda text: text.count(f"is back in {job.dir} image ") == 2)
    assert len(job.events("skipped")) == len(list(elsewhere.glob("*/ckpt-*"))) > 0
    (job.where / "end").touch()
    assert job.finish().count("ok\n") == 2


def test_killed_supervisor(job: Run, undisturbed: bytes) -> None:
    """Its job goes on without it, and isn't started a second time. When the job has ended, the chain goes on."""
    job.run("--interval", "500ms", command=heat())
    job.wait_for_event("checkpoint")
    below = family(job)
    assert job.process is not None
    job.process.kill()
    job.process.wait()
    try:
        job.run()
        assert job.wait() == 1
        assert (
            "still runs although its manapy has ended: wait until it ends, or run manapy stop" in job.output()
            and len(job.output().splitlines()) == 1
        )
        assert len(job.events("attempt")) == 1
        assert manapy("stop", job.dir).returncode == 0
        until_gone(below)
    finally:
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    job.run()
    job.finish()
    assert job.ends() == ["lost", "finished"]
    assert result(job) == undisturbed


def test_watch(job: Run) -> None:
    """It prints each event as a line, and ends with the chain."""
    job.run("--interval", "500ms", command=short())
    job.wait_for_event("checkpoint")
    watching = subprocess.Popen(
        [str(BIN / "manapy"), "status", "--watch", str(job.chain)], stdout=subprocess.PIPE, text=True
    )
    try:
        data = json.loads(manapy("status", job.chain, "--json").stdout)
        assert data["state"] == "running" and data["checkpoints"] >= 1 and data["steps"][0]["ranks"] == 2
        assert (
            "2 running" in manapy("status", job.chain).stdout
            or "ranks, from the beginning" in manapy("status", job.chain).stdout
        )
        job.kill_rank()
        job.finish()
        output, _ = watching.communicate(timeout=PATIENCE)
    finally:
        watching.kill()
    lines = [line.partition(" ")[2] for line in output.splitlines()]
    assert lines[:2] == ["attempt 1 begins", "step 1: starts"] and lines[-2:] == [
        "attempt 2 finished",
        "finished with exit code 0",
    ]
    assert any(line.startswith("attempt 1 crashed: rank ") for line in lines)
    assert len(lines) == len(job.events())
    assert watching.returncode == 0


@pytest.fixture
def watch() -> Iterator[Callable[[Path], Terminal]]:
    """manapy status --watch DIR on its own terminal."""
    made: list[Terminal] = []

    def start(directory: Path) -> Terminal:
        made.append(Terminal(BIN / "manapy", "status", "--watch", directory))
        return made[-1]

    yield start
    for terminal in made:
        terminal.close()


def test_watch_on_a_terminal(job: Run, watch: Callable[[Path], Terminal]) -> None:
    """The view is redrawn in place. Ctrl-C ends only the view. Otherwise it ends with what it shows."""
    job.run("--interval", "4s", command=short(4000))  # it shows the last events
    job.wait_for_event("checkpoint")
    left, of_chain, of_job = watch(job.chain), watch(job.chain), watch(job.dir)
    shown = left.wait_for(
        lambda lines: "  2 running" in lines and any(line.startswith("last output: step ") for line in lines)
    )
    assert (
        shown[0] == f"chain {job.chain}: running"
        and shown[1].startswith("1 attempts, ")
        and " checkpoints, the last one " in shown[2]
    )
    assert any(line.startswith("step 1, 2 ranks, from the beginning: ") for line in shown) and any(
        line.endswith(" attempt 1 begins") for line in shown
    )
    times = next(line for line in shown if line.startswith("last output: step "))
    left.wait_for(lambda lines: times not in lines and any(line.startswith("last output: step ") for line in lines))
    left.type(b"\x03")
    assert left.wait() == 0 and left.is_sane()
    assert len([line for line in left.screen() if line.startswith("chain ")]) == 1 and "Traceback" not in "".join(
        left.screen()
    )
    assert of_job.wait_for(lambda lines: len([line for line in lines if "running" in line]) == 3)[0].startswith(
        f"job step-001 in {job.dir}: running, 2 ranks"
    )
    job.kill_rank()
    of_chain.wait_for(lambda lines: any(line.endswith(" attempt 2 begins") for line in lines))
    job.finish()
    assert of_job.wait() == 0 and of_job.is_sane()
    assert of_chain.wait() == 0 and of_chain.is_sane()
    final = of_chain.screen()
    assert (
        final[0] == f"chain {job.chain}: finished with exit code 0"
        and "steps done: 1" in final
        and "last output: heat2d: done" in "\n".join(final)
    ), final
    assert len([line for line in final if line.startswith("chain ")]) == 1


def test_names(job: Run, tmp_path: Path) -> None:
    """A chain, its job and one of its checkpoints, each used by name from another directory. In the end the job is
    restarted only by its name."""
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def ask(*arguments: str) -> str:
        done = manapy(*arguments, cwd=elsewhere, env=env)
        assert done.returncode == 0, done.stderr + job.report()
        return done.stdout.strip()

    job.env |= env
    job.run(command=short())
    job.wait_for("step 20 ")
    (listed,) = until(lambda: json.loads(ask("list", "--all", "--json")), job.report)
    assert listed["dir"] == str(job.dir) and listed["live"]
    taken = ask("checkpoint", "chain")
    assert Path(taken).parent == job.dir
    assert ask("verify", "chain/step-001/latest").startswith(taken) and ask("verify", "step-001").startswith(taken)
    assert json.loads(ask("status", "step-001", "--json"))["state"] == "running"
    assert ask("history", "step-001", "--no-plot").startswith(str(job.chain))
    assert str(job.where) in ask("list", "--all") and Path(taken).name in ask("list", "step-001")
    assert manapy("why", "chain", cwd=elsewhere, env=env).returncode in (0, 1, 3)
    assert "no job is running in" in manapy("status", cwd=elsewhere, env=env).stderr
    assert (
        "checkpoint: name the job" in manapy("prune", "step-001/latest", "--keep", "1", cwd=elsewhere, env=env).stderr
    )
    assert Path(ask("stop", "step-001")).parent == job.dir
    job.wait()
    job.spawn([BIN / "manapy", "restart", "chain"]).finish()
    assert (job.where / "short.npy").exists()
    assert os.listdir(elsewhere) == []

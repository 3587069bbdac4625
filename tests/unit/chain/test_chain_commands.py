"""`manapy run`, `history` and `status` with wrong arguments: one clear line, and nothing changes."""

from __future__ import annotations

import argparse
import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_slurm import FakeSlurm
from histories import History
from manapy import cli
from manapy.chain import record
from manapy.chain.attempt import Policy
from manapy.cli.shared import arguments
from manapy.cli.start import slurm


def wrong(arguments: list[str | Path], text: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([str(a) for a in arguments]) == code
    error = capsys.readouterr().err
    assert text in error, error
    assert "Traceback" not in error and error.splitlines()[-1].startswith("manapy")
    if code == 1 or "usage:" not in error:
        assert len(error.splitlines()) == 1, error


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "the command is missing: manapy run -- mpirun"),
        (["--"], "the command is missing: manapy run -- mpirun"),
        (["mpirun", "-n", "2"], "unrecognized arguments"),
        (["--", "no-such-program"], "no-such-program: no such program"),
        (["--", "./no-such-program"], "no such program"),
        (["--margin", "0.5", "--", "true"], "--margin must be at least 1, not 0.5"),
        (["--margin", "nan", "--", "true"], "--margin must be at least 1, not nan"),
        (["--margin", "x", "--", "true"], "--margin"),
        (["--mtbf", "0", "--", "true"], "--mtbf must be more than 0"),
        (["--interval", "0", "--", "true"], "--interval must be more than 0"),
        (["--interval", "soon", "--", "true"], "not a time such as 30s, 10m or 2h: 'soon'"),
        (["--interval", "nan", "--", "true"], "not a time"),
        (["--mtbf", "inf", "--", "true"], "not a time"),
        (["--budget", "0s", "--", "true"], "--budget must be more than 0"),
        (["--time", "-5s", "--", "true"], "--time"),
        (["--max-crashes", "0", "--", "true"], "not a number of at least 1: '0'"),
        (["--max-restarts", "-1", "--", "true"], "--max-restarts"),
        (["--max-restarts", "many", "--", "true"], "--max-restarts"),
        (["--hosts", "", "--", "true"], "--hosts"),
        (["--hosts", "a,,b", "--", "true"], "--hosts"),
        (["--on-slow", "move", "--", "true"], "--on-slow move needs --hosts: more hosts"),
        (["--on-slow", "move", "--hosts", "a,b", "--watch", "off", "--", "true"], "--on-slow move needs --watch on"),
        (["--on-slow", "kill", "--", "true"], "--on-slow"),
    ],
)
def test_wrong_usage(
    arguments: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong(["run", *arguments], text, 2, capsys)
    assert not list(tmp_path.iterdir()), "no directory was made"


@pytest.mark.parametrize(
    ("words", "policy", "of_guard"),
    [
        ([], Policy(None, 86400.0, 1800.0), []),
        (["--interval", "never"], Policy(), ["--interval=never"]),
        (["--interval", "never", "--mtbf", "2h"], Policy(), ["--interval=never", "--mtbf=7200"]),
        (["--interval", "10m"], Policy(600.0), ["--interval=600"]),
        (["--mtbf", "2h"], Policy(None, 7200.0), ["--mtbf=7200"]),
    ],
)
def test_when_checkpoints_are_taken(words: list[str], policy: Policy, of_guard: list[str]) -> None:
    """A user who says nothing is protected. Later allocations do the same."""
    parser = argparse.ArgumentParser()
    slurm.add_arguments(parser)
    options = parser.parse_args(["chain", "--watch", "off", *words, "job.sh"])
    assert arguments.policy(options) == policy
    asked = slurm._guard_options(options)
    assert [word for word in asked if word.startswith(("--interval", "--mtbf"))] == of_guard
    assert arguments.policy(parser.parse_args(["guard", *asked])) == policy


def test_large_numbers_for_later_allocations() -> None:
    parser = argparse.ArgumentParser()
    slurm.add_arguments(parser)
    words = ["--max-restarts=1000000", "--budget=12345678", "--margin=0.25"]
    asked = slurm._guard_options(parser.parse_args(["chain", *words, "job.sh"]))
    assert {*words} <= {*asked}
    assert parser.parse_args(["guard", *asked]).max_restarts == 1000000


def test_another_command_in_the_directory(history: History, capsys: pytest.CaptureFixture[str]) -> None:
    wrong(
        ["run", "--dir", history.chain.dir, "--", "mpirun", "other"],
        "is a chain of another command: mpirun solver",
        2,
        capsys,
    )
    assert history.chain.events() == []


def test_finished_chain_says_its_code_again(history: History, capsys: pytest.CaptureFixture[str]) -> None:
    history.begin()
    history.end("finished", code=3)
    history.note("finished", code=3)
    before = history.chain.events()
    for command in ([], ["--", "mpirun", "solver"]):
        assert cli.main(["run", "--dir", str(history.chain.dir), *command]) == 3
        assert capsys.readouterr().err == f"manapy: {history.chain.dir} has finished: exit code 3\n"
    assert history.chain.events() == before


def test_chain_of_slurm_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its attempts belong to Slurm."""
    history = History(tmp_path / "chain")
    history.chain.record |= {"kind": "slurm", "sbatch": ["--time=30", "--comment=a b"]}
    history.chain.write()
    again = f"continue: sbatch --time=30 '--comment=a b' {history.chain.dir}/batch.sh"
    wrong(["run", "--dir", history.chain.dir], f"is a chain of Slurm jobs; {again}", 2, capsys)
    (tmp_path / "job.sh").write_text("#!/bin/sh\n")
    same = ["slurm", "chain", "--dir", history.chain.dir, tmp_path / "job.sh"]
    wrong(same, f"contains a chain already; {again}", 1, capsys)
    history.note("finished", code=0)
    wrong(same, "contains a chain already\n", 1, capsys)
    history.chain.record["kind"] = "run"
    del history.chain.record["sbatch"]
    history.chain.write()
    wrong(same, "contains a chain already\n", 1, capsys)


def test_options_of_sbatch_without_their_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/sh\n")
    arguments = ["slurm", "chain", "--dir", tmp_path / "chain", "--sbatch=--comment='x", tmp_path / "job.sh"]
    wrong(arguments, "--comment='x: No closing quotation", 2, capsys)
    assert not (tmp_path / "chain").exists()


def test_a_refused_job_leaves_the_directory_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The user's files stay. A directory that the command has made vanishes."""
    job = tmp_path / "job.sh"
    job.write_text("#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    for directory in (tmp_path, tmp_path / "new"):
        wrong(["slurm", "chain", "--dir", directory, job], "sbatch: no such program", 1, capsys)
        assert list(tmp_path.iterdir()) == [job]


@pytest.mark.parametrize("name", ["script", "batch.sh"])
def test_a_file_of_the_user_is_not_replaced(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / name
    job.write_text("#!/bin/sh\n")
    wrong(["slurm", "chain", "--dir", tmp_path, job], f"{job} exists already: give the chain a directory", 1, capsys)
    assert list(tmp_path.iterdir()) == [job] and job.read_text() == "#!/bin/sh\n"


@pytest.mark.parametrize("submitted", [True, False])
def test_script_in_another_encoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, submitted: bool) -> None:
    """Its bytes stay as they are."""
    FakeSlurm(tmp_path / "bin", monkeypatch)
    script = b"#!/bin/sh\n#SBATCH --comment=\xe9t\xe9\nexit 3 # \xe9\n"
    (tmp_path / "job.sh").write_bytes(script)
    what, options = ("chain", []) if submitted else ("guard", ["--watch", "off", "--"])
    arguments = ["slurm", what, "--dir", tmp_path / "chain", *options, tmp_path / "job.sh"]
    code = "import sys; from manapy.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == (0 if submitted else 3), done.stderr
    assert (tmp_path / "chain" / "script").read_bytes() == script
    assert b"#SBATCH --comment=\xe9t\xe9\n" in (tmp_path / "chain" / "batch.sh").read_bytes()


def submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], script: str, *words: str
) -> str:
    """What `manapy slurm chain` says when it submits a script."""
    FakeSlurm(tmp_path / "bin", monkeypatch).job(TimeLimit="1-00:00:00")
    (tmp_path / "job.sh").write_text(f"#!/bin/sh\n{script}\n")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["slurm", "chain", "--dir", "chain", *words]) == 0
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("script", "words", "said"),
    [
        ("#SBATCH --time=1-0", [], "allocations of 1440 min"),
        ("#SBATCH -n 2 -t 1440", ["--checkpoint-time", "1m"], "allocations of 1440 min"),
        ("", ["--sbatch=-t1440"], "allocations of 1440 min"),
        ("#SBATCH --ntasks=2", [], "allocations as long as the partition's default (the script has no --time)"),
        (
            "",
            ["--checkpoint-time", "1m"],
            "allocations as long as the partition's default (the script has no --time), so --checkpoint-time was not "
            "checked",
        ),
    ],
)
def test_time_limits(
    script: str,
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of a job without one that waits, Slurm shows the maximum of its partition."""
    assert submitted(tmp_path, monkeypatch, capsys, script, *words, "job.sh") == f"chain chain: job 18, {said}\n"


def test_options_behind_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are the script's. A line says so of those that are probably meant for manapy."""
    words = ["job.sh", "--mtbf", "24h", "--steps", "7", "--interval=5m"]
    said = submitted(tmp_path, monkeypatch, capsys, "#SBATCH -t 1440", *words).splitlines()
    assert said[:-1] == ["manapy: --mtbf, --interval: passed to job.sh; options of manapy stand before the script"]
    assert record.read(tmp_path / "chain").record["command"][1:] == words[1:]


def test_damaged_chain(history: History, capsys: pytest.CaptureFixture[str]) -> None:
    (history.chain.dir / "chain.json").write_text('{"format": 1}')
    for command in ("run", "history", "status"):
        option = ["--dir"] if command == "run" else []
        wrong([command, *option, history.chain.dir], "chain.json: not a chain's file, or damaged", 1, capsys)


def test_a_command_that_others_may_have_written(history: History, capsys: pytest.CaptureFixture[str]) -> None:
    """It is not run. Looking at the chain is allowed."""
    mark = history.chain.dir / "was run"
    history.chain.record |= {"kind": "run", "command": ["touch", str(mark)], "cwd": "/"}
    history.chain.write()
    (history.chain.dir / "chain.json").chmod(0o666)
    wrong(["run", "--dir", history.chain.dir], "chain.json is writable by others", 1, capsys)
    assert not mark.exists() and cli.main(["history", str(history.chain.dir)]) == 0


def test_where_it_was_begun_is_gone(history: History, capsys: pytest.CaptureFixture[str]) -> None:
    history.chain.record["cwd"] = "/no/where"
    history.chain.write()
    wrong(["run", "--dir", history.chain.dir], "/no/where: No such file or directory", 1, capsys)


@pytest.mark.parametrize("command", ["history", "status"])
def test_a_directory_beside_it_is_closed(
    command: str, history: History, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command without the chain's name finds it."""
    monkeypatch.chdir(history.chain.dir.parent)
    Path("closed").mkdir()
    real = os.stat

    def stat(path: int | str | Path, **options: Any) -> os.stat_result:
        if str(path).startswith("closed/"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, **options)

    monkeypatch.setattr(os, "stat", stat)
    assert cli.main([command]) == 0
    assert not capsys.readouterr().err


@pytest.mark.parametrize("command", ["history", "status"])
def test_no_chain(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong([command, tmp_path / "nothing"], "nothing", 1, capsys)
    wrong([command], str(tmp_path), 1, capsys)


def test_chain_that_has_not_begun(history: History, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", str(history.chain.dir)]) == 0
    assert "not begun yet" in capsys.readouterr().out
    assert cli.main(["history", str(history.chain.dir)]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("not begun yet")


def test_no_place_for_the_chain(capsys: pytest.CaptureFixture[str]) -> None:
    wrong(["run", "--dir", "/proc/nowhere", "--", "true"], "cannot make the chain's directory /proc/nowhere", 1, capsys)


def run(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    code = "import sys; from manapy.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, "run", *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=60
    )


def test_command_without_mpi(tmp_path: Path) -> None:
    """The command runs, its exit code is passed on, and a message says that nothing could be saved."""
    done = run("--dir", "chain", "--", "sh", "-c", "echo hello; pwd; exit 7", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (7, f"hello\n{tmp_path}\n")
    assert "no program was started with manapy-launch" in done.stderr


def test_command_that_ends_at_once(tmp_path: Path) -> None:
    """It ends before its supervisor looks at it for the first time."""
    code = (
        "import subprocess, sys, time; from manapy.cli import main\n"
        "class Slow(subprocess.Popen):\n"
        "    def __init__(self, *a, **k): super().__init__(*a, **k); time.sleep(0.3)\n"
        "subprocess.Popen = Slow\n"
        "sys.exit(main(['run', '--dir', sys.argv[1], '--', 'false']))"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "chain")], timeout=60).returncode == 1


def test_command_that_a_signal_ends(tmp_path: Path) -> None:
    assert run("--dir", "chain", "--", "sh", "-c", "kill -TERM $$", cwd=tmp_path).returncode == 128 + 15


def test_command_that_cannot_be_executed(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("no program")
    program.chmod(0o755)
    done = run("--dir", "chain", "--", "./program", cwd=tmp_path)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and "Exec format error" in done.stderr, (
        done.stderr
    )


def test_default_directory(tmp_path: Path) -> None:
    assert run("--", "true", cwd=tmp_path).returncode == 0
    (made,) = tmp_path.iterdir()
    assert made.name.startswith("manapy-chain-") and not os.listdir(made).count("step-001")


def step(history: History, *arguments: str, env: dict[str, str]) -> str:
    code = "import sys; from manapy.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "_step", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **env},
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout


def test_step_command(history: History, tmp_path: Path) -> None:
    chain = str(history.chain.dir)
    history.begin()
    assert (
        step(history, "--ranks", "2", "--", "solver", "--", "x", env={"MANAPY_CHAIN": chain})
        == f"NEW {chain}/step-001\n"
    )
    assert history.chain.events("step")[0]["argv"] == ["solver", "--", "x"]
    assert step(history, "--ranks", "2", "--", "solver", env={"MANAPY_CHAIN": str(tmp_path)}).startswith("ERROR ")
    history.begin(id="17")
    answer = step(
        history,
        "--ranks",
        "2",
        "--",
        "solver",
        env={"MANAPY_CHAIN": chain, "MANAPY_CHAIN_ATTEMPT": "1", "SLURM_JOB_ID": "17"},
    )
    assert answer.startswith(f"ERROR {chain}: this script belongs to attempt 1, which is over")
    answer = step(history, "--ranks", "2", "--", "solver", env={"MANAPY_CHAIN": chain, "SLURM_JOB_ID": "18"})
    assert answer.startswith("ERROR MANAPY_CHAIN names the chain of job 17")
    history.begin(id="17_2")
    for task, begins in (("2", f"NEW {chain}/step-"), ("1", "ERROR MANAPY_CHAIN names the chain of job 17_2")):
        array = {"SLURM_JOB_ID": "18", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": task}
        answer = step(history, "--ranks", "2", "--", "solver", "--", "x", env={"MANAPY_CHAIN": chain, **array})
        assert answer.startswith(begins)


def test_step_of_a_chain_that_has_not_begun(history: History) -> None:
    """MANAPY_CHAIN was set by hand."""
    answer = step(history, "--ranks", "2", "--", "solver", env={"MANAPY_CHAIN": str(history.chain.dir)})
    assert answer.startswith("ERROR ") and "no attempt" in answer

"""`manapy rdma ...` as people use it. Where a test looks only at what `run` prepares, an empty library stands in for
the interposer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from compiling import SHARED, build
from ports import closed_port
from manapy.core import processes
from manapy.rdma import client, place
from rdma_agents import MANAPY, Agent, Program
from sysfs import rail_server
from waiting import PATIENCE, until

Start = Callable[..., Agent]
Run = Callable[..., Program]
Environment = dict[str, str]
LONG = int(1000 * PATIENCE)  # ms


@pytest.fixture
def env(short: Path, root: Path) -> Iterator[Environment]:
    """The environment of a separate host, with an installation whose libmanapy_shift.so does nothing. Remaining agents
    are ended."""
    library = short / "prefix" / "lib" / "manapy" / "libmanapy_shift.so"
    library.parent.mkdir(parents=True)
    build(library, "", *SHARED)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "SLURM_", "OMPI_", "MANAPY_", "LD_"))}
    made = {**clean, "MANAPY_SHIFT_DIR": str(short / "host"), "MANAPY_PREFIX": str(short / "prefix")}
    yield made
    for path in (short / "host").glob("*/agent"):
        try:
            with client.Connection(place.Place(path.parent, path.parent.name)) as connection:
                pid = connection.status()["pid"]
            os.kill(pid, signal.SIGTERM)
            until(lambda pid=pid: not processes.is_alive(pid), "the agent's end")  # its directory is removed now
        except (client.AgentError, ProcessLookupError):
            pass


def rdma(*arguments: str | Path, env: Environment) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MANAPY, "rdma", *map(str, arguments)],
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
    )


def failure(*arguments: str | Path, env: Environment, code: int = 1) -> str:
    """Check that there is one line on stderr, nothing on stdout, and this exit code; returns the line."""
    done = rdma(*arguments, env=env)
    assert (done.returncode, done.stdout) == (code, ""), done
    assert done.stderr.startswith("manapy: ") and done.stderr.count("\n") == 1
    return done.stderr


def test_run_prepares_the_program(env: Environment, short: Path) -> None:
    script = (
        "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith(('MANAPY_SHIFT_', "
        "'LD_PRELOAD'))}))"
    )
    done = rdma(
        "run",
        "--group",
        "j",
        "--backup",
        "mlx5_1,mlx5_2",
        "--",
        sys.executable,
        "-c",
        script,
        env={**env, "LD_PRELOAD": "libm.so.6"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {
        "MANAPY_SHIFT_AGENT": f"{short}/host/j/agent",
        "MANAPY_SHIFT_JOB": "j",
        "MANAPY_SHIFT_BACKUP": "mlx5_1,mlx5_2",
        "MANAPY_SHIFT_DIR": f"{short}/host",
        "LD_PRELOAD": f"{short}/prefix/lib/manapy/libmanapy_shift.so:libm.so.6",
    }


def test_the_programs_exit_code(env: Environment) -> None:
    assert rdma("run", "--backup", "a", "--", "sh", "-c", "exit 7", env=env).returncode == 7


def test_without_rnics_the_program_runs_and_it_is_said(env: Environment) -> None:
    if list(Path("/sys/class/infiniband").glob("*")):
        pytest.skip("this host has RNICs")
    done = rdma("run", "--", "echo", "hello", env=env)
    assert (
        (done.returncode, done.stdout) == (0, "hello\n")
        and done.stderr
        == "manapy: no RNIC on this host can be a backup of another (there is none): the program runs unprotected\n"
    )


def test_ranks_that_start_together_get_one_agent(env: Environment, short: Path) -> None:
    """The agent stays as long as they do, though none of them ever talks to it. Then it ends and leaves only its log
    and its lock."""
    command = [*MANAPY, "rdma", "run", "--group", "j", "--linger=500ms", "--backup", "a", "--", "sleep", "1000"]
    ranks = [subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) for _ in range(6)]
    where = place.Place(short / "host" / "j", "j")
    try:
        until(lambda: all(Path(f"/proc/{r.pid}/comm").read_text() == "sleep\n" for r in ranks), "the programs")
        with client.Connection(where) as connection:
            pid = connection.status()["pid"]
        assert where.log.read_text().count(": agent of job j") == 1
        for rank in ranks[1:]:
            rank.kill()
            rank.wait()
        # three times its time to linger; a busy machine may notice fewer errors in this time, but no false ones
        time.sleep(1.5)
        with client.Connection(where) as connection:
            assert connection.status()["pid"] == pid, "one rank still runs"
    finally:
        for rank in ranks:
            rank.kill()
            assert rank.communicate()[1] == ""
    until(lambda: not Path(f"/proc/{pid}").exists(), "the agent's end")
    assert sorted(p.name for p in where.dir.iterdir()) == ["agent.lock", "agent.log"]
    assert "Traceback" not in where.log.read_text()


def test_agent_killed_is_replaced_by_the_next_run(env: Environment, short: Path) -> None:
    where = place.Place(short / "host" / "j", "j")
    for _ in range(2):
        assert rdma("run", "--group", "j", "--backup", "a", "--", "true", env=env).returncode == 0
        with client.Connection(where) as connection:
            pid = connection.status()["pid"]
        os.kill(pid, signal.SIGKILL)
        until(lambda: not where.is_alive(), "the agent's death")
    assert where.secret.exists() and where.log.read_text().count(": agent of job j") == 2


def test_agent_whose_directory_was_removed_ends(agent: Start, env: Environment) -> None:
    """It takes nothing from the agent that was started since."""
    old = agent("host", "--linger=2s")
    assert old.status()["pid"] == old.process.pid  # it has begun by then
    subprocess.run(["rm", "-r", str(old.place.dir)], check=True)
    new = agent("host")
    assert old.process.wait(PATIENCE) == 0
    assert new.status()["pid"] == new.process.pid
    other = agent("elsewhere")
    assert other.status()["pid"] == other.process.pid  # it handles signals by then
    subprocess.run(["rm", "-r", str(other.place.dir)], check=True)
    other.process.terminate()
    assert other.process.wait(PATIENCE) == 0
    assert "Traceback" not in old.log.read_text() + other.log.read_text()


def test_store_that_cannot_be_reached_is_one_line_and_the_program_runs(env: Environment, short: Path) -> None:
    with closed_port() as port:
        done = rdma(
            "run", "--kv", f"etcd://127.0.0.1:{port}", "--group", "e", "--backup", "a", "--", "echo", "hello", env=env
        )
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert (
        done.stderr.startswith(f"manapy: etcd://127.0.0.1:{port}: ")
        and done.stderr.endswith("; nothing is protected until the agent can be reached\n")
        and done.stderr.count("\n") == 1
    )
    done = rdma(
        "run",
        "--kv",
        f"sqlite://{short}/missing/keys.db",
        "--group",
        "s",
        "--backup",
        "a",
        "--",
        "echo",
        "hello",
        env=env,
    )
    assert (
        (done.returncode, done.stdout) == (0, "hello\n")
        and done.stderr.count("\n") == 1
        and f"{short}/missing/keys.db" in done.stderr
    )


def test_bad_usage(env: Environment, short: Path) -> None:
    assert "the program is missing" in failure("run", env=env, code=2)
    assert "nothing may follow" in failure("status", "--", "x", env=env, code=2)
    assert "no such program" in failure("run", "--", "no-such-program", env=env, code=2)
    assert "not DEV,DEV" in failure("run", "--backup", "a b", "--", "true", env=env, code=2)
    assert "can't be a job's name" in failure("run", "--group", "a/b", "--backup", "a", "--", "true", env=env, code=2)
    assert "--ttl must be" in failure("run", "--ttl=10ms", "--backup", "a", "--", "true", env=env, code=2)
    assert "too long for a socket" in failure(
        "run", "--backup", "a", "--", "true", env={**env, "MANAPY_SHIFT_DIR": f"{short}/{'x' * 100}"}, code=2
    )
    assert "not a store" in failure("agent", "--kv", "redis://h", env=env, code=2)
    assert "not a store" in failure("run", "--kv", "redis://h", "--backup", "a", "--", "true", env=env)
    assert "expected a program" in failure("move", "j", "rank0", "rxa1", env=env, code=2)
    assert "no agent of job j runs" in failure("move", "j", "0", "rxa1", env=env)
    assert "no agent of job j runs" in failure("status", "j", env=env)
    assert "no agent runs on this host" in failure("status", env=env)
    assert "libibverbs-dev" in failure("run", "--", "true", env={**env, "MANAPY_PREFIX": f"{short}/nowhere"})


def test_another_store_for_the_same_job_is_refused(env: Environment, short: Path) -> None:
    assert rdma("run", "--group", "j", "--backup", "a", "--", "true", env=env).returncode == 0
    text = failure(
        "run", "--group", "j", "--kv", f"sqlite://{short}/other.db", "--backup", "a", "--", "true", env=env, code=2
    )
    assert "keeps its keys in sqlite://" in text and "--group" in text


def test_second_agent_is_refused(agent: Start, env: Environment) -> None:
    host = agent()
    assert "already runs on this host" in failure(
        "agent", "--group", host.job, env={**env, "MANAPY_SHIFT_DIR": str(host.dir)}
    )


@pytest.mark.parametrize("what", ["open", "link", "file"])
def test_directory_that_others_may_enter_is_refused(env: Environment, short: Path, what: str) -> None:
    if what == "open":
        (short / "host").mkdir()
        (short / "host").chmod(0o755)
    elif what == "link":
        (short / "elsewhere").mkdir(mode=0o700)
        (short / "host").symlink_to(short / "elsewhere")
    else:
        (short / "host").write_text("")
    assert "mode 0700" in failure("agent", env=env)


def test_other_users_are_refused(agent: Start, program: Run) -> None:
    """They are refused even if they could open the socket and knew the secret."""
    if os.getuid() != 0:
        pytest.skip("needs root")
    host = agent()
    for path in (host.dir.parent, host.dir, host.place.dir):
        path.chmod(0o755)
    host.place.address.chmod(0o666)
    script = (
        f"import socket, os; os.setuid(65534); s = socket.socket(socket.AF_UNIX); s.connect('{host.place.address}'); "
        f"print(s.recv(100))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "b''\n", done.stderr
    until(lambda: "user 65534 was refused" in host.log.read_text(), "the agent's log")


def test_files_are_private(agent: Start) -> None:
    host = agent()
    assert [path.stat().st_mode & 0o777 for path in (host.place.dir, host.place.address, host.place.secret)] == [
        0o700,
        0o600,
        0o600,
    ]


def test_status_events_and_move(agent: Start, program: Run, env: Environment) -> None:
    host = agent()
    env = {**env, "MANAPY_SHIFT_DIR": str(host.dir)}
    assert "no program with RDMA devices" in rdma("status", env=env).stdout
    a, b = program(host, SLURM_PROCID="0"), program(host, SLURM_PROCID="1")
    a("event", '{"qp": 17, "event": "fallback", "device": "rxa1", "posted": 5, "completed": 4, "bytes": 4096}')
    assert b("connect") == (0, "")
    shown = rdma("status", env=env).stdout.splitlines()
    assert shown[0].startswith("job job on ") and shown[1].split()[:5] == ["rank", "pid", "program", "qp", "state"]
    assert shown[2].split()[:11] == [
        "0",
        str(a.process.pid),
        "kv_driver",
        "17",
        "fallback",
        "rxa1",
        "1",
        "5",
        "/",
        "4",
        "4.1",
    ]
    assert shown[3].split()[:4] == ["1", str(b.process.pid), "kv_driver", "0"]
    a("event", '{"qp": 18, "event": "protected", "device": "rxa0", "posted": null, "completed": null, "bytes": null}')
    assert rdma("status", env=env).stdout.splitlines()[3].split()[3:9] == [
        "18",
        "protected",
        "rxa0",
        "0",
        "unknown",
        "unknown",
    ]
    (status,) = json.loads(rdma("status", host.job, "--json", env=env).stdout)
    assert [c["rank"] for c in status["clients"]] == [0, 1] and status["clients"][0]["states"][0]["switches"] == 1
    event, _ = map(json.loads, rdma("events", env=env).stdout.splitlines())
    assert event["event"] == "fallback" and event["seq"] == 1
    done = rdma("move", host.job, "1", "rxa0", env=env)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("asked 1 RNIC of programs")
    assert b("wait", LONG) == (1, "") and b("command")[1] == "MOVE * rxa0" and a("command") == (0, "")
    assert rdma("move", host.job, "*", "rxa0", "--qp", "17", env=env).stdout.startswith("asked 2 RNICs")
    assert a("wait", LONG) == (1, "") and a("command")[1] == "MOVE 17 rxa0"
    text = failure("move", host.job, "5", "rxa0", env=env)
    assert (
        f"no program with rank or process id 5 on this host: there are {min(a.process.pid, b.process.pid)} (rank "
        in text
    )


def test_events_are_followed(agent: Start, program: Run, env: Environment) -> None:
    host = agent()
    a = program(host)
    a("event", '{"qp": 1, "event": "protected"}')
    follower = subprocess.Popen(
        [*MANAPY, "rdma", "events", "--follow"],
        env={**env, "MANAPY_SHIFT_DIR": str(host.dir)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert follower.stdout is not None
    assert json.loads(follower.stdout.readline())["event"] == "protected"
    a("event", '{"qp": 1, "event": "fallback"}')
    assert json.loads(follower.stdout.readline())["event"] == "fallback"
    host.kill(signal.SIGTERM)
    assert (
        follower.communicate(timeout=PATIENCE) == ("", f"job {host.job}: the agent has ended\n")
        and follower.returncode == 0
    )


def test_devices(tmp_path: Path, env: Environment) -> None:
    tree = rail_server(tmp_path / "sys")
    done = rdma("devices", "--sysfs", tree.root, env=env)
    rows = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert (
        rows["mlx5_0"].endswith("mlx5_1 mlx5_2 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_7 mlx5_8")
        and "400 Gb/s" in rows["mlx5_0"]
        and "10.0.0.1" in rows["mlx5_0"]
    )
    data = json.loads(rdma("devices", "--sysfs", tree.root, "--json", env=env).stdout)
    assert (
        data[4]["name"] == "mlx5_4"
        and data[4]["backups"][0] == "mlx5_5"
        and data[4]["location"]["node"] == 1
        and len(data[4]["gpus"]) == 2
    )
    assert "no RNIC" in rdma("devices", "--sysfs", tmp_path, env=env).stdout


@pytest.mark.mpi
def test_ranks_of_mpirun(env: Environment, driver: Path, short: Path) -> None:
    """Each rank becomes its program, and status tells the programs apart by their ranks."""
    mpirun = Path(sys.executable).with_name("mpirun")
    if not mpirun.exists():
        pytest.skip("no mpirun in this environment")
    env = {**env, "ASAN_OPTIONS": "verify_asan_link_order=0"}  # LD_PRELOAD comes before it
    script = f'(echo connect; echo \'event {{"qp": 1, "event": "protected"}}\'; sleep 1000) | {driver}'
    job = subprocess.Popen(
        [str(mpirun), "-n", "2", *MANAPY, "rdma", "run", "--backup", "a", "--", "sh", "-c", script],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )

    def ranks() -> list[int]:
        done = rdma("status", "--json", env=env)
        found = json.loads(done.stdout)[0]["clients"] if done.returncode == 0 else []
        return [one["rank"] for one in found if one["states"]]

    try:
        until(lambda: ranks() == [0, 1], "both ranks")
        assert [path.name for path in (short / "host").iterdir()] == [f"user-{os.getuid()}"]
    finally:
        job.terminate()
        job.communicate(timeout=PATIENCE)

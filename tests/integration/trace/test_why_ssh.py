"""`manapy why` where nothing of the job is visible: with another host name and an empty /dev/shm. The job's coordinator
answers, or, with --hosts, a real sshd with its own configuration, keys and port on the loopback interface."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import verdicts
from jobs import BIN, PATIENCE, Job
from waiting import until

SSHD = Path("/usr/sbin/sshd")
THERE, NOWHERE = "127.0.0.1", "127.0.0.2"
ELSEWHERE = [
    "unshare",
    "--mount",
    "--uts",
    "sh",
    "-c",
    'mount -t tmpfs none /dev/shm && hostname elsewhere && exec "$0" "$@"',
]

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(not SSHD.exists() or shutil.which("ssh") is None, reason="no sshd: apt install openssh-server"),
    pytest.mark.skipif(os.geteuid() != 0, reason="a mount namespace and sshd's own folder need root"),
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((THERE, 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def ssh(tmp_path: Path) -> Iterator[Path]:
    """Return a folder with an `ssh` that connects to a running sshd."""
    port, user = free_port(), subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    public = (tmp_path / "host.pub").read_text()
    (tmp_path / "known").write_text("".join(f"[{address}]:{port} {public}" for address in (THERE, NOWHERE)))
    settings = {
        "sshd.conf": [
            f"ListenAddress {THERE}:{port}", f"HostKey {tmp_path}/host", f"AuthorizedKeysFile {tmp_path}/user.pub",
            "PidFile none", "StrictModes no", "UsePAM no",
            "PasswordAuthentication no", "PermitRootLogin prohibit-password",
        ],
        "ssh.conf": [
            f"Port {port}", f"User {user}", f"IdentityFile {tmp_path}/user", "IdentitiesOnly yes",
            f"UserKnownHostsFile {tmp_path}/known", "StrictHostKeyChecking yes", "LogLevel ERROR",
        ],
    }  # fmt: skip
    for name, lines in settings.items():
        (tmp_path / name).write_text("\n".join([*lines, ""]))
    shell = tmp_path / "bin" / "ssh"
    shell.parent.mkdir()
    shell.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {tmp_path}/ssh.conf "$@"\n')
    shell.chmod(0o700)
    Path("/run/sshd").mkdir(exist_ok=True)
    log = tmp_path / "sshd.log"
    with log.open("wb") as stream:
        server = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", tmp_path / "sshd.conf"], stdin=subprocess.DEVNULL, stderr=stream
        )
    try:
        deadline = time.monotonic() + PATIENCE
        while "Server listening" not in log.read_text():
            assert server.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield shell.parent
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


def test_a_rank_on_a_host_that_is_reached_by_ssh(make_job: Callable[..., Job], ssh: Path) -> None:
    """A host that can't be reached doesn't affect the other one. Processes that were started there end with the
    command. The coordinator knows its own host, which needs no ssh."""
    job = make_job(2, mpirun=[BIN / "mpirun", "-disable-auto-cleanup"])
    job.start_python("trace/stuck.py", "spin")
    job.wait_for("stuck")
    env = {"PATH": f"{ssh}:{os.environ['PATH']}"}

    def ask() -> verdicts.Answer:
        code, said, errors = verdicts.why(job.dir, "--hosts", f"{THERE},{NOWHERE}", env=env, inside=ELSEWHERE)
        assert list(said["unreachable"]) == [NOWHERE] and "Connection refused" in said["unreachable"][NOWHERE], (
            said,
            errors,
        )
        return code, said, errors

    (verdict,) = verdicts.until_hung(job, ask, "late")
    assert (verdict["rank"], verdict["cause"]) == (1, "compute") and "busy in user code" in verdict["sentence"], verdict
    (verdict,) = verdicts.until_hung(job, lambda: verdicts.why(job.dir, inside=ELSEWHERE), "late")
    assert (verdict["rank"], verdict["cause"]) == (1, "compute") and "busy in user code" in verdict["sentence"], verdict
    until(
        lambda: subprocess.run(["pgrep", "-f", f"{BIN}/manapy _collect$"], stdout=subprocess.DEVNULL).returncode == 1,
        "the collectors' end",
    )

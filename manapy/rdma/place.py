"""The place of a job's agent on this host, and its start: one agent per job, user and host.

    /tmp/manapy-shift-UID/JOB/   0700, both (MANAPY_SHIFT_DIR names another place than /tmp/manapy-shift-UID)
      agent                      the socket, 0600
      agent.secret               0600, 32 bytes that authenticate clients of the agent
      agent.lock                 held while the agent is started or ended
      agent.log
      keys.db                    the keys, if no other store was chosen

Invariants
 1. The socket is made and removed under the lock. The process that makes it passes it, already listening, to the agent
    that it starts. So several ranks that start at the same time get one agent, and can connect before it has come up.
 2. An agent is alive if its socket accepts connections. The socket of a dead agent does not, and is replaced. The
    secret remains, so that programs can connect to the next agent.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ..core.errors import AgentError, UsageError
from ..core.files import create_private
from ..core.fnv import path_mark
from ..core.handshake import SECRET_BYTES
from . import kv_protocol

# until an agent has started and tried its store; for slow hosts: an agent that ends is noticed at once
START_SECONDS = 60.0
END_SECONDS = 10.0
MANAPY = "import sys; from manapy.cli import program; sys.exit(program())"
_PATH_MAX = 107  # bytes of a UNIX-domain socket's path (unix(7))


class Place(NamedTuple):
    """The directory of one job."""

    dir: Path
    job: str

    @property
    def address(self) -> Path:
        """The path of the agent's socket."""
        return self.dir / "agent"

    @property
    def secret(self) -> Path:
        """The path of the secret that authenticates clients."""
        return self.dir / "agent.secret"

    @property
    def log(self) -> Path:
        """The agent's messages, if `manapy rdma run` has started it."""
        return self.dir / "agent.log"

    @property
    def keys(self) -> Path:
        """The default store."""
        return self.dir / "keys.db"

    @property
    def default_url(self) -> str:
        """The URL of the store that serves only this host."""
        return f"sqlite://{self.keys}?sync=off"

    @contextmanager
    def locked(self, wait: bool = True) -> Iterator[bool]:
        """Invariant 1; with wait False, yields whether the lock was free."""
        fd = os.open(self.dir / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(fd)

    def is_alive(self) -> bool:
        """Invariant 2."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            try:
                probe.connect(str(self.address))
            except BlockingIOError:  # its queue is full: the agent exists, but is busy or stopped
                return True
            except OSError:
                return False
        return True

    def listen(self) -> socket.socket:
        """Make the socket and, if there is none, the secret. The lock is held, and no agent is alive."""
        if not self.secret.exists():
            with create_private(self.secret) as stream:
                stream.write(os.urandom(SECRET_BYTES))
        self.address.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            listener.bind(str(self.address))
        finally:
            os.umask(before)
        listener.listen(512)
        return listener

    def identity(self) -> tuple[int, int] | None:
        """Device and inode of the socket. An agent checks them, because the directory may have been cleaned and another
        agent started."""
        try:
            found = self.address.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def keep(self) -> int:
        """A lock on the directory, for the life of the descriptor: what cleans /tmp leaves locked directories alone
        (systemd-tmpfiles(8))."""
        fd = os.open(self.dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_SH)
        return fd

    def remove(self) -> None:
        """Remove the files of an agent that ends regularly, also the keys of the default store. The caller holds the
        lock."""
        for path in (self.address, self.secret, self.keys, self.keys.with_name("keys.db-journal")):
            path.unlink(missing_ok=True)


def root() -> Path:
    """The directory of all jobs of this user on this host."""
    return Path(os.environ.get("MANAPY_SHIFT_DIR") or f"/tmp/manapy-shift-{os.getuid()}")


def default_job() -> str:
    """MANAPY_SHIFT_JOB; else Slurm's job and step; else the user.

    Slurm ends all processes of a step with it, so steps must not share an agent. By the user's name, all programs of
    the user share one agent and one set of keys.
    """
    if given := os.environ.get("MANAPY_SHIFT_JOB"):
        return given
    if slurm := os.environ.get("SLURM_JOB_ID"):
        return f"slurm-{slurm}.{os.environ.get('SLURM_STEP_ID', 'batch')}"
    return f"user-{os.getuid()}"


def job_name(directory: Path) -> str:
    """The name under which the agent serves the job of manapy-launch in this directory, on all its hosts.

    Directories of the same name get different names.
    """
    readable = re.sub("[^A-Za-z0-9._-]", "-", directory.name).lstrip("._-")[:40]
    return f"{readable or 'job'}-{path_mark(directory)}"


def of(job: str) -> Place:
    """The job's place, which need not exist. Raises UsageError."""
    if not kv_protocol.is_job(job):
        raise UsageError(
            f"'{job}' can't be a job's name: letters, digits and . _ -, at most 64, the first a letter or digit"
        )
    place = Place(root().absolute() / job, job)
    if len(os.fsencode(place.address)) > _PATH_MAX:
        raise UsageError(
            f"{place.address}: too long for a socket's path ({_PATH_MAX} bytes): set MANAPY_SHIFT_DIR to a shorter one"
        )
    return place


def make(job: str) -> Place:
    """Make the job's place. Raises UsageError, or AgentError if the directories do not belong to this user alone."""
    place = of(job)
    for directory in (place.dir.parent, place.dir):
        with suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        found = directory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise AgentError(
                f"{directory} must be a directory of this user that nobody else can enter (mode 0700): remove it, or "
                "set MANAPY_SHIFT_DIR"
            )
    return place


def places() -> list[Place]:
    """The places of all jobs of this user on this host that have an agent."""
    found = [Place(path, path.name) for path in sorted(root().absolute().glob("*")) if kv_protocol.is_job(path.name)]
    return [place for place in found if place.is_alive()]


def start(place: Place, url: str, linger: float, ttl: float, pid: int) -> str | None:
    """Start the job's agent if none is alive.

    A new agent stays at least as long as process `pid`, however late this process connects. Returns the agent's
    complaint (its store cannot be reached yet), or None. Raises AgentError if it does not start.
    """
    with place.locked():
        if place.is_alive():
            return None
        listener = place.listen()
        ready, ready_end = os.pipe()
        command = [
            sys.executable,
            "-P",
            "-c",
            MANAPY,
            "rdma",
            "agent",
            "--group",
            place.job,
            "--kv",
            url,
            f"--linger={linger}",
            f"--ttl={ttl}",
        ]
        command += ["--fd", str(listener.fileno()), "--ready-fd", str(ready_end), "--stay", str(pid)]
        with listener, place.log.open("ab") as log, open(ready_end, "wb") as theirs:
            agent = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(listener.fileno(), theirs.fileno()),
                start_new_session=True,
            )
    with open(ready, "rb", buffering=0) as stream:
        text = _read_line(stream.fileno(), START_SECONDS)
    if text is None:
        raise AgentError(f"the agent did not come up within {START_SECONDS:.0f} s: see {place.log}")
    outcome, _, why = text.partition(" ")
    if outcome in ("ready", "waiting"):
        return why or None
    with suppress(subprocess.TimeoutExpired):
        agent.wait(END_SECONDS)  # so that no command finds it while it ends
    raise AgentError(why if outcome == "failed" else f"the agent ended at once: see {place.log}")


def _read_line(fd: int, seconds: float) -> str | None:
    """One line from a pipe, "" at its end, None when the time is over."""
    deadline, data = time.monotonic() + seconds, b""
    while not data.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([fd], [], [], left)[0]:
            return None
        piece = os.read(fd, 4096)
        if not piece:
            break
        data += piece
    return data.decode(errors="replace").rstrip("\n")

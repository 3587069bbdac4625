"""A real Slurm for tests: munged, slurmctld and one slurmd for each of several fake nodes, all on this host's loopback.

    cluster = Cluster(directory, nodes=3)
    cluster.start()
    job = cluster.submit("srun --mpi=pmi2 -n 4 manapy-launch ...", "--nodes=2")
    cluster.wait_for(job, "COMPLETED")
    print(cluster.output(job))
    cluster.stop()

Invariants
 1. Daemons are our own children, in the foreground. Processes that they start may leave them (slurmstepd is a daemon),
    but every process of a cluster has the cluster's own SLURM_CONF in its environment. The cluster finds its processes
    by this, and signals no others.
 2. Ports are chosen at random, and everything else lies in `where`, so clusters don't disturb each other. Job ids
    start at a random number: the names of MPICH's shared memory contain them, and the remains of a killed job in
    /dev/shm end the next job of that name.

Facts on which the configuration is based (slurm.conf(5), 22.05, and experiments): `AuthInfo=cred_expire` is also the
time that a requeued job waits before it may start again (two minutes by default). Time limits count in minutes. The
number of processors given here is used only with config_overrides. Slurm takes a node as rebooted when a slurmd that
was started with -b registers.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jobs import BIN, PATIENCE, JobError
from waiting import looks

CGROUPS = Path("/sys/fs/cgroup/freezer")
DAEMONS = ("munged", "slurmctld", "slurmd")
COMMANDS = ("sbatch", "srun", "sinfo", "scontrol", "scancel")
_SYSTEM = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))

ENDED = frozenset(
    {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY"}
)


def no_cgroups() -> str | None:
    """The reason why proctrack/cgroup can't be used here; None if it can. (Slurm 22.05 needs systemd for version 2.)"""
    return (
        None
        if os.geteuid() == 0 and os.access(CGROUPS, os.W_OK)
        else f"no {CGROUPS} (cgroups version 1) that may be written to"
    )


def missing() -> str | None:
    """The reason why there can be no cluster here; None if there can."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    lacking = [name for name in (*DAEMONS, *COMMANDS) if shutil.which(name, path=_SYSTEM) is None]
    return f"no {', '.join(lacking)} (apt install munge slurmctld slurmd slurm-client)" if lacking else None


@dataclass
class Cluster:
    """Nodes n1, n2 ... of `cpus` processors each. `settings` are lines of slurm.conf that replace or join those below;
    `partitions` are whole lines, of which one should say Default=YES. `requeue_delay`: seconds before a requeued job
    may start again. `own_hostnames`: on each node, `hostname` prints the node's name."""

    where: Path
    nodes: int = 2
    cpus: int = 4
    requeue_delay: int = 5
    settings: Mapping[str, str] = field(default_factory=dict)
    partitions: Sequence[str] = ("PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=10 State=UP",)
    own_hostnames: bool = False
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    submitted: int = 0

    @property
    def conf(self) -> Path:
        """The path of slurm.conf."""
        return self.where / "slurm.conf"

    @property
    def env(self) -> dict[str, str]:
        """The environment of processes that use this cluster. Commands of the tested installation are on its PATH. All
        nodes are this host. Between such nodes MPICH's default transport (UCX) waits for ever, also natively.
        libfabric's transport doesn't."""
        one_host = {"MANAPY_ADDRESS": "127.0.0.1", "MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}
        if self.own_hostnames:  # they have no addresses
            one_host["HYDRA_IFACE"] = "lo"
        return {**os.environ, "SLURM_CONF": str(self.conf), "PATH": f"{BIN}{os.pathsep}{_SYSTEM}", **one_host}

    @property
    def names(self) -> list[str]:
        """The names of the nodes."""
        return [f"n{i + 1}" for i in range(self.nodes)]

    # ---- life

    def start(self) -> Cluster:
        """Start the cluster. Returns when all nodes are idle."""
        for name in ("state", "log", "jobs"):
            (self.where / name).mkdir(exist_ok=True)
        self._write_configuration()
        key = self.where / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        files = [
            f"--{name}={self.where / file}"
            for name, file in (
                ("key-file", key),
                ("socket", "munge.s"),
                ("pid-file", "munge.pid"),
                ("seed-file", "munge.seed"),
            )
        ]
        # --force, because munged doesn't expect a directory that belongs to one user only
        self._spawn("munged", "munged", "--foreground", "--force", *files)
        self._wait(lambda: (self.where / "munge.s").exists(), "munged's socket")
        self._spawn("slurmctld", "slurmctld", "-D", "-i", "-f", self.conf)
        for name in self.names:
            self._spawn_node(name)
        self.wait_idle()
        return self

    def wait_idle(self) -> None:
        """Wait until all nodes are there and idle."""
        self._wait(lambda: self.node_states() == dict.fromkeys(self.names, "IDLE"), "idle nodes")

    def stop(self) -> None:
        """End all jobs, then the daemons, then all remaining processes."""
        with contextlib.suppress(JobError):
            for process in self.daemons.values():
                if process.poll() is not None:
                    raise JobError("not whole any more: nobody would answer")
            self.command("scancel", "--full", "--signal=KILL", "--user=root")
            self._wait(
                lambda: not self.command("squeue", "--noheader", "--states=running,completing"),
                "the end of all jobs",
                10,
            )
        for process in reversed(self.daemons.values()):
            process.terminate()
        for process in reversed(self.daemons.values()):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.daemons.clear()
        self._kill_all()
        if "proctrack/cgroup" in self.settings.values():
            for directory in [
                found[0] for name in self.names for found in os.walk(CGROUPS / f"slurm_{name}", topdown=False)
            ]:
                with contextlib.suppress(OSError):  # a concurrent cluster has a node with this name
                    os.rmdir(directory)

    def lose(self, node: str) -> None:
        """Let a node die, and tell the controller."""
        self.kill(node)
        self.notice(node)

    def kill(self, node: str) -> None:
        """A node's slurmd and all its processes get SIGKILL."""
        daemon = self.daemons.pop(node)
        daemon.kill()
        daemon.wait()
        self._kill_all(node)

    def notice(self, node: str) -> None:
        """Tell the controller that a node is dead. (It would notice this itself after SlurmdTimeout.)"""
        self.command("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost")

    def bring_back(self, node: str) -> None:
        """Start a lost node again. Returns when it is idle."""
        self._spawn_node(node)

        def idle() -> bool:
            if self.node_states()[node] == "IDLE":
                return True
            with contextlib.suppress(JobError):  # refused if the node has just registered and is up already
                self.command("scontrol", "update", f"NodeName={node}", "State=RESUME")
            return False

        self._wait(idle, f"idle {node}")

    def reboot(self, node: str) -> None:
        """Do what RebootProgram would do after Slurm has run it on the node: all processes of the node end, and its
        slurmd starts again."""
        asked = self.where / f"reboot-{node}"
        # The node reports that it is up for a second. If this is before Slurm's request, it waits for another boot.
        self._wait(lambda: asked.exists() and time.time() - asked.stat().st_mtime > 2, f"reboot of {node}")
        asked.unlink()
        daemon = self.daemons.pop(node)
        daemon.kill()
        daemon.wait()
        self._kill_all(node)
        self._spawn_node(node, "-b")
        self._wait(
            lambda: not {"REBOOT", "DOWN", "DRAIN"} & set(re.split(r"\W", self.node_states()[node])), f"rebooted {node}"
        )

    def processes(self, job: int | None = None, node: str | None = None) -> list[int]:
        """The process ids of all processes of this cluster, or of one node, except our daemons. For one job: without
        its slurmstepd."""
        wanted = {f"SLURM_CONF={self.conf}"}
        wanted |= {f"SLURM_JOB_ID={job}"} if job is not None else set()
        wanted |= {f"SLURMD_NODENAME={node}"} if node is not None else set()
        ours = {process.pid for process in self.daemons.values()} | {os.getpid()}
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) in ours:
                continue
            with contextlib.suppress(OSError):
                has = set((entry / "environ").read_text(errors="replace").split("\0"))
                if wanted <= has:
                    found.append(int(entry.name))
        return found

    # ---- jobs

    def submit(self, script: str, *options: str, env: Mapping[str, str] | None = None) -> int:
        """Run sbatch; returns the job's id. The script runs under bash in the directory `jobs`. Its standard error goes
        to the file of its output, to which a requeued job appends."""
        self.submitted += 1
        file = self.where / "jobs" / f"script-{self.submitted}.sh"
        file.write_text(f"#!/bin/bash\n{script}\n")
        fixed = ["--parsable", f"--chdir={file.parent}", f"--output={file.parent}/%j.out", "--open-mode=append"]
        return int(self.command("sbatch", *fixed, *options, file, env=env).split(";")[0])

    def output(self, job: int) -> str:
        """The output of the job so far."""
        file = self.where / "jobs" / f"{job}.out"
        return file.read_text(errors="replace") if file.exists() else ""

    def show(self, job: int) -> dict[str, str]:
        """The output of `scontrol show job`: JobState, Reason, ExitCode, Restarts, NodeList ..."""
        words = self.command("scontrol", "--oneliner", "show", "job", str(job)).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_for(
        self, job: int, what: str | Callable[[dict[str, str]], object], timeout: float = PATIENCE
    ) -> dict[str, str]:
        """Wait until the job is in the state `what`, or until the output of show() satisfies a condition. Returns that
        output. Raises JobError if the job ends in another state or doesn't reach the state in time."""
        ready = (lambda shown: shown["JobState"] == what) if isinstance(what, str) else what
        for _ in looks(timeout, pause=0.3):
            if ready(shown := self.show(job)):
                return shown
            if shown["JobState"] in ENDED:
                raise JobError(
                    f"job {job} is {shown['JobState']} ({shown.get('ExitCode')}) before {what!r}\n{self.report(job)}"
                )
        raise JobError(f"{timeout:.0f} s without {what!r}\n{self.report(job)}")

    def wait_for_output(self, job: int, what: str | Callable[[str], object], timeout: float = PATIENCE) -> str:
        """Wait until the job's output contains a text or satisfies a condition. Returns the output."""
        ready = (lambda text: what in text) if isinstance(what, str) else what
        for _ in looks(timeout):
            if ready(text := self.output(job)):
                return text
            if self.show(job)["JobState"] in ENDED and not ready(self.output(job)):
                break
        raise JobError(f"job {job} without {what!r}\n{self.report(job)}")

    def finish(self, job: int, timeout: float = PATIENCE) -> str:
        """Wait until the job has ended with exit code 0. Returns its output."""
        self.wait_for(job, "COMPLETED", timeout)
        return self.output(job)

    @contextlib.contextmanager
    def allocation(self, nodes: int) -> Iterator[dict[str, str]]:
        """The environment of commands inside an allocation of four tasks. It is cancelled at the end of the `with`."""
        job = self.submit(
            "env -0 > env.$SLURM_JOB_ID.new; mv env.$SLURM_JOB_ID.new env.$SLURM_JOB_ID; sleep 3600",
            f"--nodes={nodes}",
            "--ntasks=4",
            "--time=10",
        )
        file = self.where / "jobs" / f"env.{job}"
        self.wait_for(job, lambda shown: shown["JobState"] == "RUNNING" and file.exists())
        yield dict(entry.split("=", 1) for entry in file.read_text().split("\0") if entry)
        self.cancel(job)
        self.wait_for(job, "CANCELLED")
        self.wait_idle()

    def cancel(self, job: int, *options: str) -> None:
        """scancel"""
        self.command("scancel", *options, str(job))

    def report(self, job: int) -> str:
        """All information that helps to find the cause of a failure."""
        parts = [
            "--- scontrol",
            self.command("scontrol", "show", "job", str(job)),
            "--- output",
            self.output(job)[-4000:],
        ]
        for name in ("slurmctld", *self.names):
            parts += [f"--- {name}", (self.where / "log" / f"{name}.log").read_text(errors="replace")[-2000:]]
        return "\n".join(parts)

    # ---- the rest

    def command(self, *arguments: str | Path, env: Mapping[str, str] | None = None, timeout: float = PATIENCE) -> str:
        """Run one of Slurm's commands; its output. Raises JobError if it fails."""
        said = [str(a) for a in arguments]
        try:
            done = subprocess.run(
                said,
                env={**self.env, **(env or {})},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired as error:
            raise JobError(f"{' '.join(said)} did not return within {timeout:.0f} s") from error
        if done.returncode:
            raise JobError(f"{' '.join(said)}: exit code {done.returncode}: {done.stderr}")
        return done.stdout

    def node_states(self) -> dict[str, str]:
        """The node's state: IDLE, MIXED, DOWN ... followed by Slurm's flags (IDLE+DRAIN)."""
        words = self.command("scontrol", "--oneliner", "show", "nodes").split()
        names = [word.split("=", 1)[1] for word in words if word.startswith("NodeName=")]
        return dict(zip(names, (word.split("=", 1)[1] for word in words if word.startswith("State=")), strict=True))

    def _write_configuration(self) -> None:
        host = socket.gethostname()
        port, *ports = _free_ports(self.nodes + 1)
        settings = {
            "ClusterName": "tests",
            "SlurmctldHost": f"{host}(127.0.0.1)",
            "SlurmctldPort": str(port),
            "SlurmUser": "root",
            "SlurmdUser": "root",
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={self.where}/munge.s,cred_expire={self.requeue_delay}",
            "CredType": "cred/munge",
            "MpiDefault": "none",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "JobAcctGatherType": "jobacct_gather/none",
            "AccountingStorageType": "accounting_storage/none",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core",
            "SchedulerType": "sched/backfill",
            "SchedulerParameters": "sched_interval=1,bf_interval=1,sched_min_interval=0,batch_sched_delay=0",
            "SlurmdParameters": "config_overrides",
            "ReturnToService": "2",
            "StateSaveLocation": f"{self.where}/state",
            "SlurmdSpoolDir": f"{self.where}/spool-%n",
            "SlurmctldPidFile": f"{self.where}/slurmctld.pid",
            "SlurmdPidFile": f"{self.where}/slurmd-%n.pid",
            "KillWait": "5",
            "RebootProgram": f"{self.where}/reboot",
            "MinJobAge": "3600",
            "FirstJobId": str(random.randrange(10_000, 60_000_000)),
            **self.settings,
        }
        program = self.where / "reboot"
        program.write_text(f"#!/bin/sh\ntouch {self.where}/reboot-$SLURMD_NODENAME\n")
        program.chmod(0o700)
        lines = [f"{name}={value}" for name, value in settings.items()]
        for name, port in zip(self.names, ports, strict=True):
            shape = f"CPUs={self.cpus} Sockets=1 CoresPerSocket={self.cpus} ThreadsPerCore=1 RealMemory=2000"
            lines.append(f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} {shape} State=UNKNOWN")
        self.conf.write_text("\n".join([*lines, *self.partitions]) + "\n")
        # read even if no plugin needs it
        (self.where / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")

    def _spawn_node(self, name: str, *options: str) -> None:
        # In the environment, so that slurmstepd inherits it and can be recognized as a process of the node.
        named = ("unshare", "--uts", "sh", "-c", f'hostname {name} && exec "$@"', "-") if self.own_hostnames else ()
        slurmd = ("slurmd", "-D", "-N", name, "-f", self.conf, *options)
        self._spawn(name, *named, *slurmd, env={"SLURMD_NODENAME": name})

    def _spawn(self, name: str, program: str, *arguments: str | Path, env: Mapping[str, str] | None = None) -> None:
        """Start a daemon. It ends with this process, also when that is killed."""
        found = shutil.which(program, path=_SYSTEM)
        assert found is not None
        with (self.where / "log" / f"{name}.log").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", found, *map(str, arguments)],
                env={**self.env, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _wait(self, ready: Callable[[], object], what: str, timeout: float = PATIENCE) -> None:
        for _ in looks(timeout):
            with contextlib.suppress(JobError):  # the controller does not answer yet
                if ready():
                    return
            for name, process in self.daemons.items():
                if process.poll() is not None:
                    raise JobError(
                        f"{name} has ended with {process.returncode}:\n"
                        f"{(self.where / 'log' / f'{name}.log').read_text(errors='replace')[-4000:]}"
                    )
        raise JobError(f"{timeout:.0f} s without {what}")

    def _kill_all(self, node: str | None = None) -> None:
        deadline = time.monotonic() + PATIENCE
        # again, because one process may just have started another
        while (pids := self.processes(node=node)) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)


def _free_ports(number: int) -> list[int]:
    """Free ports that the kernel gives to no connection (ip(7), ip_local_port_range), because a node that was away
    needs its port again."""
    first, _ = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(found) < number:
            port = random.randrange(int(first) // 2, int(first))
            with contextlib.suppress(OSError):  # it is taken
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
                found.append(port)
    return found

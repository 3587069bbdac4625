"""A virtual machine with RDMA devices, by QEMU. This machine's programs run in it unchanged.

    with VM(share=[directory]) as vm:                      # boots: some ten seconds
        vm.run("ibv_devinfo -d rxa0", timeout=20)          # a CompletedProcess
        server = vm.start("ib_write_bw -d rxa0 -x 1")      # several at a time
        vm.start("ib_write_bw -d rxb0 -x 1 127.0.0.1")
        vm.cut(0, "a", how="cable")
        server.wait(60)

The guest sees the host's files as they are at boot. The guest's changes are lost with it, except in the shared
directories, which are the host's own. Commands run in this process's directory and environment.

Invariants
 1. One thread reads the port. Only this thread changes the data of a GuestProcess; it notifies `changed` at each
    change.
 2. The machine ends with the thread that has booted it.
 3. When the port closes, the machine is dead. Every process that still ran then fails with VMDied, at once, and the VM
    can only boot again.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

from .image import SYSTEM_PATH, image

HERE = Path(__file__).resolve().parent
RAILS = HERE / "guest" / "rails"
AGENT = HERE / "guest" / "agent.py"

PATIENCE = 240.0  # seconds to wait for an event: everything is emulated, on a machine that has other work
Cut = Literal["switch", "cable", "netem", "admin-down"]


class VMError(Exception):
    """The machine did not do what it was asked for."""


class VMDied(VMError):
    """The machine has ended, or doesn't answer."""


class GuestTimeout(VMError):
    """A command, or its expected output, took too long."""


class GuestProcess:
    """A command in the guest. stdout, stderr: text so far. returncode: None while it runs, -N if signal N has ended
    it."""

    def __init__(self, vm: VM, number: int, command: str) -> None:
        self.vm, self.number, self.command = vm, number, command
        self._out, self._err = bytearray(), bytearray()
        self._status: int | None = None
        self._died: str | None = None

    @property
    def stdout(self) -> str:
        """Standard output so far."""
        return self._out.decode(errors="replace")

    @property
    def stderr(self) -> str:
        """Standard error so far."""
        return self._err.decode(errors="replace")

    @property
    def returncode(self) -> int | None:
        """The exit status; None while it runs."""
        return self._status

    def poll(self) -> int | None:
        """The exit status; None while it runs. Raises VMDied if there will never be one."""
        if self._died:
            raise VMDied(f"{self._died}\n{self.report()}")
        return self._status

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for the exit status. Raises GuestTimeout after `timeout` seconds; the process continues."""
        if not self._await(lambda: self.poll() is not None, timeout):
            raise GuestTimeout(f"{timeout:.0f} s were not enough\n{self.report()}")
        assert self._status is not None
        return self._status

    def wait_for(self, what: str | Callable[[str], object], timeout: float = PATIENCE) -> str:
        """Wait until standard output contains a text or satisfies a condition. Returns the output. Raises VMError if
        the process ends before that, GuestTimeout if it takes too long."""
        ready = (lambda text: what in text) if isinstance(what, str) else what
        if not self._await(lambda: ready(self.stdout) or self.poll() is not None, timeout):
            raise GuestTimeout(f"{timeout:.0f} s without {what!r}\n{self.report()}")
        if not ready(text := self.stdout):
            raise VMError(f"ended with {self._status} before {what!r}\n{self.report()}")
        return text

    def stream(self, out: BinaryIO, err: BinaryIO, timeout: float = PATIENCE) -> int:
        """Copy all output to two files as it arrives. Returns the exit status. Raises GuestTimeout after `timeout`
        seconds; the process continues."""
        deadline = time.monotonic() + timeout
        written = [0, 0]
        while True:
            self._await(
                lambda: [len(self._out), len(self._err)] != written or self.poll() is not None,
                deadline - time.monotonic(),
            )
            for i, (file, text) in enumerate(((out, self._out), (err, self._err))):
                file.write(text[written[i] :])
                file.flush()
                written[i] = len(text)
            if self._status is not None and written == [len(self._out), len(self._err)]:
                return self._status
            if time.monotonic() > deadline:
                raise GuestTimeout(f"{timeout:.0f} s were not enough")

    def signal(self, number: int) -> None:
        """Send a signal to the command's process group."""
        self.vm._ask(id=self.number, signal=number)

    def kill(self) -> None:
        """End the command and all its processes. Returns when they have ended."""
        if self.poll() is None:
            self.vm._ask(id=self.number, kill=True)
            try:
                self.wait(PATIENCE)
            except GuestTimeout:
                self.vm.stop("it doesn't answer any more")
                raise VMDied(f"it doesn't answer any more\n{self.report()}") from None

    def report(self) -> str:
        """All information that helps to find the cause of a failure."""
        return f"--- {self.command}\n{self.stdout[-8000:]}\n--- stderr\n{self.stderr[-8000:]}"

    def _await(self, ready: Callable[[], object], timeout: float) -> bool:
        with self.vm.changed:
            return bool(self.vm.changed.wait_for(ready, timeout))


# The guest's drivers have timers (a retry, a lease) that expire even if a busy host has not run the guest. So the guest
# gets a higher priority than other work, where that is allowed.
PRIORITY = "-10"

_NICE = ["nice", "-n", PRIORITY] if os.geteuid() == 0 else []

# The guest's agent ends the machine when the port closes. This ends also one that does not get that far.
_WITH_US = ["setpriv", "--pdeathsig", "KILL"]

# A processor without AVX and fast string operations, which are slow in emulation, but with the features that
# manapy-launch needs. ib_write_bw over a rail: 44 MB/s, compared with 17 MB/s with `-cpu max`.
EMULATED = "Nehalem,+fsgsbase,+rdtscp"


class VM:
    """`share`: directories of the host in which both sides write. `rails`: how many (0: no RDMA devices). `accel`:
    QEMU's accelerator (MANAPY_VM_ACCEL); the emulator needs no rights and never hangs."""

    def __init__(
        self, share: Sequence[Path] = (), rails: int = 3, memory: str = "2G", cpus: int = 2, accel: str | None = None
    ) -> None:
        self.share = [path.resolve() for path in share]
        self.rails, self.memory, self.cpus = rails, memory, cpus
        self.accel = accel or os.environ.get("MANAPY_VM_ACCEL") or "tcg,thread=multi"
        self.changed = threading.Condition()
        self._sending = threading.Lock()
        self._numbers = itertools.count(1)
        self._processes: dict[int, GuestProcess] = {}
        self._qemu: subprocess.Popen[bytes] | None = None
        self._port: socket.socket | None = None
        self._reader: threading.Thread | None = None
        self._where: tempfile.TemporaryDirectory[str] | None = None
        self._ready = self._alive = False
        self.failed: set[int] = set()  # rails that are cut

    # ---- life

    def boot(self, timeout: float = PATIENCE) -> VM:
        """Boot. Returns when commands can be run. Raises ImageError if there is no image, VMDied if the machine does
        not start."""
        self.stop()
        booted = image()
        self._where = tempfile.TemporaryDirectory(prefix="manapy-vm-")
        self._port, guest_end = socket.socketpair()
        with guest_end:
            arguments = self._arguments(booted.kernel, booted.initramfs, guest_end.fileno())
            self._qemu = subprocess.Popen(
                [*_WITH_US, *_NICE, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._log("qemu").open("wb"),
                pass_fds=[guest_end.fileno()],
                start_new_session=True,
            )
        if _NICE:
            # a session of its own is a group of its own for the scheduler (sched(7), autogroup)
            with contextlib.suppress(OSError):
                Path(f"/proc/{self._qemu.pid}/autogroup").write_text(PRIORITY)
        self._ready, self._alive = False, True
        self.failed.clear()
        self._reader = threading.Thread(target=self._read, args=(self._port,), daemon=True)
        self._reader.start()
        with self.changed:
            self.changed.wait_for(lambda: self._ready or not self._alive, timeout)
        if not self._ready:
            raise VMDied(f"the machine did not come up within {timeout:.0f} s\n{self._last_words()}")
        if self.rails:
            self.guest_rails("up", self.rails)
        return self

    def stop(self, why: str = "it was stopped") -> None:
        """End the machine at once."""
        if self._qemu is None or self._port is None or self._reader is None or self._where is None:
            return
        self._qemu.kill()
        self._qemu.wait()
        self._reader.join()  # sees the closed port
        self._port.close()
        self._where.cleanup()
        self._qemu = self._port = self._reader = self._where = None

    @property
    def alive(self) -> bool:
        """Is there a machine that has not ended?"""
        return self._alive

    def __enter__(self) -> VM:
        return self.boot()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ---- commands

    def start(
        self, command: str | Sequence[str | Path], env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> GuestProcess:
        """Start a command: a line for bash, or a program and its arguments. `env` is added to this process's
        environment."""
        arguments = ["/bin/bash", "-c", command] if isinstance(command, str) else [str(a) for a in command]
        return self._begin(
            command if isinstance(command, str) else " ".join(arguments),
            run=arguments,
            cwd=str(cwd or Path.cwd()),
            env={**os.environ, "PATH": SYSTEM_PATH, **(env or {})},
        )

    def run(
        self, command: str | Sequence[str | Path], timeout: float = PATIENCE, check: bool = False, **where: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end. After `timeout` seconds the command and all its processes are killed: raises
        GuestTimeout with its output. With `check`: raises VMError if its exit status isn't 0. `where`: env and cwd, as
        in start()."""
        process = self.start(command, **where)
        try:
            status = process.wait(timeout)
        except BaseException:
            if self._alive:
                process.kill()
            raise
        if check and status:
            raise VMError(f"exit status {status}\n{process.report()}")
        return subprocess.CompletedProcess(process.command, status, process.stdout, process.stderr)

    def read(self, *files: str) -> str:
        """The text of some files, one after the other. This starts no process in the guest, which would take a hundred
        times as long. Raises VMError if one can't be read."""
        process = self._begin(f"read {' '.join(files)}", read=files)
        if process.wait():
            raise VMError(f"can't be read\n{process.report()}")
        return process.stdout

    def listening(self, port: int) -> None:
        """Wait until a program listens on this TCP port: perftest buffers its output."""
        self.run(f"until ss -Hltn sport = :{port} | grep -q .; do sleep 0.05; done", check=True)

    def running(self) -> list[GuestProcess]:
        """Commands that have not ended."""
        with self.changed:
            return list(self._processes.values())

    # ---- rails: guest/rails explains their words

    def cut(self, rail: int, host: Literal["a", "b"] | None = None, how: Cut = "switch", loss: float = 100) -> float:
        """Cut the rail for one host or (None) for both. `loss`: percent, for netem. Returns the time when that was
        done, in seconds of the guest's CLOCK_MONOTONIC."""
        self.failed.add(rail)
        return self.guest_rails("cut", rail, how, *([loss] if how == "netem" else []), *([host] if host else []))

    def repair(self, rail: int | None = None) -> float:
        """Repair a rail, or all of them. Returns the time when that was begun."""
        begun = self.guest_rails("repair", *([] if rail is None else [rail]))
        self.failed -= {rail} if rail is not None else self.failed.copy()
        return begun

    def guest_rails(self, *arguments: object) -> float:
        """Run guest/rails in the guest. Returns the number that it prints, 0 if it prints nothing."""
        return float(self.run([RAILS, *map(str, arguments)], check=True).stdout or 0)

    def counter(self, device: str, name: str) -> int:
        """A counter of an RDMA device: sent_pkts, rcvd_pkts, duplicate_request, link_downed ..."""
        return int(self.read(f"/sys/class/infiniband/{device}/ports/1/hw_counters/{name}"))

    # ---- the rest

    def _arguments(self, kernel: Path, initramfs: Path, port: int) -> list[str]:
        agent, share = f"{os.path.realpath(sys.executable)},{AGENT}", ",".join(map(str, self.share))
        if (
            any(letter in agent + share for letter in " \t\n")
            or agent.count(",") != 1
            or share.count(",") + 1 > max(len(self.share), 1)
        ):
            raise VMError(f"a blank or comma in a path: {agent}, {share}")
        qemu = shutil.which("qemu-system-x86_64", path=SYSTEM_PATH)
        assert qemu is not None  # image() has searched for it
        # A guest that hangs dies instead, and -no-reboot ends QEMU with it. The guest hangs if it does not react for
        # twice the watchdog's threshold, which is two minutes. A sender's loop inside Soft-RoCE has taken that long
        # where the emulated processors share a busy machine, so the kernel lets others run meanwhile (preempt=full).
        hang = "softlockup_panic=1 watchdog_thresh=60 panic=-1 preempt=full"
        # QEMU keeps translated code by its address. Programs at the same addresses share it, so Python starts in half
        # the time.
        boot = "console=ttyS0 quiet loglevel=4 mitigations=off nokaslr norandmaps random.trust_cpu=on"
        append = f"{boot} tsc=reliable no_timer_check {hang} agent={agent} share={share}"
        arguments = [
            qemu,
            "-M",
            "q35",
            "-accel",
            self.accel,
            "-cpu",
            "host" if self.accel.startswith("kvm") else EMULATED,
            "-smp",
            str(self.cpus),
            "-m",
            self.memory,
        ]
        arguments += [
            "-nodefaults",
            "-no-user-config",
            "-no-reboot",
            "-display",
            "none",
            "-kernel",
            str(kernel),
            "-initrd",
            str(initramfs),
            "-append",
            append,
        ]
        arguments += ["-serial", f"file:{self._log('console')}", "-device", "virtio-serial-pci"]
        arguments += ["-chardev", f"socket,id=agent,fd={port}", "-device", "virtserialport,chardev=agent,name=manapy"]
        arguments += [
            "-fsdev",
            "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
            "-device",
            "virtio-9p-pci,fsdev=root,mount_tag=root",
        ]
        for i, path in enumerate(self.share):
            arguments += [
                "-fsdev",
                f"local,id=share{i},path={path},security_model=none,multidevs=remap",
                "-device",
                f"virtio-9p-pci,fsdev=share{i},mount_tag=share{i}",
            ]
        return arguments

    def _log(self, name: str) -> Path:
        assert self._where is not None
        return Path(self._where.name) / f"{name}.log"

    def _last_words(self) -> str:
        parts = []
        for name in ("qemu", "console"):
            with contextlib.suppress(OSError, AssertionError):
                parts += [f"--- {name}", self._log(name).read_text(errors="replace")[-4000:]]
        return "\n".join(parts)

    def _begin(self, command: str, **request: object) -> GuestProcess:
        process = GuestProcess(self, next(self._numbers), command)
        with self.changed:
            if not self._alive:
                raise VMDied("there is no machine")
            self._processes[process.number] = process
        self._ask(id=process.number, **request)
        return process

    def _ask(self, **request: object) -> None:
        # the machine is dead: the reader notices it, too, and tells all processes
        with self._sending, contextlib.suppress(OSError):
            if self._port is not None:
                self._port.sendall(json.dumps(request).encode() + b"\n")

    def _read(self, port: socket.socket) -> None:
        with contextlib.suppress(OSError), port.makefile("rb") as lines:
            for line in lines:
                with self.changed:
                    self._heard(json.loads(line))
                    self.changed.notify_all()
        with self.changed:
            self._alive = False
            for process in self._processes.values():
                process._died = f"the machine has died\n{self._last_words()}"
            self._processes.clear()
            self.changed.notify_all()

    def _heard(self, answer: dict[str, Any]) -> None:
        if "ready" in answer:
            self._ready = True
            return
        process = self._processes[answer["id"]]
        process._out += answer.get("out", "").encode("latin-1")
        process._err += answer.get("err", "").encode("latin-1")
        if "exit" in answer:
            process._status = answer["exit"]
            del self._processes[process.number]

"""The machine with RDMA devices: commands, files, death, rails."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from vm import VM, GuestTimeout, VMDied, VMError, missing, shift
from waiting import until, until_gone

RUN = Path(__file__).resolve().parent.parent.parent / "tools" / "vm" / "run"


def test_what_a_command_says(rdma_vm: VM) -> None:
    done = rdma_vm.run("echo out; echo err >&2; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")
    assert rdma_vm.run("kill -TERM $$").returncode == -15
    assert rdma_vm.run(["/bin/echo", "a  b", "$HOME"]).stdout == "a  b $HOME\n"
    done = rdma_vm.run(["/no/such/program"])
    assert (done.returncode, done.stderr) == (127, "/no/such/program: No such file or directory\n")
    with pytest.raises(VMError, match="exit status 3"):
        rdma_vm.run("exit 3", check=True)


def test_long_output(rdma_vm: VM) -> None:
    assert rdma_vm.run("seq 1 200000").stdout == "".join(f"{n}\n" for n in range(1, 200_001))


def test_same_directory_and_environment(rdma_vm: VM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIVEN", "here")
    assert rdma_vm.run("pwd; echo $GIVEN $MORE", env={"MORE": "there"}).stdout == f"{os.getcwd()}\nhere there\n"
    assert rdma_vm.run("pwd", cwd=Path("/usr")).stdout == "/usr\n"


def test_files(rdma_vm: VM, rdma_share: Path, shared_path: Path, tmp_path: Path) -> None:
    """The guest sees all files of the host, and may write all of them. Only changes in the shared directory reach the
    host."""
    assert rdma_vm.run(["cat", __file__]).stdout == Path(__file__).read_text()
    stray = tmp_path / "stray"
    rdma_vm.run(
        f"mkdir -p {tmp_path} && echo guest > {stray} && cat {stray} && touch {__file__} /etc/stray", check=True
    )
    assert not stray.exists() and not Path("/etc/stray").exists()
    for content in ("first\n", "second\n", "a third one\n"):
        (shared_path / "host").write_text(content)
        assert rdma_vm.run(f"cat {shared_path}/host; echo {content.strip()} > {shared_path}/guest").stdout == content
        assert (shared_path / "guest").read_text() == content


def test_timeout_ends_all_processes(rdma_vm: VM) -> None:
    """Also those that have left the process group. The error contains the command's output."""
    with pytest.raises(GuestTimeout, match="said before"):
        rdma_vm.run("echo said before; setsid sleep 98765 & sleep 98765", timeout=3)
    assert rdma_vm.run("pgrep -x sleep").stdout == ""


def test_nothing_outlives_a_command(rdma_vm: VM) -> None:
    rdma_vm.run("setsid sleep 98765 & echo started", check=True)
    assert rdma_vm.run("pgrep -x sleep").stdout == ""


def test_two_commands_at_a_time(rdma_vm: VM, shared_path: Path) -> None:
    fifo = f"/run/{shared_path.name}"
    rdma_vm.run(f"mkfifo {fifo}", check=True)
    reader = rdma_vm.start(
        f"echo waiting; cat {fifo}; trap 'echo told; exit 5' USR1; echo armed; while :; do read -t 1 <> {fifo}; done"
    )
    reader.wait_for("waiting")
    assert reader.poll() is None
    rdma_vm.run(f"echo through > {fifo}", check=True)
    reader.wait_for(lambda text: "through" in text and "armed" in text)
    reader.signal(10)
    assert reader.wait() == 5
    assert reader.stdout == "waiting\nthrough\narmed\ntold\n"
    with pytest.raises(VMError, match="ended with 5 before 'more'"):
        reader.wait_for("more")


def test_killed(rdma_vm: VM) -> None:
    sleeper = rdma_vm.start("setsid sleep 98765 & echo ready; wait")
    sleeper.wait_for("ready")
    assert rdma_vm.running() == [sleeper]
    sleeper.kill()
    assert sleeper.poll() == -9 and not rdma_vm.running()
    assert rdma_vm.run("pgrep -x sleep").stdout == ""


def test_death_is_noticed_at_once(rdma_vm: VM) -> None:
    waiting = rdma_vm.start("sleep 98765")
    shift.environment(rdma_vm)
    begun = time.monotonic()
    with pytest.raises(VMDied, match="Kernel panic"):
        rdma_vm.run("echo 1 > /proc/sys/kernel/sysrq; echo c > /proc/sysrq-trigger")
    with pytest.raises(VMDied):
        waiting.wait()
    assert time.monotonic() - begun < 60
    assert not rdma_vm.alive
    with pytest.raises(VMDied, match="no machine"):
        rdma_vm.run("true")


def test_after_a_death(rdma_vm: VM) -> None:
    """A new machine runs (with new rails). The agent of the other one is gone."""
    assert len(rdma_vm.run("ls /sys/class/infiniband").stdout.split()) == 6
    assert shift.agent(rdma_vm) is None


# ---- tools/vm/run


@pytest.mark.rdma_vm
def test_run(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    command = f"ls /sys/class/infiniband; echo kept > {tmp_path}/file; echo lost > /tmp/{tmp_path.name}-lost; exit 7"
    done = subprocess.run(
        [RUN, "--rails", "1", "--share", tmp_path, "--", "bash", "-c", command],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "rxa0\nrxb0\n", "")
    assert (tmp_path / "file").read_text() == "kept\n" and not Path(f"/tmp/{tmp_path.name}-lost").exists()


def name_of(pid: str) -> str:
    """Of a process; "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


@pytest.mark.rdma_vm
def test_run_is_killed(tmp_path: Path) -> None:
    """The machine ends with the process that has started it, also before it is up."""
    if reason := missing():
        pytest.skip(reason)

    def machine() -> list[int]:
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        return [int(pid) for pid in children if name_of(pid).startswith("qemu-system")]

    with subprocess.Popen([RUN, "--rails", "0", "sleep", "98765"]) as running:
        until(machine, "QEMU's start")
        found = machine()
        running.kill()
        running.wait()
    until_gone(found, "QEMU's end")


def test_nothing_to_run_it_with() -> None:
    done = subprocess.run(
        [sys.executable, RUN, "true"], env={"PATH": "/nonexistent"}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 125
    assert (
        done.stderr.startswith("tools/vm/run: no qemu-system-x86_64, ")
        and "apt install qemu-system-x86" in done.stderr
        and done.stderr.count("\n") == 1
    )


def test_no_kernel(tmp_path: Path) -> None:
    """apt knows of no kernel, and none was downloaded before."""
    if reason := missing():
        pytest.skip(reason)
    for name in ("apt-get", "apt-cache"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    done = subprocess.run([RUN, "true"], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (125, "tools/vm/run: apt offers no linux-image-amd64 (apt-get update)\n")


# ---- rails


@pytest.mark.parametrize("test, rail", [("ib_write_bw", 0), ("ib_send_bw", 1), ("ib_write_bw", 2)])
def test_traffic_takes_its_rail(rdma_vm: VM, test: str, rail: int) -> None:
    devices = [f"rx{host}{n}" for host in "ab" for n in range(3)]
    before = {device: rdma_vm.counter(device, "sent_pkts") for device in devices}
    options = "-x 1 -F -s 65536 -n 50 -m 4096"
    server = rdma_vm.start(f"stdbuf -oL {test} -d rxb{rail} {options}")
    server.wait_for("Waiting for client")
    done = rdma_vm.run(f"{test} -d rxa{rail} {options} 127.0.0.1", timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert server.wait() == 0
    sent = {device: rdma_vm.counter(device, "sent_pkts") - before[device] for device in devices}
    assert sent[f"rxa{rail}"] >= 50 * 16
    assert sent[f"rxb{rail}"] > 0  # acknowledgements
    assert all(sent[device] == 0 for device in devices if not device.endswith(str(rail))), sent


def test_bad_requests(rdma_vm: VM) -> None:
    for arguments, said in (
        (["cut", 7, "switch"], "no rail 7"),
        (["cut", 0, "axe"], "can't be cut by axe"),
        (["cut", 0, "cable", "c"], "no host c"),
        (["repair", 9], "no rail 9"),
    ):
        with pytest.raises(VMError, match=said):
            rdma_vm.guest_rails(*arguments)

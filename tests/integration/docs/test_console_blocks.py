"""The commands of the documentation are run, each page in an empty directory, and print what the page shows."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import console
import emulated
import pytest
from jobs import BIN, Job
from needed import need
from slurm import Cluster

HOSTS = emulated.names(3)
OURS = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}  # the tested installation


def pages_that_need(what: str) -> pytest.MarkDecorator:
    found = console.pages(what)
    return pytest.mark.parametrize("page", found.values(), ids=found.keys())


def follow(page: console.Page, job: Job, inside: Sequence[str | Path] = (), hosts: Sequence[str] = ()) -> None:
    """Run a page's commands, and compare what they print. inside: words that let a command run on the first host; on
    the page hosts are called n1, n2 ..."""
    names = {str(job.where): "/home/me", sys.prefix: "/home/me/venv", socket.gethostname(): "vm"}
    names |= {host: f"n{number}" for number, host in enumerate(hosts, 1)}
    for name, content in page.files.items():
        (job.where / name).write_text(content)
    job.spawn([*inside, "bash", "-c", console.script(page.commands)])
    job.wait(timeout=250)
    shown = console.outputs(job.output())
    for command, said in zip(page.commands, shown, strict=False):
        assert not (difference := console.difference(command, *said, names)), difference
    assert len(shown) == len(page.commands), job.output()


@pages_that_need("")
def test_commands(page: console.Page, make_job: Callable[..., Job], trace_root: Path) -> None:
    follow(page, make_job(env=OURS))


@pytest.mark.slow
@pages_that_need("torch")
def test_commands_with_pytorch(page: console.Page, make_job: Callable[..., Job]) -> None:
    need("torch", "no PyTorch (pip install '.[torch]')")
    follow(page, make_job(env=OURS))


@pytest.mark.slurm
@pytest.mark.slow
@pages_that_need("slurm")
def test_commands_in_slurm(page: console.Page, make_job: Callable[..., Job], cluster: Cluster) -> None:
    follow(page, make_job(env=cluster.env))


@pages_that_need("hosts")
def test_commands_on_several_hosts(page: console.Page, make_job: Callable[..., Job]) -> None:
    """`mpirun` starts ranks on three emulated hosts, one on each, and `ssh` reaches them."""
    job = make_job()
    (job.where / "hosts").write_text("".join(f"{host}:1\n" for host in HOSTS))
    ssh = job.where / "ssh"
    ssh.write_text(
        f'#!/bin/sh\nhost={HOSTS[0][:-1]}$((${{1#n}} - 1)); shift\nexec {emulated.TOOLS}/nodes run $host "$@"\n'
    )
    ssh.chmod(0o700)
    hydra = {"LAUNCHER": "ssh", "LAUNCHER_EXEC": f"{emulated.TOOLS}/nodes-launch", "HOST_FILE": f"{job.where}/hosts"}
    job.env |= {"PATH": f"{BIN}{os.pathsep}{job.where}{os.pathsep}{os.environ['PATH']}", "UCX_TLS": "tcp,self"}
    job.env |= {f"HYDRA_{name}": value for name, value in hydra.items()}
    with emulated.cluster(HOSTS):
        follow(page, job, emulated.inside(HOSTS[0]), HOSTS)

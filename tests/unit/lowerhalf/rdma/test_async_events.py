"""What a program under the interposer hears of asynchronous events. Over nullverbs, to which the events are given."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from manapy import _install

PROGRAM = r"""
#include "nullverbs.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
int main(void)
{
    struct ibv_context *context = ibv_open_device(*ibv_get_device_list(0));
    static const enum ibv_event_type given[] = {IBV_EVENT_PORT_ERR, IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ERR, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR};
    struct ibv_async_event event = {.element.port_num = 1};
    for (int i = 0; i < 5; i++) {
        event.event_type = given[i];
        nullverbs_async(context, &event);
    }
    fcntl(context->async_fd, F_SETFL, O_NONBLOCK);
    for (int i = 0; i < 3; i++)
        if (ibv_get_async_event(context, &event) == 0)
            printf("%s %d\n", event.event_type == IBV_EVENT_PORT_ACTIVE ? "active" : "other", event.element.port_num);
        else
            printf("%s\n", errno == EAGAIN ? "nothing" : "error");
    return 0;
}
"""


def test_the_default_ports_troubles_are_hidden(tmp_path: Path, root: Path) -> None:
    """Others aren't. Who reads because there was one, and doesn't want to wait, hears that the port is active; then there is nothing, as always."""
    interposer = _install.library("libmanapy_shift.so")
    if interposer is None:
        pytest.skip("built without libibverbs-dev")
    programs = root / "tests" / "programs" / "rdma"
    library, program = tmp_path / "libibverbs.so.1", tmp_path / "program"
    (tmp_path / "program.c").write_text(PROGRAM)
    flags = ["-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", f"-Wl,--version-script={programs / 'nullverbs.map'}"]
    subprocess.run(["gcc", "-O1", "-o", library, *flags, programs / "nullverbs.c", "-lpthread"], check=True)
    subprocess.run(["gcc", "-O1", "-o", program, tmp_path / "program.c", f"-I{programs}", library], check=True)
    shift = {"LD_PRELOAD": str(interposer), "MANAPY_SHIFT_AGENT": str(tmp_path / "no-agent"), "MANAPY_SHIFT_JOB": "j", "MANAPY_SHIFT_BACKUP": "null0:null1"}
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "NULLVERBS_DEVICES": "2", **shift}
    done = subprocess.run([program], capture_output=True, text=True, env=environment, timeout=60)
    assert (done.returncode, done.stdout) == (0, "other 1\nactive 1\nnothing\n"), done

"""The asynchronous events that a program under the interposer gets. It runs over nullverbs, which injects the
events."""

from __future__ import annotations

from pathlib import Path

from interposed import run

PROGRAM = r"""
#include "nullverbs.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
int main(void)
{
    struct ibv_context *context = ibv_open_device(*ibv_get_device_list(0));
    static const enum ibv_event_type given[] = {
        IBV_EVENT_PORT_ERR, IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ERR, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR};
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
    """Other events aren't hidden. A program that reads without blocking because an event was there gets an event that
    says that the port is active. Then there is none, as usual."""
    done = run(tmp_path, root, PROGRAM)
    assert (done.returncode, done.stdout) == (0, "other 1\nactive 1\nnothing\n"), done

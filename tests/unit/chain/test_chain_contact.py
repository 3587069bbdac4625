"""When a coordinator counts as lost."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from histories import History
from manapy.chain import contact
from manapy.chain.contact import Contact
from manapy.ckpt import command
from manapy.ckpt.store import job
from manapy.core import connection
from waiting import until

TRIES = 4


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A try takes at most 0.2 s, and a coordinator is lost after so many."""
    monkeypatch.delenv("MANAPY_LOSS_SECONDS", raising=False)
    monkeypatch.setattr(contact, "EVERY", 0.05)
    monkeypatch.setattr(connection, "LOSS_SECONDS", 0.05 * TRIES)
    monkeypatch.setattr(command, "CONNECT_SECONDS", 0.2)


@pytest.fixture
def full() -> Iterator[int]:
    """A port to which connections time out, as to a host without power: what waits to be accepted is too much."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address = listener.getsockname()
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        yield int(address[1])


def asked(made: Contact, which: job.Job, times: int) -> None:
    """Try so many times."""
    for _ in range(times):
        made._begun = -contact.EVERY
        made.look([which])
        until(lambda: made._thread is not None and not made._thread.is_alive(), "the try")


def test_nobody_listens(history: History) -> None:
    which, made = job.read(history.job(1, "running", port=1)), Contact()
    asked(made, which, TRIES - 1)
    assert not made.lost(which)
    asked(made, which, 1)
    assert made.lost(which)
    assert not made.lost(which._replace(port=2)), "it has another coordinator now"


def test_host_that_does_not_answer(history: History, full: int) -> None:
    which, made = job.read(history.job(1, "running", port=full)), Contact()
    asked(made, which, TRIES)
    assert made.lost(which)


def test_coordinator_that_is_stopped(history: History) -> None:
    """It accepts nothing. Its kernel does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        which, made = job.read(history.job(1, "running", port=listener.getsockname()[1])), Contact()
        asked(made, which, 2 * TRIES)
        assert not made.lost(which)


def test_only_tries_in_a_row_count(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    which, made = job.read(history.job(1, "running", port=1)), Contact()
    for _ in range(2):
        asked(made, which, TRIES - 1)
        with monkeypatch.context() as patch:
            patch.setattr(socket, "create_connection", lambda *_, **__: socket.socket())
            asked(made, which, 1)
        assert not made.lost(which)


def test_host_without_descriptors(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """This says nothing about the coordinator."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "create_connection", fail)
    which, made = job.read(history.job(1, "running", port=1)), Contact()
    asked(made, which, 2 * TRIES)
    assert not made.lost(which)

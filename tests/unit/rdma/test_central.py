"""The keys of a job in its coordinator: from its own host, and by lines from other hosts."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from test_store import contract
from waiting import until

from manapy.ckpt.protocol import LINE_MAX
from manapy.core.errors import LeaseLostError, StoreError
from manapy.rdma import central
from manapy.rdma.central import CentralStore, KeyService, RemoteStore
from manapy.rdma.kv_protocol import KEY_MAX, VALUE_MAX
from manapy.rdma.store import KEYS_MAX


def remote(desk: KeyService, name: str) -> RemoteStore:
    """The store of another host, whose lines are answered at once."""

    def send(line: str) -> None:
        store.take(desk.answer(name, line))

    store = RemoteStore(send)
    return store


def test_contract_in_the_coordinator() -> None:
    store = CentralStore()
    contract(store, store, CentralStore())


@pytest.mark.parametrize("here", ["a", "b", ""])
def test_contract_by_lines(here: str) -> None:
    """Both agents on other hosts, or one on the coordinator's."""
    store = CentralStore()
    desk = KeyService(store)
    a, b = (store if here == name else remote(desk, name) for name in "ab")
    contract(a, b, remote(KeyService(CentralStore()), "other"))


def test_a_lost_agent_takes_its_keys_with_it() -> None:
    store = CentralStore()
    desk = KeyService(store)
    a, b = remote(desk, "a"), remote(desk, "b")
    one, two = a.lease(), b.lease()
    a.put_all(one, {"x": b"1", "y": b"1"})
    b.put_all(two, {"y": b"2", "z": b"2"})
    desk.leave("a")
    assert b.get_all(["x", "y", "z"]) == [None, b"2", b"2"]
    desk.leave("a")
    with pytest.raises(LeaseLostError):
        a.put(one, "x", b"1")
    desk.leave("b")
    assert store.get_all(["y", "z"]) == [None, None]


def test_an_agent_changes_only_its_own_keys() -> None:
    """Whatever lines it sends."""
    store = CentralStore()
    desk = KeyService(store)
    lease = remote(desk, "a").lease()
    assert desk.answer("a", f"KEYS 7 PUT {lease} k 01") == "KEYED 7 OK"
    for request in (f"PUT {lease} k 02", f"DEL {lease} k", f"REVOKE {lease}"):
        assert desk.answer("b", f"KEYS 8 {request}") == "KEYED 8 LOST"
    assert desk.answer("b", "KEYS 9 GET k none") == "KEYED 9 OK 01 -"


@pytest.mark.parametrize("request_", ["PUT", "PUT {} k", "PUT {} k xy", "SING {}", ""])
def test_malformed_lines(request_: str) -> None:
    desk = KeyService(CentralStore())
    lease = remote(desk, "a").lease()
    with pytest.raises(ValueError):
        desk.answer("a", f"KEYS 1 {request_.format(lease)}".rstrip())


def test_the_longest_request_is_one_line() -> None:
    """Of all keys that go into a request, at their greatest lengths: shorter than the longest line."""
    lines: list[str] = []
    desk = KeyService(CentralStore())
    store = remote(desk, "a")
    direct = store._send

    def send(line: str) -> None:
        lines.append(line)
        direct(line)

    store._send = send
    pairs = {f"{n:0{KEY_MAX}}": bytes(VALUE_MAX) for n in range(KEYS_MAX)}
    store.put_all(store.lease(), pairs)
    assert store.get_all([*pairs]) == [*pairs.values()]
    assert max(map(len, lines)) < LINE_MAX // 4


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[str]]:
    """Start it. The list gets its error."""
    said: list[str] = []

    def run() -> None:
        try:
            work()
        except StoreError as error:
            said.append(str(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, said


def test_the_coordinator_is_lost() -> None:
    """A request that is under way fails at once, and so does each later one."""
    sent: list[str] = []
    store = RemoteStore(sent.append)
    thread, said = in_thread(lambda: store.get("k"))
    until(lambda: sent, "the request")
    store.lose()
    thread.join(central.PATIENCE_SECONDS / 2)
    assert not thread.is_alive() and said == ["the coordinator is lost: it has the keys of all hosts"]
    for later in (store.lease, lambda: store.keep([]), lambda: store.put("1", "k", b"1")):
        with pytest.raises(StoreError, match="the coordinator is lost"):
            later()
    store.revoke("1")
    assert len(sent) == 1


def test_a_coordinator_that_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer is dropped, and later ones are not taken for it."""
    monkeypatch.setattr(central, "PATIENCE_SECONDS", 0.01)
    sent: list[str] = []
    store = RemoteStore(sent.append)
    with pytest.raises(StoreError, match="the coordinator does not answer"):
        store.get("k")
    monkeypatch.setattr(central, "PATIENCE_SECONDS", 60.0)
    desk = KeyService(CentralStore())
    store.take(desk.answer("a", sent[0]))
    store._send = lambda line: store.take(desk.answer("a", line))
    lease = store.lease()
    store.put(lease, "k", b"1")
    assert store.get("k") == b"1"

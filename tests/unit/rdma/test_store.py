"""The common contract of the stores; what is special to SQLite; URLs. test_central.py and test_etcd.py have the other
stores."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from manapy.core.errors import LeaseLostError, ManapyError, StoreError, UsageError
from manapy.rdma import sqlite as sqlite_module
from manapy.rdma.store import KEYS_MAX, Store, Url
from manapy.rdma.stores import open_store
from waiting import PATIENCE, until

_WRITER = """
import sys
from manapy.rdma import sqlite
from manapy.rdma.stores import open_store
sqlite.PATIENCE_SECONDS = 120.0 # a disk may be slow
store = open_store(sys.argv[1], "job")
lease = store.lease()
for i in range(50):
    store.put(lease, f"{sys.argv[2]}/{i}", b"v")
    assert store.get(f"{sys.argv[2]}/{i}") == b"v"
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/keys.db"


def test_contract(url: str) -> None:
    a, b = open_store(url, "job", 5), open_store(url, "job", 5)
    contract(a, b, open_store(url, "other", 5))


def contract(a: Store, b: Store, other: Store) -> None:
    """The contract in store.py, for two agents of one job and one agent of another."""
    one, two = a.lease(), b.lease()
    assert a.get("k") is None
    a.put(one, "k", b"\x00\xff")
    assert b.get("k") == b"\x00\xff" and other.get("k") is None
    b.put(two, "k", b"2")
    a.delete(one, "k")
    assert a.get("k") == b"2", "it belongs to two"
    a.put(one, "mine", b"1")
    a.revoke(one)
    a.revoke(one)
    assert a.get("k") == b"2" and a.get("mine") is None
    with pytest.raises(LeaseLostError):
        a.put(one, "k", b"1")
    assert a.keep([one]) == {one} and b.keep([two]) == b.keep([]) == set()
    b.delete(two, "k")
    b.delete(two, "k")
    assert a.get("k") is None
    several = {f"several/{i}": b"%d" % i for i in range(KEYS_MAX)}
    b.put_all(two, several)
    assert a.get_all([*several][1:]) == [*several.values()][1:] and a.get_all(["several/0", "none", "several/2"]) == [
        b"0",
        None,
        b"2",
    ]
    with pytest.raises(LeaseLostError):
        a.put_all(one, {"several/0": b"x", "new": b"x"})
    assert a.get_all(["new", "several/0"]) == [None, b"0"], "all or none"
    three = a.lease()
    a.put(three, "several/1", b"x")
    b.delete_all(two, [*several])
    assert [key for key, value in zip(several, a.get_all([*several]), strict=True) if value is not None] == [
        "several/1"
    ]
    for store in (a, b, other):
        store.close()


def test_keys_of_an_agent_that_is_gone_expire(url: str) -> None:
    """The keys of an agent that is kept alive don't expire."""
    dead, alive = open_store(url, "job", 1.0), open_store(url, "job", 1.0)
    kept = alive.lease()
    alive.put(kept, "alive", b"1")
    dead.put(dead.lease(), "dead", b"1")
    begin = time.monotonic()
    until(lambda: (alive.keep([kept]), alive.get("dead"))[1] is None, "the end of the dead one's lease")
    assert time.monotonic() - begin >= 1.0 and alive.get("alive") == b"1"


def test_clocks_do_not_matter(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 1 of sqlite.py: a host whose wall clock is an hour ahead doesn't end the lease of any other host."""
    a, b = open_store(url, "job", 10), open_store(url, "job", 10)
    lease = a.lease()
    a.put(lease, "k", b"1")
    monkeypatch.setattr(time, "time", lambda: 1e12)
    b.keep([])
    b.keep([])
    assert b.get("k") == b"1" and a.keep([lease]) == set()


def test_agent_that_was_stopped_learns_that_its_lease_is_lost(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = open_store(url, "job", 10), open_store(url, "job", 10)
    lease = a.lease()
    a.put(lease, "k", b"1")
    b.keep([])
    now = time.monotonic
    monkeypatch.setattr(sqlite_module.time, "monotonic", lambda: now() + 11)
    b.keep([])
    assert b.get("k") is None and a.keep([lease]) == {lease}


def test_file_is_private_and_not_in_wal_mode(url: str, tmp_path: Path) -> None:
    open_store(url, "job").get("k")
    assert (tmp_path / "keys.db").stat().st_mode & 0o777 == 0o600
    db = sqlite3.connect(tmp_path / "keys.db")
    assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    db.close()


def test_many_processes_at_once(url: str) -> None:
    """Eight processes write and read 50 keys each; none gets an error, and all keys are there."""
    running = [
        subprocess.Popen([sys.executable, "-c", _WRITER, url, str(n)], stderr=subprocess.PIPE, text=True)
        for n in range(8)
    ]
    for process in running:
        said = process.communicate(timeout=PATIENCE)[1]
        assert (process.returncode, said) == (0, "")
    store = open_store(url, "job")
    assert all(store.get(f"{n}/{i}") == b"v" for n in range(8) for i in range(50))


def test_removed_file_is_made_anew(url: str, tmp_path: Path) -> None:
    store = open_store(url, "job")
    lease = store.lease()
    store.put(lease, "k", b"1")
    (tmp_path / "keys.db").unlink()
    assert store.get("k") is None and store.keep([lease]) == {lease}
    open_store(url, "job").put(open_store(url, "job").lease(), "k", b"2")
    assert store.get("k") == b"2"


def test_locked_file_is_an_error_in_time(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(url, "job")
    store.get("k")
    store.close()
    monkeypatch.setattr(sqlite_module, "PATIENCE_SECONDS", 0.3)
    db = sqlite3.connect(tmp_path / "keys.db", isolation_level=None)
    db.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreError, match="locked for too long"):  # otherwise it would wait for ever
        store.lease()
    db.execute("ROLLBACK")
    db.close()
    store.lease()


def test_files_that_are_no_store(url: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.db"
    path.write_text("a text that is no database\n" * 100)
    with pytest.raises(StoreError, match=f"{path}: .*not a database"):
        open_store(url, "job").get("k")
    path.unlink()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 9")
    db.close()
    with pytest.raises(StoreError, match="format 9"):
        open_store(url, "job").get("k")
    with pytest.raises(StoreError, match="directory"):
        open_store(f"sqlite://{tmp_path}/missing/keys.db", "job").get("k")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("", "not a store"),
        ("keys.db", "not a store"),
        ("redis://h", "not a store"),
        ("sqlite://", "absolute"),
        ("sqlite://keys.db", "absolute"),
        ("sqlite:///tmp/", "absolute"),
        ("sqlite:///tmp/k.db?sync=maybe", "on or off"),
        ("sqlite:///tmp/k.db?mode=wal", "no option 'mode'"),
        ("sqlite:///tmp/k.db?sync", "name=value"),
        ("sqlite:///tmp/k.db?sync=on&sync=off", "each once"),
        ("sqlite:///tmp/k.db#x", "'#'"),
        ("etcd://", "not host:port"),
        ("etcd://[::1", "no valid host"),
        ("etcd://root:secret@[::1", "no valid host"),
        ("etcd://h:0", "not host:port"),
        ("etcd://h:99999", "not host:port"),
        ("etcd://h,,g", "not host:port"),
        ("etcd://::1:2379", "not host:port"),
        ("etcd://root:secret@h", "must not contain a password"),
        ("etcd://h/job", "may follow the hosts"),
        ("etcd://h?user=x", "need each other"),
        ("etcd://h?cert=a", "need each other"),
        ("etcd://h?cert=a&key=b", "need ca"),
        ("etcd://h?color=red", "no option 'color'"),
        ("etcd://h?ca=/missing/ca.pem", "/missing/ca.pem: No such file"),
        ("etcd://h?user=x&password-file=/missing/pw", "/missing/pw: No such file"),
    ],
)
def test_bad_urls(url: str, text: str) -> None:
    with pytest.raises(ManapyError) as caught:
        open_store(url, "job")
    assert text in str(caught.value) and "\n" not in str(caught.value)
    assert isinstance(caught.value, StoreError if "missing" in url else UsageError)


@pytest.mark.parametrize("host", ["h", "[::1"])
def test_password_in_a_url_is_not_repeated(host: str) -> None:
    with pytest.raises(UsageError) as caught:
        Url(f"etcd://root:secret@{host}")
    assert "secret" not in str(caught.value)


def test_password_that_is_not_text(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="password: the password is not UTF-8"):
        open_store(f"etcd://h?user=x&password-file={password}", "job")

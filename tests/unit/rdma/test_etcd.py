"""Keys in a real etcd: the stores' contract, a killed leader, TLS and passwords; agents of two hosts that share a
cluster or a file."""

from __future__ import annotations

import errno
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ports import closed_port
from etcd_cluster import SERVER, Cluster, Tls, make_tls
from manapy.core.errors import StoreError
from manapy.rdma import etcd
from manapy.rdma.stores import open_store
from rdma_agents import Agent, Program
from test_store import contract
from waiting import PATIENCE, until

Start = Callable[..., Agent]
Run = Callable[..., Program]

pytestmark = [
    pytest.mark.rdma,
    pytest.mark.skipif(SERVER is None, reason="no etcd: apt install etcd-server"),
]


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of one member."""
    cluster = Cluster(tmp_path_factory.mktemp("etcd"), 1)
    yield cluster
    cluster.end()


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of three members."""
    (tmp_path / "etcd").mkdir()
    cluster = Cluster(tmp_path / "etcd", 3)
    yield cluster
    cluster.end()


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """Certificates."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make certificates with")
    return make_tls(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, tls: Tls) -> Iterator[Cluster]:
    """One member with TLS on both sides and with users: root, and manapy, which may use only our prefix."""
    cluster = Cluster(tmp_path_factory.mktemp("etcd"), 1, tls)
    cluster.add_users({"root": "r00t", "manapy": "hunter2", "nobody": "hunter2"}, {"manapy": b"/manapy/shift/"})
    yield cluster
    cluster.end()


def test_contract(single: Cluster) -> None:
    url = f"etcd://{single.endpoints}"
    contract(open_store(url, "contract", 5), open_store(url, "contract", 5), open_store(url, "other", 5))


def test_the_import_leaves_no_trace_in_the_environment(single: Cluster) -> None:
    """It must not change how programs started by this process use protobuf."""
    script = (
        f"import os; from manapy.rdma.stores import open_store; open_store('etcd://{single.endpoints}', "
        f"'job').get('k'); print('PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION' in os.environ)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_agents_of_two_hosts(agent: Start, program: Run, single: Cluster) -> None:
    two_hosts(agent, program, f"etcd://{single.endpoints}")


def test_agents_of_two_hosts_share_a_file(agent: Start, program: Run, short: Path) -> None:
    two_hosts(agent, program, f"sqlite://{short}/keys.db")


def two_hosts(agent: Start, program: Run, url: str) -> None:
    """Keys go from host to host. The keys of a program that dies vanish at once, those of a host that dies after the
    ttl, and no others."""
    hosts = [agent(name, "--ttl=2s", url=url, job="two") for name in ("a", "b", "c")]
    a, b, c = (program(host) for host in hosts)
    a.put("a", b"1")
    b.put("b", b"2")
    c.put("c", b"3")
    assert [b.get("a"), a.get("b"), a.get("c")] == [b"1", b"2", b"3"]
    a.put("a", b"changed")
    assert b.get("a") == b"changed", "who asks again gets the store's answer"
    hosts[2].kill(signal.SIGKILL)
    until(lambda: a.get("c") is None, "the end of the dead host's keys")
    b.kill()
    until(lambda: a.get("b") is None, "the end of the dead program's keys")
    assert a.get("a") == b"changed"


def test_cluster_is_there_without_its_leader(three: Cluster, agent: Start, program: Run) -> None:
    """The cluster works again in less than 30 s. No key is lost, the keys of living programs live beyond the ttl, and
    new ones can be written."""
    host, other, dead = (agent(name, "--ttl=5s", url=f"etcd://{three.endpoints}", job="ha") for name in ("a", "b", "c"))
    a, b = program(host), program(other)
    for i in range(10):
        a.put(f"k{i}", b"v")
    leader = three.leader()
    assert leader is not None
    three.kill(leader)
    until(lambda: a("put", "new", b"1") == (0, ""), "a put without the old leader")
    until(lambda: b("get", "new")[0] == 1, "a get without the old leader")
    program(dead).put("dead", b"v")
    dead.kill(signal.SIGKILL)
    until(lambda: b.get("dead") is None, "the end of keys that nobody keeps, which the new leader has granted last")
    assert [b.get(f"k{i}") for i in range(10)] == [b"v"] * 10
    assert host.status()["trouble"] is None


def test_every_endpoint_in_turn(three: Cluster) -> None:
    """The first endpoint is dead from the start. Then the one in use dies, and the first one is back."""
    store = open_store(f"etcd://{three.endpoints}", "turn", 60)
    three.kill(0)
    lease = store.lease()
    store.put(lease, "k", b"1")
    three.start(0)
    until(three.is_healthy, "the first member's return")
    three.kill(1)
    assert store.get("k") == b"1" and store.keep([lease]) == set()
    until(lambda: three.leader() is not None, "a leader")
    three.start(1)
    until(three.is_healthy, "the second member's return")
    three.kill(2)
    assert store.get("k") == b"1"
    store.close()


def test_no_majority_is_said_in_time(three: Cluster, agent: Start, program: Run) -> None:
    host = agent(url=f"etcd://{three.endpoints}")
    a = program(host)
    a("timeout", 30000)
    a.put("k", b"1")
    three.kill(0)
    three.kill(1)
    result, text = a("put", "k", b"2")
    assert result == -errno.EHOSTUNREACH and text.startswith("etcd://") and "\n" not in text
    three.start(0)
    until(lambda: a("connect") == (0, ""), "the cluster's return")
    assert a.get("k") == b"2"


def test_tls_and_password(
    secured: Cluster, tls: Tls, tmp_path: Path, agent: Start, program: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    password = tmp_path / "password"
    password.write_text("hunter2\n")
    with_tls = f"etcd://{secured.endpoints}?ca={tls.ca}&cert={tls.client_cert}&key={tls.client_key}"
    url = f"{with_tls}&user=manapy&password-file={password}"
    contract(open_store(url, "contract", 5), open_store(url, "contract", 5), open_store(url, "other", 5))
    host = agent(url=url)
    a = program(host)
    a.put("k", b"1")
    assert a.get("k") == b"1"
    assert "hunter2" not in Path(f"/proc/{host.process.pid}/cmdline").read_text()
    for bad, words in (
        (with_tls, "permission denied"),
        (url.replace("user=manapy", "user=nobody"), "permission denied"),
        (url.replace("user=manapy", "user=stranger"), "invalid user"),
        (f"etcd://{secured.endpoints}?ca={tls.ca}&user=manapy&password-file={password}", ""),
        (f"etcd://{secured.endpoints}", ""),
    ):
        # a client that is refused is told why
        monkeypatch.setattr(etcd, "PATIENCE_SECONDS", PATIENCE if words else 0.5)
        monkeypatch.setattr(etcd, "CALL_SECONDS", PATIENCE if words else 2.0)
        with pytest.raises(StoreError) as caught:
            open_store(bad, "job").get("k")
        text = str(caught.value)
        assert (
            words in text
            and text.startswith(f"etcd://{secured.endpoints}: ")
            and "\n" not in text
            and "hunter2" not in text
        )
    password.write_text("wrong")
    monkeypatch.setattr(etcd, "PATIENCE_SECONDS", PATIENCE)
    monkeypatch.setattr(etcd, "CALL_SECONDS", PATIENCE)
    with pytest.raises(StoreError, match="invalid user ID or password"):
        open_store(url, "job").get("k")


def test_token_that_has_expired(secured: Cluster, tls: Tls, tmp_path: Path) -> None:
    """A restarted server doesn't know earlier tokens: the client logs in again."""
    password = tmp_path / "password"
    password.write_text("hunter2\n")
    store = open_store(
        f"etcd://{secured.endpoints}?ca={tls.ca}&cert={tls.client_cert}&key={tls.client_key}&user=manapy"
        f"&password-file={password}",
        "token",
        60,
    )
    lease = store.lease()
    store.put(lease, "k", b"1")
    secured.kill(0)
    secured.start(0)
    until(secured.is_healthy, "the server's return")
    assert store.get("k") == b"1"
    store.delete(lease, "k")
    assert store.get("k") is None
    store.close()


def test_password_without_tls(tmp_path: Path) -> None:
    """gRPC refuses call credentials on such connections, so the token is sent as metadata."""
    (tmp_path / "etcd").mkdir()
    cluster = Cluster(tmp_path / "etcd", 1)
    try:
        cluster.add_users({"root": "r00t"}, {})
        (tmp_path / "password").write_text("r00t")
        url = f"etcd://{cluster.endpoints}?user=root&password-file={tmp_path}/password"
        contract(open_store(url, "contract", 5), open_store(url, "contract", 5), open_store(url, "other", 5))
    finally:
        cluster.end()


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    with closed_port() as port:
        store = open_store(f"etcd://127.0.0.1:{port}", "job")
        monkeypatch.setattr(etcd, "PATIENCE_SECONDS", 0.5)
        with pytest.raises(StoreError) as caught:
            store.get("k")
        assert (
            f"etcd://127.0.0.1:{port}: " in str(caught.value)
            and "refused" in str(caught.value)
            and "\n" not in str(caught.value)
        )
        monkeypatch.setattr(etcd, "PATIENCE_SECONDS", 10 * PATIENCE)
        begin = time.monotonic()
        with pytest.raises(StoreError):
            store.get("k")
        assert time.monotonic() - begin < PATIENCE, "once it is known to be gone, the next call doesn't wait as long"


def test_missing_package() -> None:
    script = (
        "import sys; sys.modules['etcd3'] = None\nfrom manapy.rdma.stores import open_store\n"
        "open_store('etcd://h', 'job')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    assert "StoreError: etcd needs the package etcd3, manapy's extra 'rdma'" in done.stderr

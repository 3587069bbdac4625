"""Keys in an etcd cluster:
`etcd://host[:port][,host[:port]...][?user=NAME&password-file=FILE][&ca=FILE][&cert=FILE&key=FILE]`.

`ca` turns TLS on. With `cert` and `key` the client sends its own certificate. A file contains a user's password. Keys
are /manapy/shift/JOB/KEY; a user needs the permission readwrite for this prefix. The client is the package etcd3
(manapy's extra rdma).

Invariants
 1. One endpoint is used at a time. A call that fails because a connection, a leader or a valid token is missing is
    tried again on the next endpoint, for PATIENCE_SECONDS. While the whole cluster is known to be gone, it is tried
    once on each endpoint. All calls may be repeated: a lease that was granted twice expires.
 2. The server may let a login's token expire at any time: if a token is refused, the client logs in again.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..core.errors import LeaseLostError, StoreError, UsageError, explained
from .store import PATIENCE_SECONDS, Lease, Store, Url

DEFAULT_PORT = 2379
CALL_SECONDS = 2.0  # for one endpoint to answer
_OPTIONS = "user, password-file, ca, cert, key"
_PREFIX = "/manapy/shift"
_PURE = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"

T = TypeVar("T")


class EtcdStore(Store):
    """One cluster."""

    threads = 4

    def __init__(self, url: Url, job: str, ttl: float) -> None:
        self._endpoints = [_endpoint(url, text) for text in url.place.split(",")]
        if url.path not in ("", "/"):
            raise UsageError(
                f"{url.text}: only options (?user=...) may follow the hosts: the job is the prefix of the keys"
            )
        self._user, password_file = url.take("user"), url.take("password-file")
        if (self._user is None) != (password_file is None):
            raise UsageError(f"{url.text}: user and password-file need each other")
        self._tls = {"ca_cert": url.take("ca"), "cert_cert": url.take("cert"), "cert_key": url.take("key")}
        if (self._tls["cert_cert"] is None) != (self._tls["cert_key"] is None):
            raise UsageError(f"{url.text}: cert and key need each other")
        if self._tls["cert_cert"] is not None and self._tls["ca_cert"] is None:
            raise UsageError(f"{url.text}: cert and key need ca, which authenticates the server")
        url.done(_OPTIONS)
        self._password = None if password_file is None else _password(Path(password_file))
        for path in filter(None, self._tls.values()):
            _read(Path(path))
        self._etcd3, self._grpc = packages()
        self._rpc = self._etcd3.etcdrpc
        self._url, self._prefix, self._ttl = f"etcd://{url.place}", f"{_PREFIX}/{job}/", max(1, round(ttl))
        self._lock = threading.Lock()
        self._client: Any = None
        self._at = 0  # index of the endpoint in use
        self._gone = False  # the last call found no endpoint that works

    def lease(self) -> Lease:
        return str(self._call(lambda c: c.lease(self._ttl)).id)

    def keep(self, leases: Sequence[Lease]) -> set[Lease]:
        def ended(lease: Lease) -> bool:
            return not any(answer.TTL > 0 for answer in self._call(lambda c: list(c.refresh_lease(int(lease)))))

        return {lease for lease in leases if ended(lease)}

    def revoke(self, lease: Lease) -> None:
        try:
            self._call(lambda c: c.revoke_lease(int(lease)))
        except LeaseLostError:
            pass

    def put_all(self, lease: Lease, pairs: Mapping[str, bytes]) -> None:
        rpc = self._rpc
        self._transact(
            rpc.RequestOp(request_put=rpc.PutRequest(key=self._name(key), value=value, lease=int(lease)))
            for key, value in pairs.items()
        )

    def get_all(self, keys: Sequence[str]) -> list[bytes | None]:
        rpc = self._rpc
        answers = self._transact(rpc.RequestOp(request_range=rpc.RangeRequest(key=self._name(key))) for key in keys)
        found = (answer.response_range.kvs for answer in answers)
        return [bytes(pairs[0].value) if pairs else None for pairs in found]

    def delete_all(self, lease: Lease, keys: Sequence[str]) -> None:
        """Delete each key on its own condition: a nested transaction per key."""
        rpc = self._rpc

        def unless_foreign(name: bytes) -> Any:
            mine = rpc.Compare(result=rpc.Compare.EQUAL, target=rpc.Compare.LEASE, key=name, lease=int(lease))
            return rpc.TxnRequest(
                compare=[mine], success=[rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=name))]
            )

        self._transact(rpc.RequestOp(request_txn=unless_foreign(self._name(key))) for key in keys)

    def _name(self, key: str) -> bytes:
        return (self._prefix + key).encode()

    def _transact(self, operations: Iterable[Any]) -> Any:
        """Run one transaction. Its messages are made here, as etcd3 has no nested ones and no comparison with a
        lease."""
        request = self._rpc.TxnRequest(success=list(operations))
        return self._call(lambda c: c.kvstub.Txn(request, CALL_SECONDS, metadata=c.metadata)).responses

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None

    # ---- endpoints

    def _call(self, work: Callable[[Any], T]) -> T:
        """Invariant 1."""
        deadline, tries = time.monotonic() + PATIENCE_SECONDS, 0
        while True:
            client = None
            try:
                client = self._connected()
                result = work(client)
                self._gone = False
                return result
            except (self._etcd3.Etcd3Exception, self._grpc.RpcError) as error:
                code, text = self._cause(error)
                if code == "NOT_FOUND" and "lease" in text:
                    raise LeaseLostError(f"{self._url}: the lease has ended") from error
                if code not in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "UNAUTHENTICATED"):
                    raise StoreError(f"{self._url}: {text}") from error
                self._drop(client)
                tries += 1
                if tries >= len(self._endpoints) and (self._gone or time.monotonic() > deadline):
                    self._gone = True
                    raise StoreError(f"{self._url}: {text}") from error
            time.sleep(0.05 if tries < len(self._endpoints) else 0.2)

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                host, port = self._endpoints[self._at % len(self._endpoints)]
                # a new channel does not inherit the back-off of an old one
                options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
                login = {"user": self._user, "password": self._password}
                self._client = self._etcd3.Etcd3Client(
                    host, port, timeout=CALL_SECONDS, grpc_options=options, **self._tls, **login
                )
                # the token is in the metadata; as credentials, gRPC would refuse it on connections without TLS
                self._client.call_credentials = None
            return self._client

    def _drop(self, client: Any) -> None:
        """Drop a connection, so that the next call uses the next endpoint; unless another thread has dropped it
        already."""
        with self._lock:
            if self._client is client:
                self._at += 1
                if client is not None:
                    client.close()
                self._client = None

    def _cause(self, error: Exception) -> tuple[str, str]:
        """The name of the status, and its text. etcd3's own exceptions only have the exception that caused them."""
        cause = error.__context__ if isinstance(error, self._etcd3.Etcd3Exception) else error
        if not isinstance(cause, self._grpc.RpcError):
            return "UNKNOWN", str(error) or type(error).__name__
        text = " ".join((cause.details() or "").split())
        if "last error: " in text:  # gRPC's list of all that it has tried
            text = text.rpartition("last error: ")[2]
        # a member without a leader whose own limit was up before ours
        if cause.code().name == "UNKNOWN" and "deadline exceeded" in text:
            return "DEADLINE_EXCEEDED", text
        # some versions say so instead of UNAUTHENTICATED
        if cause.code().name == "INVALID_ARGUMENT" and "token" in text:
            return "UNAUTHENTICATED", text
        return cause.code().name, text.removeprefix("etcdserver: ") or cause.code().name


def _endpoint(url: Url, text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, port = host or text, str(DEFAULT_PORT)
    if (
        not host
        or (":" in host and not host.startswith("["))
        or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536)
    ):
        raise UsageError(f"{url.text}: '{text}' is not host:port")
    return host, int(port)


def _read(path: Path) -> bytes:
    with explained(StoreError):
        return path.read_bytes()


def _password(path: Path) -> str:
    try:
        return _read(path).decode().rstrip("\n")
    except UnicodeDecodeError:
        raise UsageError(f"{path}: the password is not UTF-8") from None


def packages() -> tuple[Any, Any]:
    """Import etcd3 and grpc. protobuf reads etcd3's old generated messages only in its pure Python implementation,
    which a variable selects during the import."""
    before = os.environ.get(_PURE)
    os.environ[_PURE] = "python"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # hundreds, of that age
            import etcd3
            import grpc
    except ImportError as error:
        raise StoreError(f"etcd needs the package etcd3, manapy's extra 'rdma' ({error})") from error
    except TypeError as error:
        raise StoreError(
            f"etcd3 can't be used in a process that has imported protobuf before ({str(error).splitlines()[0]})"
        ) from error
    finally:
        if before is None:
            os.environ.pop(_PURE, None)
        else:
            os.environ[_PURE] = before
    return etcd3, grpc

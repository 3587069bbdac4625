"""A real etcd cluster on this host, in its own processes."""

from __future__ import annotations

import shutil
import signal
import subprocess
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manapy.rdma.etcd import packages
from ports import free_ports
from waiting import until

SERVER = shutil.which("etcd")


@dataclass
class Tls:
    """The files of the authority, of the server and of a client."""

    ca: Path
    cert: Path
    key: Path
    client_cert: Path
    client_key: Path


class Cluster:
    """`size` members in a directory."""

    def __init__(self, directory: Path, size: int, tls: Tls | None = None) -> None:
        self.dir, self.size, self.tls = directory, size, tls
        ports = free_ports(2 * size)
        self.ports, self._peers = ports[:size], ports[size:]
        self._scheme = "http" if tls is None else "https"
        self.members: list[subprocess.Popen[bytes] | None] = [None] * size
        for number in range(size):
            self.start(number)
        until(self.is_healthy, "the etcd cluster")

    def start(self, number: int) -> None:
        """Start one member, also again after it was killed."""
        client, peer = f"{self._scheme}://127.0.0.1:{self.ports[number]}", f"http://127.0.0.1:{self._peers[number]}"
        everybody = ",".join(f"m{i}=http://127.0.0.1:{port}" for i, port in enumerate(self._peers))
        command = [
            SERVER or "etcd",
            "--name",
            f"m{number}",
            "--data-dir",
            str(self.dir / f"m{number}"),
            "--log-level",
            "error",
        ]
        command += [
            "--listen-client-urls",
            client,
            "--advertise-client-urls",
            client,
            "--listen-peer-urls",
            peer,
            "--initial-advertise-peer-urls",
            peer,
        ]
        command += ["--initial-cluster", everybody, "--initial-cluster-token", self.dir.name]
        if self.tls is not None:
            command += [
                "--cert-file",
                str(self.tls.cert),
                "--key-file",
                str(self.tls.key),
                "--trusted-ca-file",
                str(self.tls.ca),
                "--client-cert-auth",
            ]
        with (self.dir / f"m{number}.log").open("ab") as log:
            self.members[number] = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.dir)

    @property
    def endpoints(self) -> str:
        """The endpoints as in a store's URL."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def is_healthy(self) -> bool:
        """All members that should be there have a leader."""
        return len(self._statuses()) == self.size and self.leader() is not None

    def leader(self) -> int | None:
        """The number of the member that leads."""
        for number, status in self._statuses().items():
            if status.leader == status.header.member_id:
                return number
        return None

    def _statuses(self) -> dict[int, Any]:
        found = {}
        for number, member in enumerate(self.members):
            with suppress(packages()[1].RpcError), closing(self._client(number)) as client:
                if member is not None:
                    found[number] = client.maintenancestub.Status(packages()[0].etcdrpc.StatusRequest(), 2.0)
        return found

    def _client(self, number: int) -> Any:
        tls = (
            {}
            if self.tls is None
            else {
                "ca_cert": str(self.tls.ca),
                "cert_cert": str(self.tls.client_cert),
                "cert_key": str(self.tls.client_key),
            }
        )
        options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
        return packages()[0].Etcd3Client("127.0.0.1", self.ports[number], grpc_options=options, **tls)

    def add_users(self, passwords: dict[str, str], prefixes: dict[str, bytes]) -> None:
        """Add users with their passwords, root among them, and give each the right to read and write below a prefix.
        From now on every client needs a password."""
        rpc = packages()[0].etcdrpc
        with closing(self._client(0)) as client:
            auth = rpc.AuthStub(client.channel)
            for user, password in passwords.items():
                auth.UserAdd(rpc.AuthUserAddRequest(name=user, password=password))
                auth.RoleAdd(rpc.AuthRoleAddRequest(name=user))
                auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user=user, role=user))
                if prefix := prefixes.get(user):
                    end = prefix[:-1] + bytes([prefix[-1] + 1])
                    permission = {"permType": 2, "key": prefix, "range_end": end}  # 2: READWRITE
                    auth.RoleGrantPermission(rpc.AuthRoleGrantPermissionRequest(name=user, perm=permission))
            auth.AuthEnable(rpc.AuthEnableRequest())

    def kill(self, number: int) -> None:
        """Kill a member, as a crash of its host would."""
        member = self.members[number]
        assert member is not None
        member.send_signal(signal.SIGKILL)
        member.wait()
        self.members[number] = None

    def end(self) -> None:
        """End all members that still run."""
        for number, member in enumerate(self.members):
            if member is not None:
                self.kill(number)


def make_tls(directory: Path) -> Tls:
    """A certificate authority, a server for 127.0.0.1 and a client, made with openssl."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=directory, timeout=60)

    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=authority")
    (directory / "san").write_text("subjectAltName=IP:127.0.0.1")
    for name, more in (("server", ["-extfile", "san"]), ("client", [])):
        openssl("req", *curve, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/O={name}")
        openssl(
            "x509",
            "-req",
            "-in",
            f"{name}.csr",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-out",
            f"{name}.pem",
            "-days",
            "2",
            *more,
        )
    return Tls(*(directory / name for name in ("ca.pem", "server.pem", "server.key", "client.pem", "client.key")))

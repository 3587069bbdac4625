"""The handshake; C and Python compute the same hashes."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import random
import resource
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_jobs import PATIENCE, fake_job
from manapy.ckpt import command, protocol
from manapy.ckpt.coordinator import connections
from manapy.ckpt.store import job
from manapy.core import connection, handshake, processes
from manapy.core.errors import CoordinatorError


def test_c_digests_match_hashlib(driver: Callable[[str], Path]) -> None:
    generator = random.Random(1)
    cases = [(b"", b""), (b"k", b""), (b"", b"m")]
    cases += [
        (generator.randbytes(k), generator.randbytes(m))
        for k in (1, 32, 63, 64, 65, 200)
        for m in (0, 1, 55, 56, 57, 63, 64, 65, 119, 120, 1000)
    ]
    text = "".join(f"{k.hex() or '-'} {m.hex() or '-'}\n" for k, m in cases)
    output = subprocess.run(
        [str(driver("digest"))], input=text, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    expected = [f"{hashlib.sha256(m).hexdigest()} {hmac.digest(k, m, 'sha256').hex()}" for k, m in cases]
    assert output == expected


def test_both_sides_agree() -> None:
    secret, server_nonce = b"s" * 32, handshake.nonce()
    line, expected = handshake.answer(secret, handshake.greeting(server_nonce), "rank")
    assert handshake.admit(secret, server_nonce, line) == ("rank", expected)


@pytest.mark.parametrize("change", ["secret", "nonce", "role", "hash", "fields"])
def test_denied(change: str) -> None:
    secret, server_nonce = b"s" * 32, handshake.nonce()
    line, _ = handshake.answer(b"x" * 32 if change == "secret" else secret, handshake.greeting(server_nonce), "rank")
    fields = line.split(" ")
    if change == "nonce":
        server_nonce = handshake.nonce()
    elif change == "role":
        fields[1] = "command"
    elif change == "hash":
        fields[3] = fields[3][:-1] + ("0" if fields[3][-1] != "0" else "1")
    elif change == "fields":
        fields.append("more")
    assert handshake.admit(secret, server_nonce, " ".join(fields)) is None


@pytest.mark.parametrize("greeting", ["", "HTTP/1.1 200 OK", "MANAPY 1 short", "MANAPY 99 " + "0" * 32])
def test_not_a_coordinator(greeting: str) -> None:
    with pytest.raises(CoordinatorError):
        handshake.answer(b"s" * 32, greeting, "command")


def test_wrong_secret_is_named(tmp_path: Path) -> None:
    async def run() -> None:
        async with fake_job(tmp_path / "job", 1) as fake:
            good = (fake.dir / "secret").read_bytes()
            (fake.dir / "secret").write_bytes(bytes(32))
            with pytest.raises(CoordinatorError, match="secret"):
                await asyncio.to_thread(command.status, job.read(fake.dir))
            assert not await asyncio.to_thread(job.read(fake.dir).is_live)
            (fake.dir / "secret").write_bytes(good)
            assert (await asyncio.to_thread(command.status, job.read(fake.dir)))["id"] == "test"

    asyncio.run(run())


def test_nothing_is_done_without_authentication(tmp_path: Path) -> None:
    async def run() -> None:
        async with fake_job(tmp_path / "job", 1) as fake:
            record = job.read(fake.dir)
            reader, writer = await asyncio.open_connection(record.host, record.port)
            await reader.readline()
            writer.write(b"STOP 0\n")
            assert await reader.read() == b"DENIED\n"
            writer.close()
            assert fake.ranks[0].seen == []

    asyncio.run(run())


def test_strangers_keep_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When descriptors are scarce, the oldest silent connections are closed."""
    monkeypatch.setattr(connections, "HANDSHAKE_SECONDS", 10 * PATIENCE)

    async def run() -> None:
        async with fake_job(tmp_path / "job", 2, connect=False, agents=0) as fake:
            record = job.read(fake.dir)
            with monkeypatch.context() as patched:
                patched.setattr(processes, "RESERVED", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
                silent = [await asyncio.open_connection(record.host, record.port) for _ in range(10)]
                for reader, _ in silent[:-1]:
                    assert (await asyncio.wait_for(reader.read(), PATIENCE)).startswith(b"MANAPY ")
                assert (await fake.status())["id"] == "test"
            await fake.join(*fake.ranks)
            assert "RESULT ok" in await fake.checkpoint()
            for _, writer in silent:
                writer.close()

    asyncio.run(run())


def test_line_of_a_stranger_that_is_too_long(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with fake_job(tmp_path / "job", 1) as fake:
            record = job.read(fake.dir)
            reader, writer = await asyncio.open_connection(record.host, record.port)
            writer.write(bytes(3 * protocol.LINE_MAX))
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
            assert "RESULT ok" in await fake.checkpoint()

    asyncio.run(run())
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("trick", ["inserted", "repeated", "altered", "left out", "reflected"])
def test_altered_stream(tmp_path: Path, trick: str) -> None:
    """The coordinator accepts nothing from a rank's connection after the first line that the rank didn't send there."""

    async def run() -> None:
        async with fake_job(tmp_path / "job", 1) as fake:
            (rank,) = fake.ranks
            assert "RESULT ok" in await fake.checkpoint()
            first, second = rank.seals.seal(b"PROGRAM up x -"), rank.seals.seal(b"DONE 0")
            theirs = handshake.Seals(b"s" * 32, "0" * 32, "1" * 32, "rank", client=True)
            stream = {
                "inserted": [b"DONE 0"],
                "repeated": [first, first],
                "altered": [first, second.replace(b"0", b"1")],
                "left out": [second],
                "reflected": [theirs.seal(b"DONE 0")],
            }[trick]
            rank.writer.write(b"".join(line + b"\n" for line in stream))
            await asyncio.wait_for(rank.closed.wait(), PATIENCE)
            assert not fake.coordinator.ranks.known[0].done

    asyncio.run(run())


def test_altered_answer(tmp_path: Path) -> None:
    """A command rejects an answer without its seal."""
    secret = b"s" * 32
    (tmp_path / "secret").write_bytes(secret)
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with theirs, theirs.makefile("rb") as stream:
            nonce = handshake.nonce()
            theirs.sendall(f"{handshake.greeting(nonce)}\n".encode())
            admitted = handshake.admit(secret, nonce, stream.readline().decode().rstrip("\n"))
            assert admitted is not None
            theirs.sendall(f"{admitted[1]}\n{'0' * handshake.SEAL_HEX} RESULT ok x\n".encode())
            stream.readline()

    thread = threading.Thread(target=serve)
    thread.start()
    with connection.Connection(
        ours, secret, handshake.COORDINATOR, what="job", lost="lost", secret_path="s", timeout=PATIENCE, limit=1000
    ) as client:
        with pytest.raises(CoordinatorError, match="changed on the network"):
            client.receive()
    thread.join()

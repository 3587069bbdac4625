"""The agent of a job on one host. It keeps the keys of the host's programs in the job's store, answers their questions
about keys of other hosts, and passes events up and commands down. `manapy rdma run` or `manapy rdma agent` starts it as
a process (serve). For a job of manapy-launch it is a part of another process (host.py). Protocol: kv_protocol.py.

A client is a program with its RNICs. The agent knows it by the name that it has given itself, not by its connection: it
returns after a lost connection.

Invariants
 1. A client's keys live under one lease of the store. They vanish when the client has said BYE, when its process has
    ended (watched through a pidfd: a child that it has forked may hold the connection open), or when its connection
    is gone and it has not returned within RETURN_SECONDS.
 2. If the agent dies, its leases stay until they expire; clients connect to the next agent and put their keys again,
    under leases of that one. A store lets a key belong to the lease under which it was put last, so the expiry
    of the old lease removes nothing.
 3. If a lease is lost while the client is there (the store could not be reached for too long, or the agent was
    stopped), the agent puts all of the client's keys again under a new lease. `keys` has them in memory: those that the
    store has confirmed.
 4. Answers may be old, but not older than CACHE_SECONDS. Values are cached, absence is not. A client that asks again
    for a key has found the agent's answer stale (a queue pair's number was used again), and gets the store's answer.
    Changes by this host's own clients are in the cache at once.
 5. Each request is answered, whatever the store does. An error costs the program only this answer.
 6. Only the thread of the event loop touches the state. The store's methods run on other threads.
 7. Once the agent ends, it answers no more requests, although it needs a moment to close its store: a client that gets
    OK would rely on an agent that is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from .. import __version__
from ..core import handshake, proc, processes
from ..core.errors import LeaseLostError, StoreError, why
from ..core.tasks import Tasks
from . import kv_protocol
from .ledger import Ledger, State, parse
from .guard import Guard
from .place import Place
from .store import KEYS_MAX, Lease, Store

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 10.0
RETURN_SECONDS = 30.0
CACHE_SECONDS = 10.0
CACHE_KEYS = 1 << 16
BACKLOG_MAX = 1 << 22  # bytes that a watcher may lag behind before its connection is closed

T = TypeVar("T")


@dataclass(eq=False)
class Client:
    """A program that the agent knows. pid: 0 if unknown (a process of another pid namespace)."""

    id: str
    pid: int
    rank: int | None
    since: float  # seconds since the epoch
    lease: Lease | None = None
    keys: dict[str, bytes] = field(default_factory=dict)
    writer: asyncio.StreamWriter | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # only one operation at a time uses the lease
    leaving: asyncio.TimerHandle | None = None
    gone: bool = False

    def about(self) -> dict[str, Any]:
        """The members that the agent adds to each of its events."""
        return {"pid": self.pid, "rank": self.rank}


@dataclass
class Cached:
    """A value, and the clients that have received it from this agent."""

    value: bytes
    until: float  # monotonic
    asked: set[str] = field(default_factory=set)


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class RdmaAgent:
    """The agent of one job on one host. linger: seconds without a client or process after which it ends; None: not by
    itself.

    stay: the process that has started it. The agent stays for this process from the beginning, as its request may be
    late.
    """

    def __init__(
        self, place: Place, url: str, store: Store, linger: float | None, ttl: float, stay: int | None = None
    ) -> None:
        self.place, self.url, self.linger, self.ttl = place, url, linger, ttl
        self.clients: dict[str, Client] = {}
        self.ledger = Ledger()
        self.guard = Guard(lambda event: self._publish("agent", {"pid": os.getpid(), "rank": None}, event))
        self.trouble: str | None = "not connected yet"  # what is wrong with the store
        self._store = store
        self._threads = ThreadPoolExecutor(store.threads, "store")
        self._secret = place.secret.read_bytes()
        self._identity = place.identity()
        self._kept = place.keep()
        self._cache: OrderedDict[str, Cached] = OrderedDict()
        self._watchers: dict[asyncio.StreamWriter, int] = {}  # and the number of their request
        self._staying: set[int] = set()  # pids
        self._first = stay
        self._tasks = Tasks(log)
        self._over = asyncio.Event()
        self._idle_since = time.monotonic()

    # ---- life

    async def run(self, listener: socket.socket, ready: Callable[[str], None]) -> None:
        """Serve until no process needs the agent. ready() is called after the first try of the store: "ready", or
        "waiting" and the reason."""
        if self._first is not None:
            self._stay(self._first)
        # tasks of our own: asyncio logs a traceback if one of its own is cancelled before it begins
        server = await asyncio.start_unix_server(
            lambda reader, writer: self._tasks.spawn(self._accept(reader, writer)),
            sock=listener,
            limit=kv_protocol.LINE_MAX,
        )
        log.info("manapy %s: agent of job %s, pid %d, keys in %s", __version__, self.place.job, os.getpid(), self.url)
        with contextlib.suppress(StoreError):
            await self._ask(self._store.get, "agent")
        ready("ready" if self.trouble is None else f"waiting {self.trouble}")
        self._tasks.spawn(self._keep_leases())
        if self.linger is not None:
            self.end_when_idle(self.linger)
        await self._over.wait()
        server.close()
        self.guard.cancel()
        self._tasks.cancel()
        with contextlib.suppress(StoreError):
            await asyncio.get_running_loop().run_in_executor(self._threads, self._store.close)
        self._threads.shutdown()
        os.close(self._kept)
        log.info("the agent has ended")

    def _stay(self, pid: int) -> None:
        """Stay as long as this process lives (0: unknown)."""
        if pid and pid not in self._staying:
            self._staying.add(pid)
            processes.watch(pid, lambda: self._staying.discard(pid))

    def end_when_idle(self, linger: float) -> None:
        """End, from now on, after that many seconds without a client or process."""
        self._tasks.spawn(self._end_when_idle(linger))

    async def _end_when_idle(self, linger: float) -> None:
        """The lock makes the decision and the removal of the socket one step for processes that look for an agent."""
        while True:
            await asyncio.sleep(max(0.05, min(1.0, linger / 4)))
            if self.clients or self._staying:
                self._idle_since = time.monotonic()
                continue
            if time.monotonic() - self._idle_since < linger:
                continue
            try:
                with self.place.locked(wait=False) as free:
                    if not free:
                        continue
                    if self.place.identity() == self._identity:
                        self.place.remove()
            except OSError as error:
                log.warning(why(error))
            self._over.set()
            return

    def end(self) -> None:
        """End now. Programs may still run, so their keys remain for the next agent until the leases expire."""
        if self._over.is_set():
            return
        try:
            with self.place.locked():
                if self.place.identity() == self._identity:
                    self.place.address.unlink()
        except OSError as error:
            log.warning(why(error))
        self._over.set()

    # ---- the store

    async def _ask(self, method: Callable[..., T], *arguments: Any) -> T:
        """Call the store on another thread. Its trouble is logged when it changes."""
        try:
            result = await asyncio.get_running_loop().run_in_executor(self._threads, method, *arguments)
        except LeaseLostError:
            raise
        except StoreError as error:
            if self.trouble != str(error):
                log.error("%s", error)
            self.trouble = str(error)
            raise
        if self.trouble is not None:
            log.info("the store is reached")
        self.trouble = None
        return result

    async def _keep_leases(self) -> None:
        while True:
            await asyncio.sleep(self.ttl / 3)
            held = {c.lease: c for c in self.clients.values() if c.lease is not None}
            try:
                for lease in await self._ask(self._store.keep, list(held)):
                    client = held[lease]
                    async with client.turn:
                        if client.lease == lease and not client.gone:
                            log.warning(
                                "the lease of process %d was lost: its %d keys are put again",
                                client.pid,
                                len(client.keys),
                            )
                            await self._put_again(client)
            except StoreError:
                pass  # it is logged; a lost lease is noticed later

    async def _put(self, client: Client, pairs: dict[str, bytes]) -> None:
        """Put keys. The caller holds the client's turn."""
        if client.lease is None:
            client.lease = await self._ask(self._store.lease)
        try:
            await self._ask(self._store.put_all, client.lease, pairs)
        except LeaseLostError:
            await self._put_again(client)
            await self._ask(self._store.put_all, client.lease, pairs)
        client.keys.update(pairs)

    async def _put_again(self, client: Client) -> None:
        """Invariant 3. The caller holds the client's turn."""
        client.lease = await self._ask(self._store.lease)
        held = list(client.keys.items())
        for start in range(0, len(held), KEYS_MAX):
            await self._ask(self._store.put_all, client.lease, dict(held[start : start + KEYS_MAX]))

    # ---- clients

    def _come(self, id: str, rank: str, pid: int, writer: asyncio.StreamWriter) -> tuple[Client, bool]:
        """A client has connected. Returns whether it was known."""
        client = self.clients.get(id)
        known = client is not None
        if client is None:
            client = self.clients[id] = Client(id, pid, None if rank == "-" else int(rank), time.time())
            processes.watch(pid, lambda: self._leave(client, "its process has ended"))
        elif client.writer is not None:
            client.writer.close()
        if client.leaving is not None:
            client.leaving.cancel()
            client.leaving = None
        client.writer = writer
        return client, known

    def _lose(self, client: Client, writer: asyncio.StreamWriter) -> None:
        """A connection has ended (invariant 1). The pidfd tells if the process has ended, too."""
        if client.writer is writer and not client.gone:
            client.writer = None
            client.leaving = asyncio.get_running_loop().call_later(
                RETURN_SECONDS, self._leave, client, "it has not come back"
            )

    def _leave(self, client: Client, why: str) -> None:
        if not client.gone:
            self._tasks.spawn(self._forget(client, why))

    async def _forget(self, client: Client, why: str) -> None:
        client.gone = True
        async with client.turn:
            if self.clients.get(client.id) is client:
                del self.clients[client.id]
            self.ledger.forget(client.id)
            for key in client.keys:
                self._cache.pop(key, None)
            log.info("process %d is gone (%s), %d keys", client.pid, why, len(client.keys))
            if client.writer is not None:
                client.writer.close()
            if client.lease is not None:
                with contextlib.suppress(StoreError):  # then the lease expires
                    await self._ask(self._store.revoke, client.lease)

    # ---- connections

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            pid, uid = processes.peer(writer.get_extra_info("socket"))
            if uid != os.getuid():
                log.warning("a connection of user %d was refused", uid)
                return
            admitted = await asyncio.wait_for(
                handshake.admit_stream(reader, writer, self._secret, kv_protocol.AGENT), HANDSHAKE_SECONDS
            )
            role = admitted[0] if admitted is not None else None
            if role == "program":
                await self._serve_program(reader, writer, pid)
            elif role == "command":
                await self._serve_command(reader, writer, pid)
        except (ConnectionError, TimeoutError, asyncio.CancelledError):
            pass  # cancelled: the agent ends
        except Exception:
            log.exception("a connection")
        finally:
            writer.close()

    async def _requests(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        kinds: dict[str, int],
        serve: Callable[[kv_protocol.Request], Any],
    ) -> None:
        """Answer each request with the result of serve(), until the connection ends or a request is invalid."""
        while True:
            try:
                line = await reader.readline()
            except ValueError:  # longer than LINE_MAX
                return
            if not line.endswith(b"\n") or self._over.is_set():  # invariant 7
                return
            try:
                request = kv_protocol.parse(line, kinds)
            except kv_protocol.Malformed as error:
                if error.number is None:
                    return
                answer = f"{error.number} ERROR EINVAL {error}"
            else:
                try:
                    answer = f"{request.number} {await serve(request)}"
                except Refused as error:
                    answer = f"{request.number} ERROR {error.code} {error}"
                except StoreError as error:
                    answer = f"{request.number} ERROR EHOSTUNREACH {error}"
            writer.write(answer.encode(errors="replace") + b"\n")
            await writer.drain()

    async def _serve_program(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pid: int) -> None:
        client: Client | None = None

        async def serve(request: kv_protocol.Request) -> str:
            nonlocal client
            fields = request.fields
            if request.kind == "HELLO":
                if fields[0] != self.place.job:
                    raise Refused("EACCES", f"this agent serves the job {self.place.job}, not {fields[0]}")
                client, known = self._come(fields[1], fields[2], pid, writer)
                return "OK known" if known else "OK new"
            # late requests of an abandoned connection must not undo later ones
            if client is None or client.gone or client.writer is not writer:
                raise Refused("EINVAL", "HELLO must be first")
            match request.kind:
                case "PUT":
                    pairs = {key: bytes.fromhex(value) for key, value in zip(fields[::2], fields[1::2], strict=True)}
                    async with client.turn:
                        await self._put(client, pairs)
                    for key, value in pairs.items():
                        self._remember(key, value)
                    return "OK"
                case "GET":
                    found = await self._get(client, fields)
                    return " ".join(["OK", *("-" if value is None else value.hex() for value in found)])
                case "DEL":
                    async with client.turn:
                        if client.lease is not None:
                            await self._ask(self._store.delete_all, client.lease, fields)
                        for key in fields:
                            client.keys.pop(key, None)
                    for key in fields:
                        self._cache.pop(key, None)
                    return "OK"
                case "EVENT":
                    return self._on_event(client, fields[0])
                case _:  # BYE
                    self._leave(client, "it has announced its end")
                    return "OK"

        try:
            await self._requests(reader, writer, kv_protocol.FROM_PROGRAM, serve)
        finally:
            if client is not None:
                self._lose(client, writer)

    async def _get(self, client: Client, keys: list[str]) -> list[bytes | None]:
        """Invariant 4."""
        found: dict[str, bytes | None] = {}
        for key in keys:
            cached = self._cache.get(key)
            if cached is not None and cached.until > time.monotonic() and client.id not in cached.asked:
                cached.asked.add(client.id)
                found[key] = cached.value
        unknown = [key for key in keys if key not in found]
        for key, value in zip(unknown, await self._ask(self._store.get_all, unknown) if unknown else (), strict=True):
            found[key] = value
            if value is None:
                self._cache.pop(key, None)
            else:
                self._remember(key, value).asked.add(client.id)
        return [found[key] for key in keys]

    def _remember(self, key: str, value: bytes) -> Cached:
        entry = self._cache[key] = Cached(value, time.monotonic() + CACHE_SECONDS)
        self._cache.move_to_end(key)
        while len(self._cache) > CACHE_KEYS:
            self._cache.popitem(last=False)
        return entry

    # ---- events and commands

    def _on_event(self, client: Client, text: str) -> str:
        try:
            sent = parse(text)
        except (ValueError, RecursionError) as error:
            raise Refused("EINVAL", f"not an event: {error}") from None
        for event in sent:
            self._publish(client.id, client.about(), event)
            self.guard.on_event(client.pid, event["event"])
        return "OK"

    def _publish(self, client: str, about: dict[str, Any], sent: State) -> None:
        """Store an event, and pass it to all watchers."""
        event = self.ledger.add(client, about, sent)
        line = json.dumps(event)
        for writer, number in list(self._watchers.items()):
            if writer.transport.get_write_buffer_size() > BACKLOG_MAX:
                writer.transport.abort()
                del self._watchers[writer]
            else:
                writer.write(f"{number} EVENT {line}\n".encode())

    async def _serve_command(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pid: int) -> None:
        async def serve(request: kv_protocol.Request) -> str:
            match request.kind:
                case "STATUS":
                    return f"OK {json.dumps(self.status())}"
                case "EVENTS":
                    return f"OK {json.dumps(list(self.ledger.after(int(request.fields[0]))))}"
                case "STAY":
                    self._stay(pid if request.fields[0] == "-" else int(request.fields[0]))
                    return "OK"
                case "GUARD":
                    whose, directory = request.fields[0].split(" ", 1)
                    self.guard.add(int(whose), Path(directory))
                    processes.watch(int(whose), lambda: self.guard.remove(int(whose)))
                    return "OK"
                case "MOVE":
                    return f"OK {self._move(*request.fields)}"
                case _:  # WATCH
                    self._watchers[writer] = request.number
                    old = "".join(
                        f"\n{request.number} EVENT {json.dumps(event)}"
                        for event in self.ledger.after(int(request.fields[0]))
                    )
                    return f"OK{old}"

        try:
            await self._requests(reader, writer, kv_protocol.FROM_COMMAND, serve)
        finally:
            self._watchers.pop(writer, None)

    def _move(self, target: str, qp: str, device: str) -> int:
        here = [c for c in self.clients.values() if c.writer is not None and not c.gone]
        chosen = [c for c in here if target == "*" or str(c.rank) == target] or [
            c for c in here if str(c.pid) == target
        ]
        if not chosen:
            there = ", ".join(sorted(str(c.pid) if c.rank is None else f"{c.pid} (rank {c.rank})" for c in here))
            raise Refused(
                "ENOENT",
                (
                    f"no program with rank or process id {target} on this host: there "
                    f"{'are ' + there if there else 'is none'}"
                ),
            )
        for client in chosen:
            assert client.writer is not None
            client.writer.write(f"!MOVE {qp} {device}\n".encode())
        return len(chosen)

    def status(self) -> dict[str, Any]:
        """The answer to STATUS; the members are in README.md."""
        clients = [
            {
                "pid": c.pid,
                "rank": c.rank,
                "program": _program(c.pid),
                "since": round(c.since, 3),
                "connected": c.writer is not None,
                "keys": len(c.keys),
                "states": self.ledger.states(c.id),
            }
            for c in sorted(self.clients.values(), key=lambda c: (c.rank is None, c.rank or 0, c.pid))
        ]
        return {
            "job": self.place.job,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "manapy": __version__,
            "socket": str(self.place.address),
            "store": self.url,
            "trouble": self.trouble,
            "clients": clients,
        }


def _program(pid: int) -> str:
    with contextlib.suppress(OSError):
        return proc.comm(pid)
    return ""


def serve(
    place: Place,
    url: str,
    store: Store,
    listener: socket.socket,
    ready: Callable[[str], None],
    linger: float | None,
    ttl: float,
    stay: int | None,
) -> None:
    """Serve until the agent ends, by itself or by a signal. The store's own threads open `store`."""

    async def work() -> None:
        agent = RdmaAgent(place, url, store, linger, ttl, stay)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, agent.end)
        await agent.run(listener, ready)
        # it ends in any case: asyncio removes its handlers before the process ends
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))

    asyncio.run(work())

"""`manapy trace serve`: looks at a job as `manapy why --watch` does, and answers HTTP requests with metrics.

Invariants
 1. An answer never waits for a look, for a rank, or for the coordinator: it says what was known last, and how old that
    is. Only before the first look has ended, requests wait.
 2. Looks take SHARE of a processor while nothing is wrong, and a fifth otherwise (looks.py). Answers take SHARE,
    however often they are asked for: each is kept for as long as its cost demands, and for FRESH at least.
"""

from __future__ import annotations

import contextlib
import copy
import signal
import socket
import socketserver
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any

from ..shared.leaving import Leaving
from ..shared.output import Output
from .looks import looks

if TYPE_CHECKING:
    from ...ckpt.store.job import Job
    from ...trace.capture.locate import Found
    from ...trace.model.events import Trace
    from ...trace.model.schedule import Schedule
    from .looks import LookResult
    from .metrics import JobSample, Saved

SHARE = 0.01  # of a processor
FRESH = 1.0  # seconds
ASK = 5.0  # seconds between questions to the job's coordinator
CLIENT_SECONDS = 5.0  # for a client to send its request and to take the answer
PLAIN = "text/plain; version=0.0.4; charset=utf-8"


def serve(found: Found, plan: Schedule | None, address: str, port: int, every: float, out: Output) -> int:
    """Serve until the job has ended, or a signal. Raises ManapyError if it cannot begin."""
    from ...core.errors import JobError, ManapyError, UsageError

    try:
        import prometheus_client  # noqa: F401
    except ModuleNotFoundError as error:
        raise ManapyError(f"metrics need the package prometheus-client, manapy's extra 'metrics' ({error})") from None
    from ...trace.host.runqueue import Sampler
    from ...trace.live.standing import StandingVerdicts

    elsewhere = "'manapy trace export --format openmetrics' writes the metrics of its calls"
    if not found.live:
        raise UsageError(f"{found.folder} is a saved recording: nothing happens there; {elsewhere}")
    view = View(found, plan)
    standing = StandingVerdicts(0.0)
    over = False
    with (
        _listening(address, port, view) as server,
        Sampler(every) as sampler,
        Leaving(signal.SIGINT, signal.SIGTERM) as leaving,
    ):
        for seen in looks(found, sampler, leaving, standing, every, plan, share=SHARE):
            view.add(seen, standing)
            over = seen.over
            if view.number > 1:
                continue
            if view.ended:
                raise JobError(f"{found.folder.name}: the job has ended; {elsewhere}")
            view.start()
            server.start()
            out.line(server.url)
    out.note("the job has ended" if over else "no longer served; the job goes on")
    return 0


class View:
    """What is known of the job: written by the looks, read by the answers."""

    def __init__(self, found: Found, plan: Schedule | None) -> None:
        self._found, self._plan = found, plan
        self._look: JobSample | None = None
        self._saved: Saved | None = None
        self._before: Trace | None = None
        self._totals: Any = None
        self._verdicts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, bytes]] = {}
        self.number = 0  # of looks so far
        self.ended = False

    def add(self, seen: LookResult, standing: Any) -> None:
        """Take a look's results."""
        from ...trace.host import process_state
        from ...trace.live import rank_rows
        from ...trace.live.diagnose import labels_of, state
        from ...trace.live.totals import Totals, iteration_seconds
        from ...trace.model.efficiency import efficiency
        from .metrics import JobSample

        sight = process_state.sight(seen.trace)
        trace = process_state.described(seen.trace, sight, sight)
        labels, _ = labels_of(trace, self._plan)
        rows = rank_rows.rows(self._before, trace, labels)
        self._totals = self._totals or Totals(trace.size)
        self._totals.add(trace, rows)
        self._before = trace
        self._verdicts.update((verdict.state.value, verdict.cause.value) for verdict in seen.news.new)
        self.number += 1
        self.ended = rank_rows.over(trace)
        self._look = JobSample(
            time.monotonic(),
            self.number,
            trace.job or self._found.folder.name,
            state(seen.verdicts),
            rows,
            copy.deepcopy(self._totals),
            standing.stands,
            self._verdicts.copy(),
            iteration_seconds(labels) if labels is not None else None,
            efficiency(trace),
        )

    def start(self) -> None:
        """Begin to ask what is known of the job's checkpoints (invariant 1)."""
        if self._found.job is not None:
            self._ask(self._found.job)
            threading.Thread(target=self._go_on_asking, args=(self._found.job,), daemon=True).start()

    def _go_on_asking(self, job: Job) -> None:
        while True:
            time.sleep(ASK)
            self._ask(job)

    def _ask(self, job: Job) -> None:
        from ...ckpt import command
        from ...ckpt.store import publish
        from ...core.errors import JobError, ManifestError
        from .metrics import Saved

        stood, states = None, Counter[str]()
        with contextlib.suppress(JobError):
            told = command.status(job.again())
            stood, states = told.get("stood"), Counter(rank["state"] for rank in told["ranks"])
        numbered = publish.numbered(job.dir)
        newest = None
        with contextlib.suppress(ManifestError):
            newest = publish.read_manifest(numbered[-1][1]) if numbered else None
        self._saved = Saved(
            job.id,
            numbered[-1][0] if numbered else 0,
            len(numbered),
            newest.time if newest else None,
            newest.file_bytes if newest else None,
            stood,
            states,
        )

    def collect(self) -> Any:
        """All metrics, as prometheus-client asks a registry for them."""
        from .metrics import families

        assert self._look is not None
        return families(self._look, self._saved, time.monotonic(), time.time())

    def answer(self, accept: str) -> tuple[str, bytes]:
        """The type and text of an answer: OpenMetrics if a client accepts it, else Prometheus' older format."""
        from prometheus_client import exposition, openmetrics

        modern = "application/openmetrics-text" in accept
        kind = openmetrics.exposition.CONTENT_TYPE_LATEST if modern else PLAIN
        with self._lock:
            until, text = self._kept.get(kind, (0.0, b""))
            if time.monotonic() >= until:
                began = time.thread_time()
                text = (openmetrics.exposition if modern else exposition).generate_latest(self)
                cost = time.thread_time() - began
                self._kept[kind] = time.monotonic() + max(FRESH, cost / SHARE), text  # invariant 2
        return kind, text


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, family: int, where: Any, view: View) -> None:
        self.address_family, self.view = family, view
        super().__init__(where, _Handler)
        host, port = str(self.server_address[0]), self.server_address[1]
        self.url = f"http://{f'[{host}]' if family == socket.AF_INET6 else host}:{port}/metrics"
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Answer from now on; until then requests wait."""
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)
        self._thread.start()

    def __exit__(self, *error: Any) -> None:
        if self._thread is not None:
            self.shutdown()
        super().__exit__(*error)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away, or is too slow, is no error."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    timeout = CLIENT_SECONDS

    def do_GET(self) -> None:
        """/metrics."""
        server = self.server
        assert isinstance(server, _Server)
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "only /metrics is here")
            return
        kind, text = server.view.answer(self.headers.get("Accept", ""))
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


def _listening(address: str, port: int, view: View) -> _Server:
    """A server that listens, but does not answer yet. Raises UsageError if it cannot use the address."""
    from ...core.errors import UsageError, why

    try:
        family, _, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        return _Server(family, where, view)
    except OSError as error:
        raise UsageError(
            f"{address} port {port} cannot be used: {why(error)}; give another --port (0: any) or --address"
        ) from None

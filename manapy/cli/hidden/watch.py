"""Watch one job of a chain, and report to the chain's supervisor (chain/watching.py): one JSON object a line on
standard output.

    {"kind": "new", "verdict": V}     a new verdict, as in `manapy why --json`
    {"kind": "back", "verdict": V, "text": TEXT}
                                      this verdict no longer holds: what to say
    {"kind": "act", "verdict": V, "since": TIME, "host": HOST, "evidence": DIR}
                                      this verdict is sure and has stood for long enough. TIME: when the fault began
                                      (seconds since the epoch). HOST: of the reported rank, or "". DIR will have the
                                      evidence. This comes before the evidence, so that no problem with the evidence can
                                      delay it.
    {"kind": "kept", "verdict": V, "missing": WHY}
                                      the evidence is written. WHY: what could not be written, or "".
    {"kind": "slow", "verdict": V, "host": HOST}
                                      this host makes the job slow, and has for long enough. Comes with each look that
                                      finds it; with V null after the last one.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..shared import arguments
from ..shared.leaving import Leaving
from ..shared.output import Output

if TYPE_CHECKING:
    from ...trace.capture.locate import Found
    from ...trace.model.verdict import Verdict
    from ..watch.looks import LookResult

EVERY = 1.0  # seconds between looks at a job of which ranks wait, if they are cheap
SHARE = 0.01  # of a processor, for looks at a job that is well
COPY_BYTES = 256_000_000  # largest copy of a recording


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that chain/watching.py passes."""
    parser.add_argument("job", metavar="JOB")
    parser.add_argument("--patience", type=arguments.seconds, required=True, metavar="TIME")
    parser.add_argument("--evidence", type=Path, required=True, metavar="DIR", help="made when there is a verdict")


def run(options: argparse.Namespace, out: Output) -> int:
    """Watch until the job has ended. Patience applies to a stopped rank, too, because a user may debug it. Waits for
    processors are sampled rarely, and only here: sampling costs more than all looks, and a wait for a processor does
    not hang a job."""
    from ...trace.capture import locate
    from ...trace.host.runqueue import Sampler
    from ...trace.live.diagnose import as_json
    from ...trace.live.standing import PROVEN, StandingVerdicts, taken_back
    from ...trace.model.verdict import Cause
    from ..watch.looks import looks

    found = locate.find(options.job)
    standing = StandingVerdicts(options.patience, PROVEN - {Cause.STOPPED})
    slow = False
    with Sampler(EVERY) as sampler, Leaving(signal.SIGINT, signal.SIGTERM) as leaving:
        for seen in looks(found, sampler, leaving, standing, EVERY, share=SHARE):
            for verdict in seen.news.new:
                _tell(out, kind="new", verdict=as_json(verdict))
            for verdict, stood in seen.news.back:
                _tell(out, kind="back", verdict=as_json(verdict), text=taken_back(verdict, stood, seen.over))
            lasting = [verdict for verdict in seen.news.lasting if verdict.cause in (Cause.STARVED, Cause.COMPUTE)]
            if lasting or slow:
                worst = max(lasting, key=lambda verdict: verdict.share or 0.0, default=None)
                _tell(out, kind="slow", verdict=worst and as_json(worst), host=_host(seen, worst))
            slow = bool(lasting)
            for verdict in () if seen.over else seen.news.act:
                age = 0.0 if verdict.since_ns is None else (seen.trace.now - verdict.since_ns) / 1e9
                since = round(time.time() - age, 3)
                _tell(
                    out,
                    kind="act",
                    verdict=as_json(verdict),
                    since=since,
                    host=_host(seen, verdict),
                    evidence=str(options.evidence),
                )
                _tell(out, kind="kept", verdict=as_json(verdict), missing=_keep(found, seen, options.evidence))
    return 0


def _tell(out: Output, **fields: Any) -> None:
    out.line(json.dumps(fields))


def _host(seen: LookResult, verdict: Verdict | None) -> str:
    """The host of the rank that a verdict names; "" if it names none."""
    accused = seen.trace.ranks.get(verdict.rank) if verdict is not None and verdict.rank is not None else None
    return accused.host if accused is not None else ""


def _keep(found: Found, seen: LookResult, folder: Path) -> str:
    """Write the evidence: report.html, verdicts.json (with stacks), and a copy of the recording. Returns what could not
    be written, and why, or ""."""
    from ...core.errors import ManapyError, why
    from ...trace.capture import disk_copy
    from ...trace.live.diagnose import as_json, labels_of
    from ...trace.report import report

    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        verdicts = json.dumps([as_json(verdict) for verdict in seen.verdicts], indent=2)
        (folder / "verdicts.json").write_text(verdicts + "\n", encoding="utf-8")
        page = report.page(seen.trace, seen.verdicts, labels_of(seen.trace, None)[0])
        (folder / "report.html").write_text(page, encoding="utf-8")
        disk_copy.Recording(found.folder, folder / "recording", COPY_BYTES, found.others).poll()
    except OSError as error:
        return why(error)
    except ManapyError as error:
        return str(error)
    except Exception as error:  # a fault of the analysis must not end the watch
        return f"{type(error).__name__}: {error}"
    return ""

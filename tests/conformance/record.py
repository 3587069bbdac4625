"""One rank of mpi4py's test suite: runs its main.py and records every test's outcome.

    python record.py [--sparing] RESULTS MAIN ARGUMENTS...

Writes RESULTS/rank-N.jsonl, one line per outcome: [test id, "ok" | "skipped" | "failed" | "error" | "expected failure"
| "unexpected success", text]. The file is opened before the tests and written line by line, so that it follows the
program through checkpoints and restarts like any file of a program.

--sparing: each test runs, but repeats its MPI calls less often (Recorder.spare).
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import unittest
from pathlib import Path
from typing import Any

RANK = next((os.environ[name] for name in ("PMI_RANK", "PMIX_RANK") if name in os.environ), "0")


class Recorder(unittest.TextTestResult):
    """Writes outcomes as they come."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.lines = OUTPUT

    def startTestRun(self) -> None:
        super().startTestRun()
        if SPARING:
            self.spare()

    @staticmethod
    def spare() -> None:
        """Tests of buffers take arrays of one kind, the one with the most types. Kinds differ in how mpi4py finds the
        address of an array, not in the MPI calls. Tests of datatypes take every sixth of the predefined types."""
        if "arrayimpl" in sys.modules:
            kinds = sys.modules["arrayimpl"].ArrayBackends
            kinds[:] = [max(kinds, key=lambda kind: len(kind.TypeMap))]
        if "test_datatype" in sys.modules:
            types = sys.modules["test_datatype"].datatypes
            types[:] = types[::6]

    def record(self, test: unittest.TestCase, outcome: str, text: str = "") -> None:
        self.lines.write(json.dumps([test.id(), outcome, text]) + "\n")
        self.lines.flush()

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self.record(test, "ok")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self.record(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addFailure(test, err)
        self.record(test, "failed", self._exc_info_to_string(err, test))

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        self.record(test, "error", self._exc_info_to_string(err, test))

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:  # a test with failing subtests has no outcome of its own
            self.record(subtest, "failed", self._exc_info_to_string(err, test))

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addExpectedFailure(test, err)
        self.record(test, "expected failure")

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        super().addUnexpectedSuccess(test)
        self.record(test, "unexpected success")


if __name__ == "__main__":
    SPARING = sys.argv[1] == "--sparing"
    if SPARING:
        del sys.argv[1]
    results, main = Path(sys.argv[1]), sys.argv[2]
    OUTPUT = (results / f"rank-{RANK}.jsonl").open("w")
    unittest.TextTestRunner.resultclass = Recorder  # type: ignore[assignment]
    sys.argv = sys.argv[2:]
    sys.dont_write_bytecode = True
    runpy.run_path(main, run_name="__main__")

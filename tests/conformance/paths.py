"""Makes the modules of tests/ and tests/integration importable, also in programs that pytest has not started. Import it
before them."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "integration"), str(TESTS)]

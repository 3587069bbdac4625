"""Files that hold one JSON object with a `format`: job.json, manifest.json, chain.json."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import ManapyError


@contextmanager
def reading(path: Path, version: int, error: type[ManapyError], otherwise: str) -> Iterator[dict[str, Any]]:
    """The object; the body takes it apart. What is wrong with it, there or here, is raised as ``error`` in one line; ``otherwise`` says what a
    file is that doesn't hold what the body looks for."""
    try:
        record = json.loads(path.read_bytes())
        if record["format"] != version:
            raise error(f"{path}: format {record['format']}, this manapy reads format {version}")
        yield record
    except OSError as cause:
        raise error(f"{path}: {cause.strerror}") from cause
    except (ValueError, KeyError, TypeError) as cause:
        raise error(f"{path}: {otherwise} ({cause})") from cause

"""The text of the training: a file, or texts that come with Python, so that nothing is downloaded. The last tenth is
the validation set."""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import SetupError

MODULES = (
    "argparse",
    "ast",
    "dataclasses",
    "enum",
    "functools",
    "inspect",
    "pathlib",
    "subprocess",
    "threading",
    "typing",
)
WINDOWS = 64  # sequences of the validation


@dataclass(frozen=True)
class Text:
    """name: for people; digest: of all bytes, so that a training goes on with the same ones; training, validation:
    uint8."""

    name: str
    digest: str
    training: np.ndarray
    validation: np.ndarray

    def batch(self, seed: int, step: int, sequences: int, context: int) -> np.ndarray:
        """(sequences, context + 1) of int64, at random places: the same for the same seed and step, on every rank."""
        starts = np.random.default_rng((seed, step)).integers(0, self.training.size - context, sequences)
        return _windows(self.training, starts, context)

    def windows(self, context: int) -> np.ndarray:
        """(WINDOWS, context + 1) of int64, evenly spread over what is never trained on."""
        return _windows(
            self.validation, np.linspace(0, self.validation.size - context - 1, WINDOWS).astype(np.int64), context
        )


def _windows(data: np.ndarray, starts: np.ndarray, context: int) -> np.ndarray:
    return data[starts[:, None] + np.arange(context + 1)].astype(np.int64)


def load(file: Path | None, adapters: bool, context: int) -> Text:
    """Load the file. Without one, load the language reference; for adapters, the sources of modules, which their base
    has not been trained on.

    Raises SetupError if there is no text, or too little of it for the context; OSError.
    """
    name, data = (
        (str(file), file.read_bytes())
        if file
        else ("sources of Python modules", _sources())
        if adapters
        else ("Python's language reference", _reference())
    )
    bytes_ = np.frombuffer(data, np.uint8)
    cut = bytes_.size * 9 // 10
    if bytes_.size - cut < context + 1:
        raise SetupError(
            f"{name}: {bytes_.size} bytes are too few: the last tenth is the validation set and must be longer than a "
            f"context, {context} bytes"
        )
    return Text(name, hashlib.blake2b(data, digest_size=16).hexdigest(), bytes_[:cut], bytes_[cut:])


def _reference() -> bytes:
    """Return the output of help() for keywords and topics."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise SetupError("this Python lacks pydoc_data, the text to learn from: --text FILE") from None
    return "\n\n".join(topics[name] for name in sorted(topics)).encode()


def _sources() -> bytes:
    specs = [importlib.util.find_spec(name) for name in MODULES]
    files = [Path(spec.origin) for spec in specs if spec and spec.origin]
    if len(files) < len(MODULES) or not all(file.suffix == ".py" and file.exists() for file in files):
        raise SetupError("this Python lacks the sources of its modules, the text to learn from: --text FILE")
    return b"\n\n".join(file.read_bytes() for file in files)

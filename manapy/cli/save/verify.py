"""Check every byte of a checkpoint.

The command checks all images against their checksums, their seals and the signed manifest. It also checks the mapped
files that the images need, and what incremental images need of older checkpoints. The exit code is 1 if something is
wrong.
"""

from __future__ import annotations

import argparse

from ...core.units import size
from ..shared import arguments, naming
from ..shared.output import Output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    arguments.add_checkpoint(parser)
    parser.add_argument("--json", action="store_true")


def run(options: argparse.Namespace, out: Output) -> int:
    """Check and report."""
    from ...ckpt.store import publish, verify

    path = naming.checkpoint(options.checkpoint)
    manifest = publish.read_manifest(path)
    headers, problems = verify.headers(path, manifest)
    if not problems:
        with out.bar("checking images", sum(header.memory_bytes for header in headers.values())) as advance:
            problems = verify.images(path, manifest, advance)
    out.data({"checkpoint": str(path), "ok": not problems, "problems": problems})
    for problem in problems:
        out.error(problem)
    if not problems:
        total = sum(entry.file_bytes for entry in manifest.ranks)
        parents = ", ".join(parent.name for parent in publish.chain(path)[1:])
        more = f", and what they need of {parents}" if parents else ""
        out.line(f"{path}: {len(manifest.ranks)} images, {size(total)}{more}: good")
    return 1 if problems else 0

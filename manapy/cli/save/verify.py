"""Check every byte of a checkpoint.

The command checks all images against their checksums, their seals and the signed manifest. It also checks the mapped
files that the images need, and the older images that incremental images need. The exit code is 1 if something is
wrong. Images that are only on local storage of other hosts are not checked, and the command says so.
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
            problems = verify.images(path, manifest, headers, advance)
    elsewhere = [entry.rank for entry in manifest.ranks if entry.rank not in headers] if not problems else []
    out.data({"checkpoint": str(path), "ok": not problems, "problems": problems, "elsewhere": elsewhere})
    for problem in problems:
        out.error(problem)
    if not problems:
        total = sum(manifest.ranks[rank].file_bytes for rank in headers)
        parents = ", ".join(parent.name for parent in publish.chain(path)[1:])
        more = f", and what they need of {parents}" if parents else ""
        out.line(f"{path}: {len(headers)} images, {size(total)}{more}: good")
        if elsewhere:
            out.note(f"images not checked, because they are only on local storage of other hosts: {len(elsewhere)}")
    return 1 if problems else 0

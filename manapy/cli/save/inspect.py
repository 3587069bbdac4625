"""Show what a checkpoint contains: program, ranks, memory, threads, and the processes of ranks that have several. With
--rank R, show the memory map of one rank."""

from __future__ import annotations

import argparse
import time
from pathlib import PurePath
from typing import Any

from ...core.units import size
from ..shared import arguments, naming
from ..shared.output import Output
from ..shared.trees import Node, drawn


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    arguments.add_checkpoint(parser)
    parser.add_argument("--rank", metavar="R", type=int, help="show the memory regions and threads of rank R")
    parser.add_argument("--json", action="store_true")


def run(options: argparse.Namespace, out: Output) -> int:
    """Read the manifest and the images (headers and sections, not page data), and print them."""
    from ...ckpt.store import image, levels, publish
    from ...core.errors import ManapyError

    path = naming.checkpoint(options.checkpoint)
    manifest = publish.read_manifest(path)
    entries = [e for e in manifest.ranks if options.rank in (None, e.rank)]
    if not entries:
        raise ManapyError(f"{path} has no rank {options.rank}")
    held = manifest.levels
    seen = [entry for entry in entries if held.shared or levels.path(held, path, entry.image).exists()]
    if not seen:
        hosts = ", ".join(dict.fromkeys(entry.host for entry in entries))
        raise ManapyError(f"{path}: the images are on local storage of other hosts: {hosts}")
    images = [image.Image.open(levels.path(held, path, entry.image)) for entry in seen]
    out.data(
        {
            "checkpoint": str(path),
            "manifest": manifest.record,
            "images": [_record(i, options.rank is not None) for i in images],
        }
    )
    if out.json:
        return 0
    if options.rank is not None:
        _one(images[0], out)
        if images[0].members:
            _tree(images[0], out)
        return 0
    taken = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.time))
    where, survives = levels.describe(held, len({entry.host for entry in manifest.ranks}))
    out.line(
        f"{path}\nprogram     {' '.join(manifest.argv)}\ntaken       {taken}\nranks       "
        f"{len(manifest.ranks)}\nmanapy      {manifest.version}\nwhere       {where}\nsurvives    loss of {survives}"
    )
    if used := sorted({entry.way for entry in manifest.ranks if entry.way}):
        out.line(f"changes by  {' and '.join(used)}")
    if manifest.parent:
        out.line(f"needs       {', '.join(parent.name for parent in publish.chain(path)[1:])}")
    out.table(
        (
            "rank",
            "host",
            "image",
            "memory saved",
            "compressed",
            "of parents",
            "of files",
            "mapped",
            "regions",
            "threads",
        ),  # fmt: skip
        [_row(i) for i in images],
    )
    for i in images:
        if i.members:
            _tree(i, out)
    if len(seen) < len(entries):
        out.note(f"images not shown, because they are only on local storage of other hosts: {len(entries) - len(seen)}")
    return 0


def _row(i: Any) -> tuple[Any, ...]:
    from ...ckpt.store.image import RUN_DATA, RUN_FILE, RUN_ZIPPED

    h = i.header
    return (
        h.rank,
        h.host,
        size(h.file_bytes),
        size(i.bytes_of(RUN_DATA, RUN_ZIPPED)),
        size(i.bytes_of(RUN_ZIPPED)),
        size(i.kept_bytes),
        size(i.bytes_of(RUN_FILE)),
        size(i.mapped_bytes),
        len(i.regions),
        len(i.threads),
    )


def _tree(i: Any, out: Output) -> None:
    """The processes of a rank that has several, with their ids as the program knows them."""
    out.line(f"rank {i.header.rank}, {len(i.members)} processes:")
    nodes = [Node(m.pid, m.parent, _process(_member(i, m))) for m in i.members]
    for line in drawn(nodes):
        out.line(f"  {line}")


def _process(seen: dict[str, Any]) -> str:
    def many(kind: str, number: int) -> bool:
        return number > 1 and kind not in ("standard", "inherited", "other") and not kind.startswith("of ")

    listed = ", ".join(f"{number} {kind}{'s' * many(kind, number)}" for kind, number in seen["descriptors"].items())
    threads = f"{seen['threads']} thread{'s' * (seen['threads'] > 1)}"
    name = PurePath(seen["program"]).name + " (MPI process)" * (seen["index"] == 0)
    return f"{name}: {threads}, image {size(seen['file_bytes'])}, descriptors: {listed or 'none'}"


def _one(i: Any, out: Output) -> None:
    h = i.header
    out.line(f"rank {h.rank} of {h.size}, {h.program}, generation {h.generation}, on {h.host}")
    rows = [
        (f"{r.lo:x}-{r.hi:x}", r.permissions, size(r.hi - r.lo), size(_saved(i, r)), r.path or "") for r in i.regions
    ]
    out.table(("addresses", "", "size", "saved", "file"), rows, title="memory")
    out.table(
        ("tid", "name", "calls MPI"),
        [(t.tid, t.name, "yes" if t.mpi_slot is not None else "no") for t in i.threads],
        title="threads",
    )


def _saved(i: Any, region: Any) -> int:
    from ...ckpt.store.image import RUN_FILE

    return sum(run.bytes for run in i.runs if run.kind != RUN_FILE and region.lo <= run.address < region.hi)


def _member(i: Any, member: Any) -> dict[str, Any]:
    from ...ckpt.store import descriptors, image

    own = i.of_member(member)
    held = descriptors.counts(own.sections.get(image.SECTION_FDS, b""))
    return {
        "index": member.image,
        "pid": member.pid,
        "parent": member.parent,
        "program": own.header.program,
        "threads": len(own.threads),
        "file_bytes": own.header.file_bytes,
        "descriptors": held,
    }


def _record(i: Any, detailed: bool) -> dict[str, Any]:
    record: dict[str, Any] = {
        "path": str(i.path),
        **i.header._asdict(),
        "regions": len(i.regions),
        "threads": [t._asdict() for t in i.threads],
        "processes": [_member(i, m) for m in i.members],
    }
    if detailed:
        record["regions"] = [{**r._asdict(), "saved": _saved(i, r)} for r in i.regions]
    return record

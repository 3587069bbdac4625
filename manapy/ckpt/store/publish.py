"""Checkpoint directories: written under a temporary name, published by one rename.

    tmp-000007-x3k9/   images (written and fsynced by the ranks; where: folders.py, levels.py), then manifest.json
    ckpt-000007/       the same directory after the rename; with a file `dropped` if no restart may choose it by itself
    latest             symbolic link to the newest

A program may choose another directory for later checkpoints (dmtcp_set_ckpt_dir). Other jobs may choose the same one,
so each job has its own subdirectory there, its place. The job directory links to the checkpoints in its place:

    CHOICE/manapy-<hash of the job directory's path>/    the place: checkpoints as above, `latest`, and `manapy-job`, a
                                                         link to the job directory
    ckpt-000008 -> CHOICE/manapy-.../ckpt-000008         in the job directory

Invariants
 1. A directory called ckpt-NNNNNN is complete: every image is fsynced and has the size the manifest says, and the
    manifest was written last. A failure before the rename leaves older checkpoints and `latest` unchanged. Images on
    local storage are complete there first (local.py). The manifest is replaced when other levels hold them.
 2. `latest` is replaced by rename, after the checkpoint is durable. A crash between the two leaves it at the previous
    checkpoint.
 3. A checkpoint is deleted under a temporary name, so that a part of one is never mistaken for a complete one.
 4. The link to a checkpoint in another place is durable before the checkpoint is written. So the one rename publishes
    the checkpoint in the job directory, too, and the remains of an interrupted one can be found. A link without a
    target is not a checkpoint, but its number is used: perhaps that file system is not mounted.
 5. In another place only checkpoints of this job are deleted.
 6. The manifest of an incremental checkpoint names its parent, which lies beside it: the images need those of the
    parent (image.h). All direct and indirect parents of a checkpoint that is kept are kept, too. When its images have
    become full ones (fold.py), the manifest is replaced, and names no parent.
 7. manapy neither writes into nor restarts from a directory in which another user may have written (own.py). The
    manifest is signed with the job's secret. It contains the seals of all images (image.h), which need the secret, too.
 8. A checkpoint or a manifest that cannot be read now may be readable a moment later. Functions that only read leave it
    out. Functions that delete do not treat it as missing: existing(), names_on_hosts(), ``strict``.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ...core.errors import CheckpointError, ManifestError, explained
from ...core.files import discard, reading, replace_file, sync
from ...core.records import TYPE_CHECKING, NamedTuple
from . import folders, known, levels, own
from .levels import Levels

if TYPE_CHECKING:
    from typing import Any

MAGIC = "manapy checkpoint"
FORMAT = 1
STAT_THREADS = 16
CHAIN_MAX = 100  # checkpoints of a chain; MPY_CHAIN_MAX of image.h
PATH_MAX = 1000  # bytes of a checkpoint's path; the limit of boundary.h
_NAME = re.compile(r"ckpt-(\d{6,})\Z")
# of checkpoints, folds, deletions and links that were interrupted; a user may have directories whose names begin alike
_TEMPORARY = re.compile(r"tmp-(\d{6,}|fold-\d{6,}|deleted-.+|latest)-[0-9a-f]{6}")
_DROPPED = "dropped"
_OWNER = "manapy-job"  # in another place: a link to the job directory


class Entry(NamedTuple):
    """One rank's image. ``crc`` and ``seal`` are its identity (image.h); ``bytes`` of memory, ``file_bytes`` of
    the file; ``kept``: how many of the bytes are in parent images; ``way``: how changed pages were found: pagemap,
    soft-dirty, hash, or empty."""

    rank: int
    image: str
    bytes: int
    file_bytes: int
    crc: int
    seconds: float
    host: str
    seal: str = ""
    kept: int = 0
    way: str = ""


class Manifest(NamedTuple):
    """The content of manifest.json.

    ``time`` in seconds since the epoch; ``mpirun``: the command that started the job, if known: a path, or srun and its
    options.
    """

    ranks: list[Entry]
    argv: list[str]
    time: float
    version: str
    mpirun: str | None
    record: dict[str, Any]

    @property
    def parent(self) -> str:
        """The name of the checkpoint whose images those of this one need; empty if they need none."""
        name = str(self.record.get("parent", ""))
        return name if _NAME.match(name) else ""

    @property
    def run(self) -> str:
        """The id that the checkpoints of one program have in common, from its start and over all of its restarts,
        because a directory may have checkpoints of several programs. Empty in a manifest of an older manapy."""
        return str(self.record.get("run") or "")

    @property
    def levels(self) -> Levels:
        """Which levels of storage hold the images."""
        return levels.read(self.record)

    @property
    def file_bytes(self) -> int:
        """The bytes of all images."""
        return sum(entry.file_bytes for entry in self.ranks)


class Checkpoint(NamedTuple):
    """A published checkpoint."""

    path: Path
    manifest: Manifest


# ---- reading


def is_checkpoint(path: Path) -> bool:
    """Is it a published checkpoint's directory (or a link to one)? Not if it cannot be looked at now."""
    with contextlib.suppress(OSError):
        return (path / "manifest.json").is_file()
    return False


def may_exist(path: Path) -> bool:
    """The same; true if it cannot be looked at now (invariant 8)."""
    with contextlib.suppress(OSError):
        return (path / "manifest.json").is_file()
    return True


def resolve(which: str | Path) -> Path:
    """The checkpoint directory of a path or a name (known.py): the path itself, or the latest one of a job directory.

    Raises ManifestError; JobError if several have the name.
    """
    path = known.find(str(which), lambda path: is_checkpoint(path) or (path / "job.json").is_file()) or Path(which)
    if may_exist(path):
        return path.resolve()
    newest = latest(path)
    if newest is not None:
        return newest
    if not path.exists():
        raise ManifestError(f"{path}: no such checkpoint or job directory")
    if (path / "job.json").is_file():
        raise ManifestError(f"{path}: the job has no checkpoint yet")
    raise ManifestError(f"{path}: neither a checkpoint nor a job directory")


def latest(directory: Path) -> Path | None:
    """The newest checkpoint of a job directory: where the link points, or, if it is missing or dangling, the highest
    number."""
    with contextlib.suppress(OSError):
        os.listdir(directory)  # opened, so that NFS asks the server: it may know an old link for a minute
    link = directory / "latest"
    if may_exist(link):  # an older one in its place would be a surprise
        return link.resolve()
    found = usable(directory)
    return found[-1].resolve() if found else None


def read_manifest(path: Path) -> Manifest:
    """Raises ManifestError."""
    file = path / "manifest.json"
    with reading(file, FORMAT, ManifestError, "damaged") as record:
        if record["magic"] != MAGIC:
            raise ManifestError(f"{file}: not a checkpoint's manifest")
        ranks = [Entry(**entry) for entry in record["ranks"]]
        if [entry.rank for entry in ranks] != list(range(record["size"])):
            raise ManifestError(f"{file}: damaged: the ranks are incomplete")
        levels.read(record)
        return Manifest(
            ranks,
            [str(a) for a in record["argv"]],
            float(record["time"]),
            str(record["manapy"]),
            record.get("mpirun"),
            record,
        )


def checkpoints(directory: Path, strict: bool = False) -> list[Checkpoint]:
    """The readable checkpoints of a job directory, oldest first. ``strict``: for deletions; raises ManifestError,
    OSError if one cannot be read now (invariant 8)."""
    found = []
    for _, path in (existing if strict else numbered)(directory):
        try:
            manifest = _read_if_there(path)
        except ManifestError:
            if strict:
                raise
            continue
        if manifest is not None:
            found.append(Checkpoint(path.resolve(), manifest))
    return found


def numbered(directory: Path) -> list[tuple[int, Path]]:
    """All entries of a job directory with a checkpoint's name, and their numbers, lowest first; also those with
    unreadable manifests."""
    with contextlib.suppress(OSError):
        return [(number, path) for number, path in existing(directory) if is_checkpoint(path)]
    return []


def existing(directory: Path) -> list[tuple[int, Path]]:
    """The same, with those that cannot be looked at now, for deletions (invariant 8). Raises OSError."""
    return sorted(
        (int(match[1]), directory / name)
        for name in os.listdir(directory)
        if (match := _NAME.match(name)) and may_exist(directory / name)
    )


def highest(directory: Path) -> int:
    """The highest number that a checkpoint of a job directory has, or an interrupted one; 0 if there is none. Raises
    OSError."""
    return max((int(match[1]) for name in os.listdir(directory) if (match := _NAME.match(name))), default=0)


def number(checkpoint: Path) -> int:
    """The number in a checkpoint's name."""
    return int(checkpoint.name.removeprefix("ckpt-"))


def names_on_hosts(directory: Path) -> list[str]:
    """The names of a job's checkpoints that have images, or may have some (invariant 8), on local storage: in whatever
    directory, because one directory may have several paths. Raises OSError."""
    found = []
    for _, path in existing(directory):
        try:
            manifest = _read_if_there(path)
        except ManifestError:
            found.append(path.name)
        else:
            if manifest is not None and manifest.levels.local:
                found.append(path.name)
    return found


def usable(directory: Path) -> list[Path]:
    """Return those of numbered() that an automatic restart may choose: they are not dropped."""
    return [path for _, path in numbered(directory) if not is_dropped(path)]


def is_dropped(checkpoint: Path) -> bool:
    """Has the user dropped this checkpoint? Newer ones may need it."""
    return (checkpoint / _DROPPED).exists()


def drop(checkpoint: Path, dropped: bool = True) -> None:
    """Let a restart choose this checkpoint only if the user names it; False: undo that. Raises ManifestError if no
    other one is left, OSError."""
    home = owner(checkpoint.parent)
    if dropped and not [path for path in usable(home) if path.resolve() != checkpoint]:
        raise ManifestError(f"{checkpoint}: the job has no other checkpoint that it could continue")
    if dropped:
        (checkpoint / _DROPPED).touch()
    else:
        (checkpoint / _DROPPED).unlink(missing_ok=True)
    for directory in {home, checkpoint.parent}:
        while (left := usable(directory)) and latest(directory) != left[-1].resolve():
            _link_latest(directory, left[-1].name)  # again if the job publishes one meanwhile


def chain(path: Path, strict: bool = False) -> list[Path]:
    """The real paths of a checkpoint and of all that its images need, newest first. It ends where a manifest cannot be
    read. ``strict``: for deletions; raises ManifestError if a manifest cannot be read now (invariant 8)."""
    found = [path.resolve()]
    while len(found) < CHAIN_MAX:
        try:
            manifest = _read_if_there(found[-1])
        except ManifestError:
            if strict:
                raise
            break
        if manifest is None or not manifest.parent:
            break
        found.append(found[-1].with_name(manifest.parent))
    return found


def _read_if_there(path: Path) -> Manifest | None:
    """The manifest; None if it does not exist or is damaged, so that the checkpoint cannot be used any more. Raises
    ManifestError if it cannot be read now."""
    try:
        return read_manifest(path)
    except ManifestError as error:
        if is_unreadable(error):
            raise
        return None


def is_unreadable(error: ManifestError) -> bool:
    """Was this raised because something cannot be read now, though it may be good (invariant 8)?"""
    cause = error.__cause__
    return isinstance(cause, OSError) and not isinstance(cause, (FileNotFoundError, NotADirectoryError))


# ---- signatures


def sign(record: dict[str, Any], secret: bytes) -> str:
    """The signature of a manifest, over everything except an existing signature."""
    signature = _signature(secret)
    for piece in _pieces({key: value for key, value in record.items() if key != "signature"}):
        signature.update(piece)
    return signature.hexdigest()


def _signature(secret: bytes) -> hmac.HMAC:
    return hmac.new(hmac.digest(secret, b"manifest", "sha256"), digestmod="sha256")


def _pieces(record: dict[str, Any]) -> Iterator[bytes]:
    """A manifest as JSON with sorted keys and without spaces, in pieces that end between two tokens. At no time there
    is more than one rank's part: `ranks` may be an iterator."""
    before = b"{"
    for key, value in sorted(record.items()):
        if key != "ranks":
            yield before + _compact(key) + b":" + _compact(value)
        else:
            yield before + b'"ranks":['
            for i, entry in enumerate(value):
                yield (b"," if i else b"") + _compact(entry)
            yield b"]"
        before = b","
    yield b"}"


def _compact(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def secret_of(path: Path) -> tuple[bytes | None, str]:
    """The secret of the job that has taken a checkpoint, or None and the reason.

    It lies in the job directory. If the checkpoint was moved, a user may have copied the secret into the checkpoint.
    """
    home = owner(path.parent)
    for file in (path / "secret", home / "secret"):
        if why := own.complaint(file):
            return None, why
        with contextlib.suppress(OSError):
            return file.read_bytes(), ""
    return None, f"{home / 'secret'} does not exist"


# ---- places


def place(directory: Path, choice: str) -> Path:
    """The place of the checkpoints of a job directory (as the ranks know it) if the program chooses ``choice``. begin()
    reports an unusable place."""
    if not os.path.isabs(choice):
        return Path(choice)
    real = os.path.realpath(choice)
    return directory if real == os.path.realpath(directory) else levels.root(Path(real), directory)


def owner(where: Path) -> Path:
    """The job directory whose checkpoints lie here: this directory, or the owner if this is a job's place."""
    link = where / _OWNER
    return where if (where / "job.json").is_file() or not link.is_symlink() else link.resolve()


def _belongs(where: Path, directory: Path) -> bool:
    with contextlib.suppress(OSError):
        is_own = where.resolve() == directory.resolve() or own.complaint(where) is None
        return where.is_dir() and is_own and owner(where) == directory.resolve()
    return False


def open_place(where: Path, directory: Path, what: str) -> None:
    """Make a place for checkpoints of a job, if it does not exist. Raises CheckpointError if somebody else may have
    written there; ``what`` it is, for the message. Raises OSError."""
    where.parent.mkdir(mode=0o700, exist_ok=True)  # make only one parent, as DMTCP does
    where.mkdir(mode=0o700, exist_ok=True)
    if where.is_symlink() or (why := own.complaint(where)):
        reason = f"{where} is a link" if where.is_symlink() else why
        raise CheckpointError(f"{what} cannot be used: {reason}")
    link = where / _OWNER
    try:
        link.symlink_to(directory)
    except FileExistsError:  # perhaps since a moment ago: a host carries out several orders at the same time
        if not link.is_symlink():
            raise


# ---- writing


def begin(directory: Path, where: Path | None = None) -> Path:
    """Make the temporary directory of a new checkpoint of a job, in ``where`` if that isn't the job directory. Raises
    CheckpointError."""
    where = directory if where is None else where
    if where != directory and not where.is_absolute():
        raise CheckpointError(f"the program's directory for checkpoints is not an absolute path: '{where}'")
    if len(os.fsencode(where)) > PATH_MAX:
        raise CheckpointError(f"the path of the program's directory for checkpoints is too long: {where}")
    with explained(CheckpointError, where, "cannot make "):
        if where != directory:
            open_place(where, directory, "the program's directory for checkpoints")
        free = max(map(highest, {directory, where})) + 1
        path = where / f"tmp-{free:06d}-{os.urandom(3).hex()}"
        link = directory / f"ckpt-{free:06d}"
        if where != directory:
            link.symlink_to(where / link.name)
            sync(directory)
        try:
            path.mkdir(mode=0o700)
        except OSError:
            if where != directory:
                link.unlink()
            raise
    return path


def final_path(temporary: Path) -> Path:
    """The path of a checkpoint after its publication."""
    return temporary.parent / f"ckpt-{temporary.name.split('-')[1]}"


def commit(temporary: Path, record: dict[str, Any], ranks: Sequence[Entry], secret: bytes) -> Path:
    """Publish a checkpoint. Returns its final path. Raises CheckpointError.

    ``record`` is completed with the ranks, time and format, and signed with the job's ``secret``. If it names levels,
    the images are complete there; else they are in ``temporary``.
    """
    directory = temporary.parent
    final = final_path(temporary)
    manifest = {
        "magic": MAGIC,
        "format": FORMAT,
        "number": number(final),
        "time": time.time(),
        "size": len(ranks),
        **record,
        "ranks": (entry._asdict() for entry in ranks),
    }
    with explained(CheckpointError, temporary):
        images = [entry.image for entry in ranks]
        if (held := levels.read(record)).shared:
            _check_sizes(temporary, ranks)
            folders.settle(temporary, images)
        folders.write_list(temporary, images)
        levels.mark(temporary, held)
        replace_file(temporary / "manifest.json", _signed(manifest, secret), durable=True)
        sync(temporary)
        if final.exists():
            raise CheckpointError(f"{final} exists already")
        os.rename(temporary, final)
        sync(directory)
        for each in {directory, owner(directory)}:
            _link_latest(each, final.name)
    return final


def relevel(checkpoint: Path, held: Levels, secret: bytes, **also: Any) -> None:
    """Replace the record of a published checkpoint: these levels hold its images now; ``also``: further entries of the
    record. Raises ManifestError, OSError."""
    _replace_record(checkpoint, {**read_manifest(checkpoint).record, "levels": held.record(), **also}, secret)
    levels.mark(checkpoint, held)


def note_folded(checkpoint: Path, sizes: Mapping[str, int], secret: bytes) -> None:
    """Replace the record of a published checkpoint: all of its images are full now (fold.py). ``sizes``: the bytes of
    images. Raises ManifestError, OSError."""
    record = {key: value for key, value in read_manifest(checkpoint).record.items() if key != "parent"}
    ranks = [{**e, "file_bytes": sizes.get(e["image"], e["file_bytes"]), "kept": 0} for e in record["ranks"]]
    _replace_record(checkpoint, {**record, "ranks": ranks}, secret)


def _replace_record(checkpoint: Path, record: dict[str, Any], secret: bytes) -> None:
    unsigned = {key: value for key, value in record.items() if key != "signature"}
    replace_file(checkpoint / "manifest.json", _signed(unsigned, secret), durable=True)
    sync(checkpoint)


def _signed(manifest: dict[str, Any], secret: bytes) -> bytearray:
    """The text of manifest.json."""
    text, signature = bytearray(), _signature(secret)
    for piece in _pieces(manifest):
        signature.update(piece)
        text += piece + b"\n"
    return text.removesuffix(b"}\n") + b',"signature":"%s"}\n' % signature.hexdigest().encode()


def _check_sizes(temporary: Path, ranks: Sequence[Entry]) -> None:
    def check(some: Sequence[Entry]) -> None:
        for entry in some:
            with open(f"{temporary}/{entry.image}", "rb", buffering=0) as image:  # NFS: stat() may say an old size
                actual = os.fstat(image.fileno()).st_size
            if actual != entry.file_bytes:
                raise CheckpointError(
                    f"{temporary / entry.image} has {actual} bytes instead of the {entry.file_bytes} that rank "
                    f"{entry.rank} wrote"
                )

    if len(ranks) <= STAT_THREADS:  # not worth the threads
        return check(ranks)
    from concurrent.futures import ThreadPoolExecutor  # here: only the coordinator needs it

    with ThreadPoolExecutor(STAT_THREADS) as pool:  # they wait for the file system
        list(pool.map(check, (ranks[i::STAT_THREADS] for i in range(STAT_THREADS))))


def _link_latest(directory: Path, name: str) -> None:
    link = directory / f"tmp-latest-{os.urandom(3).hex()}"
    link.symlink_to(name)
    os.replace(link, directory / "latest")
    sync(directory)


def cancel(temporary: Path) -> None:
    """Delete the remains of an unpublished checkpoint. They get another name first: a rank may not know yet that the
    checkpoint has failed, and must not put its image into a folder that is being deleted."""
    grave = _grave(temporary)
    with contextlib.suppress(OSError):  # it is gone, or its owner may not write there
        os.rename(temporary, grave)
    discard(grave)
    discard(temporary)
    with contextlib.suppress(OSError):
        _drop_dangling(owner(temporary.parent) / final_path(temporary).name)


def clean(directory: Path) -> list[Path]:
    """Delete the remains of interrupted checkpoints and deletions, except in places that cannot be looked at now. Only
    for the owner of the directory."""
    links = [
        directory / name for name in os.listdir(directory) if _NAME.match(name) and (directory / name).is_symlink()
    ]
    places = {where for link in links if _belongs(where := Path(os.readlink(link)).parent, directory)}
    left = [path for where in {directory, *places} for path in _temporary_in(where)]
    left += [link for link in links if Path(os.readlink(link)).parent in places and _dangles(link)]
    for path in left:
        if path.is_symlink():
            path.unlink(missing_ok=True)
        else:
            discard(path)
    return left


def _temporary_in(where: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [where / name for name in os.listdir(where) if _TEMPORARY.fullmatch(name)]
    return []


def prune(directory: Path, keep: int, also: Sequence[Path] = ()) -> list[Path]:
    """Delete all checkpoints except the ``keep`` newest that are not dropped, newer ones, the one that `latest` names,
    the newest one that survives the loss of any host, those of ``also``, and what these need. Returns the deleted
    paths. Raises OSError; ManifestError, before anything is deleted, if it cannot be found out now what is needed
    (invariant 8)."""
    found = [path for _, path in existing(directory)]
    oldest = [path for path in found if is_checkpoint(path) and not is_dropped(path)][-keep:][:1]
    older = found[: found.index(oldest[0])] if oldest else []
    try:
        kept = [*found[len(older) :], directory / "latest", *_newest_shared(found), *also]
        needed = {real for path in kept for real in chain(path, strict=True)}
    except ManifestError as error:
        raise ManifestError(f"{error}: nothing was deleted, because other checkpoints may be needed") from error
    removed = []
    for path in older:
        real = path.resolve()
        if real in needed or not is_checkpoint(path):
            continue
        local, grave = _local_images(real), _grave(real)
        if _belongs(real.parent, directory):
            with contextlib.suppress(FileNotFoundError):  # another prune has deleted it
                os.rename(real, grave)
        if path.is_symlink():
            path.unlink(missing_ok=True)
            _drop_dangling(real.with_name("latest"))
        discard(grave)
        if local is not None:
            discard(local)
        removed.append(path)
    return removed


def _newest_shared(found: Sequence[Path]) -> list[Path]:
    """The newest of these checkpoints that survives the loss of any host, if there is one. Raises ManifestError."""
    for path in reversed(found):
        if not is_dropped(path) and (manifest := _read_if_there(path)) is not None and manifest.levels.shared:
            return [path]
    return []


def _local_images(checkpoint: Path) -> Path | None:
    """Where the local level of this host has the checkpoint's images."""
    with contextlib.suppress(ManifestError):
        root = Path(read_manifest(checkpoint).levels.local or os.devnull)
        if root.is_dir() and own.complaint(root) is None:
            return root / checkpoint.name
    return None


def _grave(directory: Path) -> Path:
    """A name beside a directory that is to be deleted; clean() deletes it if that is interrupted."""
    return directory.with_name(f"tmp-deleted-{directory.name}-{os.urandom(3).hex()}")


def _drop_dangling(link: Path) -> None:
    if _dangles(link):
        link.unlink(missing_ok=True)


def _dangles(link: Path) -> bool:
    """Is it a link whose target does not exist? Not if that cannot be looked at now (invariant 8)."""
    with contextlib.suppress(OSError):
        return link.is_symlink() and not link.exists()
    return False

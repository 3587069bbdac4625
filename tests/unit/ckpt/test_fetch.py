"""Which checkpoints a restart from local storage may continue, if images of the newest one are lost."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from fake_jobs import PATIENCE, fake_job
from manapy.ckpt.coordinator.levels.fetch import Fetch
from manapy.ckpt.store import publish
from manapy.core.errors import CheckpointError, ManifestError


def run(directory: Path, checkpoints: int = 0, **settings: Any) -> list[str]:
    """A run of a program in this job directory, which takes so many checkpoints. Returns the names of those that it may
    continue, if it is a restart."""

    async def play() -> list[str]:
        async with fake_job(directory, agents=0, **settings) as fake, asyncio.timeout(2 * PATIENCE):
            fetch = fake.coordinator._fetch
            found = [path.name for path in fetch._candidates()] if fetch is not None else []
            for rank in fake.ranks if fetch is not None else []:
                rank.send("READY 1")
            for _ in range(checkpoints):
                assert "ok" in await fake.checkpoint()
            await fake.end()
            return found

    return asyncio.run(play())


def test_only_checkpoints_of_the_same_run(tmp_path: Path) -> None:
    """A directory that is used again keeps those of the program before. Restarts belong to the run that they
    continue."""
    where = tmp_path / "job"
    run(where, 1)
    run(where, 2)
    assert run(where, 1, resume=str(where / "ckpt-000003")) == ["ckpt-000003", "ckpt-000002"]
    last = str(where / "ckpt-000004")
    assert run(where, resume=last) == ["ckpt-000004", "ckpt-000003", "ckpt-000002"]
    assert run(where, resume=last, exact=True) == ["ckpt-000004"]
    assert run(where, resume=str(where / "ckpt-000001")) == ["ckpt-000001"]


def test_checkpoints_of_an_older_manapy(tmp_path: Path) -> None:
    """Their manifests do not name their run: all older ones may be continued, and a restart does not name it either."""
    where = tmp_path / "job"
    run(where, 1)
    run(where, 1)
    for found in publish.checkpoints(where):
        record = {key: value for key, value in found.manifest.record.items() if key != "run"}
        (found.path / "manifest.json").write_text(json.dumps(record))
    assert run(where, 1, resume=str(where / "ckpt-000002")) == ["ckpt-000002", "ckpt-000001"]
    names = ["ckpt-000003", "ckpt-000002", "ckpt-000001"]
    assert run(where, resume=str(where / "ckpt-000003")) == names


class _Storage:
    """The local storage of two hosts; the second one's is broken."""

    async def order(self, host: str, verb: str, *arguments: str) -> list[str]:
        if host == "two":
            raise CheckpointError("two: Input/output error")
        return ["0"]


def test_a_host_whose_storage_is_broken_has_nothing(tmp_path: Path) -> None:
    """Other levels may have its images. If none has, its trouble is said."""
    where = tmp_path / "job"
    run(where, 1)

    async def play() -> dict[str, set[int]]:
        fetch = Fetch(2, where / "ckpt-000001", False, _Storage())  # type: ignore[arg-type]
        fetch._hosts = {0: "one", 1: "two"}
        return await fetch._on_hosts(where / "ckpt-000001")

    assert asyncio.run(play()) == {"one": {0}, "two": set()}


def test_a_manifest_that_cannot_be_read_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older checkpoint in its place would lose work."""
    where = tmp_path / "job"
    run(where, 2)
    newest, real = where / "ckpt-000002", Path.read_bytes

    def read(path: Path) -> bytes:
        if path == newest / "manifest.json":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path)

    async def play() -> None:
        fetch = Fetch(3, newest, False, _Storage())  # type: ignore[arg-type]
        await fetch._newest()

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", read)
        with pytest.raises(ManifestError, match="Input/output error"):
            asyncio.run(play())

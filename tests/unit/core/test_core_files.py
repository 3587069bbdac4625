"""Files that others see whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from manapy.core.files import replacing


@pytest.mark.parametrize("durable", [True, False])
def test_the_new_content_appears_at_the_end(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with replacing(path, durable=durable) as stream:
        stream.write(b"new")
        stream.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_the_old_content_stays_after_an_error(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(error), replacing(path, ".part") as stream:
        stream.write(b"new")
        assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "file.part"]
        raise error
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_only_the_owner_reads_a_private_file(tmp_path: Path) -> None:
    with replacing(tmp_path / "file", private=True) as stream:
        stream.write(b"memory")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600

"""The program that the tests of the backends drive."""

from __future__ import annotations

from pathlib import Path

import pytest
from rewinder import Rewinder
from work_requests import DRIVERS, build


@pytest.fixture(scope="session")
def rewinder(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Rewinder:
    directory = tmp_path_factory.mktemp("rewind")
    (directory / "infiniband").mkdir()
    library = build(
        directory / "libmlx5.so.1", [DRIVERS / "fake_mlx5.c"], "-shared", "-fPIC", "-Wl,-soname,libmlx5.so.1"
    )
    sources = [DRIVERS / "rewind_driver.c", *sorted((root / "lowerhalf" / "rdma" / "requests").glob("*.c"))]
    return Rewinder(build(directory / "rewind_driver", sources, str(library), f"-Wl,-rpath,{directory}"), directory)

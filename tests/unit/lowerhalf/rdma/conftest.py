"""The program that the tests of the backends drive."""

from __future__ import annotations

from pathlib import Path

import pytest
from rewinder import Rewinder
from work_requests import HERE, build


@pytest.fixture(scope="session")
def rewinder(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Rewinder:
    directory = tmp_path_factory.mktemp("rewind")
    (directory / "infiniband").mkdir()
    library = build(directory / "libmlx5.so.1", root, [HERE / "fake_mlx5.c"], "-shared", "-fPIC", "-Wl,-soname,libmlx5.so.1")
    rdma = root / "lowerhalf" / "rdma"
    sources = [HERE / "rewind_driver.c", *(rdma / name for name in ("work.c", "rewind.c", "rewind_rxe.c", "rewind_mlx5.c"))]
    return Rewinder(build(directory / "rewind_driver", root, sources, str(library), f"-Wl,-rpath,{directory}"), directory)

"""tests/programs/rdma/nullverbs.c behaves as a provider would. The interposer is measured and tested over it without
devices."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from work_requests import DRIVERS, build


@pytest.fixture(scope="module")
def nullverbs(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    """The library, built with sanitizers."""
    programs = root / "tests" / "programs" / "rdma"
    flags = ["-shared", "-fPIC", "-Wl,-soname,libibverbs.so.1", f"-Wl,--version-script={programs / 'nullverbs.map'}"]
    return build(tmp_path_factory.mktemp("nullverbs") / "libibverbs.so.1", [programs / "nullverbs.c"], *flags)


def run(program: Path, library: Path) -> str:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library.parent), "NULLVERBS_DEVICES": "3"}
    done = subprocess.run([program], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_behaves(tmp_path: Path, root: Path, nullverbs: Path) -> None:
    program = build(
        tmp_path / "driver",
        [DRIVERS / "nullverbs_driver.c"],
        f"-I{root / 'tests' / 'programs' / 'rdma'}",
        str(nullverbs),
    )
    assert run(program, nullverbs) == "ok\n"


def test_programs_of_the_real_library_find_it(tmp_path: Path, root: Path, nullverbs: Path) -> None:
    """By its symbol versions."""
    source = tmp_path / "list.c"
    body = (
        "struct ibv_device **list = ibv_get_device_list(0); puts(ibv_get_device_name(*list)); "
        "ibv_free_device_list(list); return 0;"
    )
    source.write_text(f"#include <infiniband/verbs.h>\n#include <stdio.h>\nint main(void) {{ {body} }}\n")
    assert run(build(tmp_path / "list", [source], "-libverbs", "-Wl,-z,now"), nullverbs) == "null0\n"

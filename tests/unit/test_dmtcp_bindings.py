"""manapy/dmtcp.py without an engine, and with a stand-in for one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from compiling import SHARED, build

from manapy import dmtcp


def test_without_an_engine(recwarn: pytest.WarningsRecorder) -> None:
    """The results are those of the macros of dmtcp.h."""
    assert dmtcp.dmtcp_is_enabled() == 0
    assert dmtcp.dmtcp_checkpoint() == dmtcp.DMTCP_NOT_PRESENT == 3
    assert dmtcp.dmtcp_disable_ckpt() == dmtcp.dmtcp_enable_ckpt() == 3
    assert dmtcp.dmtcp_get_coordinator_status() == (3, 0, 0)
    assert dmtcp.dmtcp_get_local_status() == (3, 0, 0)
    assert dmtcp.dmtcp_get_generation() == 0
    assert dmtcp.dmtcp_get_ckpt_filename() is None
    assert dmtcp.dmtcp_get_uniquepid_str() is None
    assert dmtcp.dmtcp_get_ckpt_dir() == ""
    assert dmtcp.dmtcp_set_ckpt_dir("/tmp") == dmtcp.dmtcp_set_ckpt_dir(None) == 3
    assert not recwarn.list


STAND_IN = r"""
#include <stdint.h>
#include <string.h>
static char dir[64] = "/a";
int dmtcp_is_enabled(void) { return 1; }
int dmtcp_checkpoint(void) { return 2; }
int dmtcp_get_local_status(int *c, int *r) { *c = 5; *r = 6; return 4; }
uint32_t dmtcp_get_generation(void) { return 4000000000u; }
const char *dmtcp_get_ckpt_dir(void) { return dir; }
int dmtcp_set_ckpt_dir(const char *d) { if (d) strcpy(dir, d); return 4; }
"""


def test_binds_to_what_the_process_runs_under(tmp_path: Path) -> None:
    library = build(tmp_path / "libdmtcp.so", STAND_IN, *SHARED)
    code = """
from manapy import dmtcp as d
from pathlib import Path
print(d.dmtcp_is_enabled(), d.dmtcp_checkpoint(), *d.dmtcp_get_local_status(), \
d.dmtcp_get_generation(), d.dmtcp_get_ckpt_dir(), end=" ")
print(d.dmtcp_set_ckpt_dir(Path("/b c")), d.dmtcp_set_ckpt_dir(None), d.dmtcp_get_ckpt_dir(), d.dmtcp_enable_ckpt())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env={"LD_PRELOAD": str(library)}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == "1 2 4 5 6 4000000000 /a 4 4 /b c 3".split()

"""lowerhalf/base/proc/maps.h: what lines of /proc/PID/maps say."""

from __future__ import annotations

import subprocess
from pathlib import Path

from compiling import build_core

DRIVER = r"""
#include "base/proc/maps.h"
int main(void) {
    static char text[] = "100000-101000 rw-s 00000000 00:01 7 /dev/zero (deleted)\n"
                         "200000-201000 rw-s 00000000 00:01 8 [anon_shmem:counter]\n"
                         "300000-301000 rw-p 00000000 00:00 0 [anon:buffer]\n"
                         "400000-401000 rw-s 00000000 08:01 9 /tmp/file\n";
    mpy_proc_maps_t maps = {.file = fmemopen(text, sizeof text - 1, "r")};
    for (mpy_proc_map_t m; mpy_proc_maps_next(&maps, &m) > 0;) printf("%s %d\n", m.path, m.deleted);
    mpy_proc_maps_close(&maps);
}
"""


def test_shared_memory_without_a_file(tmp_path: Path) -> None:
    """It may have a name (PR_SET_VMA_ANON_NAME), which stands where the mark of it is otherwise."""
    source = tmp_path / "driver.c"
    source.write_text(DRIVER)
    driver = build_core(tmp_path / "driver", [source])
    said = subprocess.run([driver], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["/dev/zero 1", "[anon_shmem:counter] 1", "[anon:buffer] 0", "/tmp/file 0"]

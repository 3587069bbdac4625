"""lowerhalf/isolate/trap: how a trapped system call changes the signal frame around it; ids of threads and children.

The kernel puts the extended state at the top of the frame, directly below the interrupted code's red zone. The room
between them depends on the CPU and on the stack's alignment. The effect of a damaged state also varies (lost registers,
SIGSEGV). So the test looks at the frame itself."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from compiling import build_core

HERE = Path(__file__).resolve().parent
FLAGS = ["-O2", "-fno-stack-protector", "-fcf-protection=none", "-mfsgsbase", "-pthread"]


def test_frames_and_ids(tmp_path: Path, root: Path) -> None:
    isolate = root / "lowerhalf" / "isolate"
    traps = sorted((isolate / "trap").glob("*.[cS]"))
    others = [isolate / name for name in ("arena.c", "fdguard.c", "ids.c", "jump.S", "pts.c")]
    sources = [HERE / "trap_driver.c", *traps, *others]
    driver = build_core(tmp_path / "trap_driver", sources, *FLAGS)
    done = subprocess.run([str(driver)], capture_output=True, text=True, timeout=60)
    assert "FAILED" not in done.stdout, done.stdout
    assert done.returncode == 0, done
    frames = re.search(r"(\d+) and (\d+) frames", done.stdout)
    assert frames and int(frames[1]) == int(frames[2]) > 8 * 25, done.stdout

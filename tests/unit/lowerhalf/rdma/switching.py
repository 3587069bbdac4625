"""Programs that run the interposer's own code over the null provider: drivers/switch_*.c."""

from __future__ import annotations

import os
from pathlib import Path

from compiling import SHARED
from work_requests import DRIVERS, build

FRAME = {"common/real", "kv/kv", "preload/preload"}  # switch_frame.c stands for these,
LINK = {"links/links", "links/rkeys", "links/backoff"}  # and switch_link.c for these
TRACE = ("file", "table")  # the files into which traffic.c writes


def build_driver(made: Path, root: Path, name: str, sanitizer: str, real_links: bool = False) -> tuple[Path, Path]:
    """A driver and the null provider, with a sanitizer."""
    rdma, null = root / "lowerhalf" / "rdma", root / "tests" / "programs" / "rdma"
    # The compiler warns that the thread sanitizer doesn't understand fences. Where fences matter (sections.h), only
    # atomic variables depend on them.
    sanitizers = [
        f"-fsanitize={sanitizer}",
        "-fno-sanitize-recover=all",
        "-Wno-tsan",
        "-Wno-unknown-warning-option",
        "-pthread",
    ]
    script = f"-Wl,--version-script={null / 'nullverbs.map'}"
    library = build(made / "libnullverbs.so", [null / "nullverbs.c"], *SHARED, script, sanitizers=sanitizers)
    ours = FRAME if real_links else FRAME | LINK
    parts = sorted(path for path in rdma.glob("*/*.c") if str(path.relative_to(rdma).with_suffix("")) not in ours)
    drivers = [DRIVERS / f"{file}.c" for file in (name, "switch_frame", *(() if real_links else ("switch_link",)))]
    sources = [*drivers, *parts, *(rdma.parent / "trace" / f"{file}.c" for file in TRACE)]
    return build(made / "driver", sources, f"-I{null}", "-ldl", sanitizers=sanitizers), library


def environment(tmp_path: Path, more: dict[str, str]) -> dict[str, str]:
    (tmp_path / "sys").mkdir()
    # it looks into the queue of an RNIC that runs meanwhile
    (tmp_path / "suppressions").write_text("race:^pending$\n")
    shift = {
        "MANAPY_SHIFT_AGENT": "here",
        "MANAPY_SHIFT_BACKUP": "null0:null1",
        "NULLVERBS_SYSFS": str(tmp_path / "sys"),
    }
    return {**os.environ, **shift, "TSAN_OPTIONS": f"halt_on_error=1 suppressions={tmp_path}/suppressions", **more}

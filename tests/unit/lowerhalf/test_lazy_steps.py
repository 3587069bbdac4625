"""How many steps lowerhalf/image/lazy takes for the runs of an image: near linear in their number."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from compiling import LOWER, build_core

REFUSED = 77
DRIVER = """
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include "image/lazy/lazy.h"
#include "isolate/fdguard.h"
#include "isolate/trap/trap.h"
enum { REFUSED = %d, PAGE = MPY_IMAGE_PAGE };
static _Atomic unsigned long steps;
/* Code that is compiled with -fsanitize-coverage=trace-pc calls it in each basic block. */
void __sanitizer_cov_trace_pc(void) __attribute__((no_sanitize_coverage));
void __sanitizer_cov_trace_pc(void) { steps++; }
volatile uint32_t mpy_memory_missing;
int mpy_fd_high(int fd) { return fd; }
void mpy_fd_close(int fd) { close(fd); }
int mpy_image_read_run(const mpy_image_t *image, const mpy_image_run_t *run, char *to, char *err, size_t n) {
    (void)image, (void)err, (void)n;
    *(uint64_t *)to = run->address;
    return 0;
}
static int never(void) { return 0; }
/* argv[1]: the number of runs, of one page each; every second page is in one */
int main(int argc, char **argv) {
    const size_t runs = (size_t)atol(argv[argc - 1]), bytes = 2 * runs * PAGE;
    char error[256], *all = mmap((void *)MPY_HEAP_LO, bytes, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    mpy_image_region_t region = {.lo = (uint64_t)all, .hi = (uint64_t)all + bytes};
    mpy_image_t image = {.regions = &region, .nregions = 1};
    mpy_image_run_t *run = calloc(runs, sizeof *run);
    if (all == MAP_FAILED || !run) return 1;
    if (mpy_lazy_begin(error, sizeof error)) return puts(error), REFUSED;
    for (size_t i = 0; i < runs; i++) {
        run[i] = (mpy_image_run_t){.address = region.lo + 2 * i * PAGE, .bytes = PAGE};
        const mpy_image_kept_t wanted = {run[i].address, PAGE};
        if (mpy_lazy_note(&image, &(mpy_image_part_t){&image, &run[i], &wanted, 1}) != 1) return 1;
    }
    if (mpy_lazy_start(&image, error, sizeof error)) return puts(error), 1;
    mpy_lazy_wait(never);
    for (size_t i = 0; i < runs; i++)
        if (*(uint64_t *)(all + 2 * i * PAGE) != run[i].address) return 1;
    printf("%%lu\\n", steps);
    return 0;
}
"""


def test_steps_are_near_linear_in_the_number_of_runs(tmp_path: Path) -> None:
    driver = tmp_path / "steps_driver.c"
    driver.write_text(DRIVER % REFUSED)
    sources = [driver, LOWER / "image/lazy/lazy.c", LOWER / "image/lazy/pending.c"]
    program = build_core(tmp_path / "steps", sources, "-fsanitize-coverage=trace-pc", "-pthread")

    def steps(runs: int) -> int:
        result = subprocess.run([program, str(runs)], capture_output=True, text=True)
        if result.returncode == REFUSED:
            pytest.skip(result.stdout.strip())
        assert result.returncode == 0, result
        return int(result.stdout)

    assert steps(8192) < 24 * steps(1024)

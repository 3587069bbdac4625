"""C of the backs (lowerhalf/mpi/back/shared), without an MPI library."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from compiling import LOWER, build_core
from mpich_wheel import ABI, ROOT, TABLE

SHARED = LOWER / "mpi/back/shared"
# The lower block, and what other files of the back define.
FRAME = r"""
#include "back_interface.h"
#include <manapy/boundary.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
void *mpy_theirs[MPY_FN_COUNT];
const mpy_row_t mpy_rows[1];
const size_t mpy_rows_count = 0;
const mpy_object_t mpy_no_file;
int mpy_code_out_slow(int code) { return code + 1000; }
int mpy_code_in(int code) { return code; }
int mpy_their_class(int code) { return code; }
int mpy_number_in(mpy_group_t group, int value) { return (void)group, value; }
void *mpy_spawn_info(void *given) { return given; }
static void end(const char *line, int code) {
    printf("%s\n", line);
    fflush(stdout);
    _exit(code);
}
static void begin(void) {
    static const mpy_services_t services = {.die = end};
    char error[256];
    if (mmap((void *)MPY_LOWER_ADDR, MPY_UPPER_ADDR - MPY_LOWER_ADDR, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != (void *)MPY_LOWER_ADDR) _exit(2);
    MPY_LOWER->svc = &services;
    mpy_handles_open(NULL, error, sizeof error); /* fails, because there are no predefined objects */
}
"""

MANY = r"""
int main(void) {
    begin();
    int last = 0;
    for (int i = 0; i < 4194304; i++) last = mpy_handle_add(MPY_KIND_REQUEST, &last);
    printf("%d\n", mpy_in(MPY_KIND_REQUEST, last) == &last && mpy_in(MPY_KIND_MESSAGE, last) == NULL);
    mpy_handle_remove(MPY_KIND_REQUEST, last);
    printf("%d\n", mpy_handle_add(MPY_KIND_REQUEST, &last) == last);
    mpy_handle_add(MPY_KIND_REQUEST, &last);
    return 3;
}
"""

# The library has started two processes, and the second of them has failed. maxprocs of a rank other than the root may
# be anything.
SPAWN = r"""
static int rank;
static int test_inter(void *comm, int *flag) { return (void)comm, *flag = 0; }
static int comm_rank(void *comm, int *out) { (void)comm; *out = rank; return 0; }
static int two(void *comm, int *size) { (void)comm; *size = 2; return 0; }
static int started(void **intercomm, int *codes) {
    *intercomm = &rank;
    codes[0] = 0, codes[1] = 7;
    return 0;
}
static int spawn(const char *command, char *argv[], int n, void *info, int root, void *comm, void **inter, int *codes) {
    (void)command, (void)argv, (void)n, (void)info, (void)root, (void)comm;
    return started(inter, codes);
}
static int spawn_multiple(int n, char *commands[], char **argvs[], const int most[], void **infos, int root, void *comm,
                          void **inter, int *codes) {
    (void)n, (void)commands, (void)argvs, (void)most, (void)infos, (void)root, (void)comm;
    return started(inter, codes);
}
static void *ours(int slot) {
    for (size_t i = 0; i < mpy_ours_spawn_count; i++)
        if (mpy_ours_spawn[i].slot == slot) return mpy_ours_spawn[i].function;
    return NULL;
}
int main(void) {
    begin();
    mpy_theirs[MPY_FN_Comm_test_inter] = (void *)test_inter;
    mpy_theirs[MPY_FN_Comm_rank] = (void *)comm_rank;
    mpy_theirs[MPY_FN_Comm_size] = mpy_theirs[MPY_FN_Comm_remote_size] = (void *)two;
    mpy_theirs[MPY_FN_Comm_spawn] = (void *)spawn;
    mpy_theirs[MPY_FN_Comm_spawn_multiple] = (void *)spawn_multiple;
    int comm = mpy_handle_add(MPY_KIND_COMM, &rank);
    for (rank = 0; rank < 2; rank++) {
        int inter, codes[4] = {5, 5, 5, 5}, more[4] = {5, 5, 5, 5}, most[2] = {1, 1};
        MPI_Info infos[2] = {MPI_INFO_NULL, MPI_INFO_NULL};
        ((mpy_fn_Comm_spawn_t)ours(MPY_FN_Comm_spawn))("p", NULL, rank == 0 ? 2 : 4, MPI_INFO_NULL, 0, comm, &inter,
                                                       codes);
        ((mpy_fn_Comm_spawn_multiple_t)ours(MPY_FN_Comm_spawn_multiple))(
            rank == 0 ? 2 : 4, NULL, NULL, rank == 0 ? most : NULL, rank == 0 ? infos : NULL, 0, comm, &inter, more);
        for (int i = 0; i < 4; i++) printf("%d %d ", codes[i], more[i]);
        printf("\n");
    }
}
"""


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The headers that a build makes."""
    where = tmp_path_factory.mktemp("generated")
    for program in ("generate", "generate.other_abis.back"):
        subprocess.run([sys.executable, "-B", "-m", program, TABLE, ABI, where], cwd=ROOT / "wrappers", check=True)
    shutil.copy(ROOT / "wrappers/core/mpich.h", where)
    return where


def said(generated: Path, where: Path, text: str, *sources: str) -> tuple[int, str]:
    """The exit status and the output of a program that is linked with files of the backs."""
    source = where / "driver.c"
    source.write_text(FRAME + '#include "functions.h"\n' + text)
    places = [f"-I{generated / 'back/openmpi'}", f"-I{generated}", f"-I{LOWER / 'mpi/back/openmpi'}"]
    options = ["-Wno-strict-prototypes", *places, "-ldl"]
    driver = build_core(where / "driver", [source, *(SHARED / name for name in sources)], *options)
    done = subprocess.run([driver], capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout


def test_many_requests(generated: Path, tmp_path: Path) -> None:
    """As many as without a back; one more ends the job with one line."""
    code, text = said(generated, tmp_path, MANY, "handles.c")
    assert text.splitlines() == ["1", "1", "too many MPI objects of one kind at once (4194304)"]
    assert code == 1


def test_codes_of_spawned_processes(generated: Path, tmp_path: Path) -> None:
    """They are translated on each rank, and nothing behind them is touched."""
    code, text = said(generated, tmp_path, SPAWN, "handles.c", "arrays.c", "spawn.c")
    assert code == 0
    assert text.splitlines() == ["0 0 1007 1007 5 5 5 5 "] * 2

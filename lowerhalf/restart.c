/* restart.c - manapy-restart: becomes a new lower half of one rank and continues a checkpoint above it.
 *
 * Half: lower; runs once, on the process's own stack, which becomes unused when the program's main thread continues.
 *
 * Invariants
 *  1. Every rank checks its whole image before it joins the job; nothing of the program runs before all ranks are ready.
 *  2. A failure leaves checkpoint and files as they were (restore.h says what is committed when).
 */
#include "control/control.h"
#include "image/reader.h"
#include "lower.h"
#include "restore.h"
#include "stack.h"
#include "state/cpu.h"
#include "state/fds.h"
#include "trap.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "functions.h" /* MPY_TABLE_HASH */

char **mpy_initial_environ;

/* The checkpoint directory: as given, or `latest` of a job directory. */
static const char *checkpoint_path(const char *given) {
    static char path[PATH_MAX];
    char inside[PATH_MAX];
    snprintf(inside, sizeof inside, "%s/manifest.json", given);
    if (access(inside, R_OK)) {
        snprintf(inside, sizeof inside, "%s/latest/manifest.json", given);
        if (access(inside, R_OK)) mpy_fail(1, "%s is no checkpoint and no job directory with one (see `manapy list`)", given);
    }
    *strrchr(inside, '/') = 0;
    if (!realpath(inside, path)) mpy_fail(1, "%s: %s", inside, strerror(errno));
    return path;
}

/* How many ranks it has: its image files. The manifest says so too; `manapy verify` compares both. */
static int count_images(const char *checkpoint) {
    for (int ranks = 0;; ranks++) {
        char path[PATH_MAX + 32];
        snprintf(path, sizeof path, "%s/rank-%05d.img", checkpoint, ranks);
        if (access(path, F_OK)) return ranks;
    }
}

static void open_image(mpy_image_t *image, const char *checkpoint, int ranks) {
    char path[PATH_MAX + 32], error[1024];
    snprintf(path, sizeof path, "%s/rank-%05d.img", checkpoint, MPY_LOWER->rank);
    if (mpy_image_open(image, path, MPY_LOWER->rank, ranks, error, sizeof error) || mpy_image_check_runs(image, NULL, error, sizeof error)) mpy_fail(1, "%s", error);
    if (image->header.boundary_version != MPY_BOUNDARY_VERSION || image->header.table_hash != MPY_TABLE_HASH)
        mpy_fail(1, "%s: written by another version of manapy; restart it with that version", path);
    if (mpy_cpu_check(image->header.cpu_features, image->header.xsave_bytes, error, sizeof error)) mpy_fail(1, "%s", error);
}

static void must(int result, const char *error) {
    if (result) mpy_fail(1, "%s", error);
}

int main(int argc, char **argv, char **envp) {
    static mpy_image_t image;
    char error[1024] = "";
    mpy_initial_environ = envp;
    mpy_options.command = "manapy-restart";
    mpy_options_t options;
    int first = mpy_options_parse(argc, argv, &options);
    const char *checkpoint = checkpoint_path(argv[first]);
    int ranks = count_images(checkpoint);

    mpy_fds_note_stdio();
    mpy_blocks_map();
    mpy_lower_join(argv + first, checkpoint, ranks, 1);
    open_image(&image, checkpoint, ranks);
    MPY_LOWER->generation = image.header.generation + 1;

    must(mpy_restore_mpi(&image, error, sizeof error), error);
    must(mpy_restore_memory(&image, error, sizeof error), error);
    mpy_lower_start(image.header.program);
    must(mpy_restore_process(&image, error, sizeof error), error);
    must(mpy_restore_threads(&image, error, sizeof error), error);
    mpy_stack_show_arguments();
    must(mpy_restore_rebuild(&image, error, sizeof error), error);
    if (!mpy_control_ready_and_wait_go(error, sizeof error)) mpy_fail(1, "%s", error);
    must(mpy_restore_commit(error, sizeof error), error);
    mpy_restore_run(&image);
}

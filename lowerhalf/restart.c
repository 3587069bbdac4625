/* restart.c - manapy-restart: becomes a new lower half of one rank and continues a checkpoint above it.
 *
 * Half: lower; runs once, on the process's own stack, which becomes unused when the program's main thread continues.
 *
 * Invariants
 *  1. Every byte of the image is checked before it is believed: sections when it is opened, page data as it is read into memory.
 *     (Only the thread level for MPI_Init is peeked at before.) Nothing of the program runs before all ranks are ready.
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
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <manapy/image.h>
#include <stddef.h>
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

/* How many ranks it has: as the header of any image that is there says. Checked in full once we know which one is ours. */
static int count_ranks(const char *checkpoint) {
    char pattern[PATH_MAX + 32];
    glob_t found;
    mpy_image_header_t header = {0};
    snprintf(pattern, sizeof pattern, "%s/rank-*.img", checkpoint);
    if (glob(pattern, 0, NULL, &found)) mpy_fail(1, "%s holds no images", checkpoint);
    int fd = open(found.gl_pathv[0], O_RDONLY | O_CLOEXEC);
    if (fd < 0) mpy_fail(1, "%s: %s", found.gl_pathv[0], strerror(errno));
    if (read(fd, &header, sizeof header) < (ssize_t)offsetof(mpy_image_header_t, host) || memcmp(header.magic, MPY_IMAGE_MAGIC, sizeof header.magic) || header.size < 1)
        mpy_fail(1, "%s is not a complete image", found.gl_pathv[0]);
    close(fd);
    globfree(&found);
    return header.size;
}

static void open_image(mpy_image_t *image, const char *checkpoint, int ranks) {
    char path[PATH_MAX + 32], error[1024];
    snprintf(path, sizeof path, "%s/rank-%05d.img", checkpoint, MPY_LOWER->rank);
    if (mpy_image_open(image, path, MPY_LOWER->rank, ranks, error, sizeof error) || mpy_image_check_files(image, error, sizeof error)) mpy_fail(1, "%s", error);
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
    int ranks = count_ranks(checkpoint);

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

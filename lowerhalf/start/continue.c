/* continue.c - a new lower half, which knows its rank and its job, continues its part of a checkpoint.
 *
 * Half: lower; runs once, on the process's own stack, which becomes unused when the program's main thread continues.
 *
 * Invariants
 *  1. Every byte of the image is checked before it is used: sections when the image is opened, page data as it is read
 *     into memory. Only our user can have written the image, and its seals are those of its job. No code of the
 *     program runs before all ranks are ready.
 *  2. A failure leaves checkpoint and files as they were (restore.h says what is committed when).
 */
#include "control/callbacks.h"
#include "control/control.h"
#include "image/file/reader.h"
#include "image/restore.h"
#include "isolate/fdguard.h"
#include "lower.h"
#include "process/cpu.h"
#include "process/fds/fds.h"
#include "stack.h"
#include "trace/recorder.h"
#include "tree/tree.h"
#include <errno.h>
#include <limits.h>
#include <manapy/image.h>
#include <manapy/image_path.h>
#include <manapy/own.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "functions.h" /* MPY_TABLE_HASH */

static const mpy_image_keys_t *keys_of(const char *checkpoint) {
    static mpy_image_keys_t keys;
    char error[1024];
    uint8_t secret[MPY_SECRET_BYTES];
    if (mpy_options.is_unsigned) return NULL;
    if (!mpy_checkpoint_secret(checkpoint, secret, error, sizeof error))
        mpy_fail(1, "%s: its seals cannot be checked without the job's secret (%s): copy the secret from the job "
                    "directory into the checkpoint; --unsigned uses the checkpoint anyway", checkpoint, error);
    mpy_image_keys(&keys, secret);
    return &keys;
}

static void open_image(mpy_image_t *image, const char *checkpoint) {
    char path[PATH_MAX + MPY_IMAGE_PATH_MORE], error[1024];
    struct stat st;
    if (stat(checkpoint, &st)) mpy_fail(1, "%s: %s", checkpoint, strerror(errno));
    if (mpy_own_check(checkpoint, &st, 022, error, sizeof error)) mpy_fail(1, "%s", error);
    if (mpy_image_located()) snprintf(path, sizeof path, "%s", mpy_image_located());
    else mpy_image_path(path, sizeof path, checkpoint, MPY_LOWER->rank);
    if (mpy_image_open(image, path, MPY_LOWER->rank, MPY_LOWER->size, keys_of(checkpoint), error, sizeof error) ||
        mpy_image_check_loadable(image, error, sizeof error) || mpy_image_check_files(image, error, sizeof error))
        mpy_fail(1, "%s", error);
    if (image->header.boundary_version != MPY_BOUNDARY_VERSION || image->header.table_hash != MPY_TABLE_HASH)
        mpy_fail(1, "%s: written by another version of manapy; restart it with that version", path);
    if (mpy_cpu_check(image->header.cpu_features, image->header.xsave_bytes, error, sizeof error))
        mpy_fail(1, "%s", error);
}

/* Ranks that share memory find it on the host only. */
static void check_company(const mpy_image_t *image) {
    const uint32_t before = image->header.local_size;
    const int now = mpy_lower_local_size();
    bool shares = false;
    for (uint64_t i = 0; i < image->nregions; i++) shares |= (image->regions[i].flags & MPY_REGION_OF_RANKS) != 0;
    if (shares && now > 0 && (uint32_t)now < before)
        mpy_fail(1, "%s: this rank shares memory (System V or /dev/shm) with other ranks of its host: %u ranks ran "
                    "there, only %d run here; restart with the same ranks on each host", image->path, before, now);
}

static void must(int result, const char *error) {
    if (result) mpy_fail(1, "%s", error);
}

/* Connects the process with MPI and with the other ranks. */
static void rejoin_ranks(const mpy_image_t *image) {
    char error[1024] = "";
    must(mpy_restore_rebuild(image, error, sizeof error), error);
    mpy_recorder_rebuilt();
    mpy_tree_arrive(MPY_TREE_RESTORED);
    if (!mpy_control_ready_and_wait_go(error, sizeof error)) mpy_fail(1, "%s", error);
    mpy_callbacks_after(MPY_CALL_RESTARTED);
}

/* The files of all other processes of the tree are cut before those of the MPI process, which then waits for the other
 * ranks. Those processes go on when it lets them. */
static void commit(bool is_rank) {
    char error[1024] = "";
    if (is_rank) mpy_tree_arrive(MPY_TREE_COMMITTED);
    must(mpy_restore_commit(error, sizeof error), error);
    if (!is_rank) mpy_tree_arrive(MPY_TREE_COMMITTED);
    if (mpy_fds_lent_is_unsent()) must(mpy_fds_part(error, sizeof error), error);
    mpy_tree_pass(MPY_TREE_COMMITTED);
}

void mpy_continue(const char *checkpoint) {
    static mpy_image_t ranks;
    char error[1024] = "";
    open_image(&ranks, checkpoint);
    MPY_LOWER->generation = ranks.header.generation + 1;
    mpy_reader_t fds;
    mpy_reader_init(&fds, ranks.fds, ranks.fds_bytes);
    must(mpy_fds_make_terminals(&fds, error, sizeof error), error);
    mpy_image_t *image = mpy_tree_restore(&ranks);

    mpy_reader_init(&fds, image->fds, image->fds_bytes);
    must(mpy_fds_make_way(&fds, error, sizeof error), error);
    for (mpy_image_t *i = image; i; i = i->parent) i->fd = mpy_fd_high(i->fd);
    mpy_lower_make_way();
    check_company(image);
    must(mpy_restore_mpi(image, error, sizeof error), error);
    must(mpy_restore_memory(image, error, sizeof error), error);
    mpy_lower_start(image->header.program);
    must(mpy_restore_process(image, error, sizeof error), error);
    mpy_tree_translate();
    must(mpy_restore_threads(image, error, sizeof error), error);
    mpy_stack_show_arguments();
    if (image == &ranks) rejoin_ranks(image);
    else mpy_tree_arrive(MPY_TREE_RESTORED);
    mpy_tree_pass(MPY_TREE_RESTORED);
    commit(image == &ranks);
    must(mpy_fds_part(error, sizeof error), error);
    mpy_restore_run(image);
}

/* file_rebuild.c - MPI files over a checkpoint. The drain queries file pointers and sizes. After a restart the files
 * are opened again, with everything that the program has set.
 *
 * Upper half, no libc. Hooks: main thread, all others stopped; between mpy_hook_in and mpy_hook_out in the lower half.
 *
 * Files are not part of a checkpoint. Data written before it is in the file system: a call that has returned has
 * written, and the drain completes the others. Data written after it is removed as for the program's own descriptors
 * (lowerhalf/process/fds/fds_file.c): a file open for writing that has grown is truncated to its old length, and one
 * that has become shorter is refused. But a file with MPI_MODE_DELETE_ON_CLOSE may no longer exist: the first member
 * saves its content, up to CONTENT_MAX bytes.
 *
 * Invariants
 *  1. The drain (after that of requests) finds no access in progress on any rank, so it needs no communication here.
 *  2. Files are opened again in the order of their identities, which is the same on all members: so collective calls on
 *     different files can't wait for each other. The first member decides for all whether to truncate or to refuse, by
 *     what it has seen: while a process outside the job writes, members see different sizes.
 */
#include "file.h"
#include "comm/group.h"

enum { CONTENT_MAX = 64 << 20 };

/* Opens it by the program's name, in the working directory of that time. */
static int open_by_name(const mpy_file_t *f, int comm, int amode, int info, MPI_File *real) {
    char here[MPY_PATH_SIZE];
    bool away = f->directory != NULL && mpy_sys(SYS_getcwd, here, sizeof here) > 0;
    if (away) mpy_sys(SYS_chdir, f->directory);
    int rc = MPY_REAL(File_open)(comm, f->name, amode, info, real);
    if (away) mpy_sys(SYS_chdir, here);
    return rc;
}

static void content_drop(mpy_file_t *f) {
    if (f->content != NULL) mpy_free(f->content, (size_t)f->bytes + 1);
    f->content = NULL;
}

/* ---- drain ---- */

static int content_save(mpy_file_t *f) {
    MPI_File own;
    if (!(f->amode & MPI_MODE_DELETE_ON_CLOSE)) return MPI_SUCCESS;
    if (f->world[0] != MPY_LOWER->rank || f->bytes > CONTENT_MAX) return MPI_SUCCESS;
    if (open_by_name(f, MPI_COMM_SELF, MPI_MODE_RDONLY, MPI_INFO_NULL, &own) != 0) return MPI_SUCCESS;
    f->content = mpy_try_alloc((size_t)f->bytes + 1); /* + 1: even if there is nothing to read */
    int rc = MPI_ERR_NO_MEM;
    if (f->content != NULL) rc = MPY_REAL(File_read_at)(own, 0, f->content, (int)f->bytes, MPI_BYTE, MPI_STATUS_IGNORE);
    MPY_REAL(File_close)(&own);
    if (rc != 0) content_drop(f);
    return rc == MPI_ERR_NO_MEM ? rc : MPI_SUCCESS;
}

static int inquire(mpy_file_t *f) {
    content_drop(f); /* left from a checkpoint that was given up */
    int rc = MPY_REAL(File_get_size)(f->real, &f->bytes);
    if (rc == 0) rc = content_save(f);
    if (rc == 0) rc = MPY_REAL(File_get_position)(f->real, &f->position);
    if (rc == 0 && f->shared) rc = MPY_REAL(File_get_position_shared)(f->real, &f->shared_position);
    return rc;
}

int mpy_file_drain(char *error, uint64_t n) {
    mpy_thread_t *t = &MPY_UPPER->threads[0];
    int rc = 0;
    mpy_hook_in(t);
    for (uint32_t i = 0; i < mpy_file_limit && rc == 0; i++) {
        if (!mpy_files[i].open || (rc = inquire(&mpy_files[i])) == 0) continue;
        if (rc == MPI_ERR_NO_MEM)
            mpy_text_format(error, n, "there is no memory for the content of the MPI file '%s' (deleted on close)",
                            mpy_files[i].name);
        else
            mpy_text_format(error, n, "cannot ask where the pointers of the MPI file '%s' are (MPI error %d)",
                            mpy_files[i].name, rc);
    }
    mpy_hook_out(t);
    return rc == 0 ? 0 : -1;
}

void mpy_file_resume(void) {
    for (uint32_t i = 0; i < mpy_file_limit; i++)
        if (mpy_files[i].open) content_drop(&mpy_files[i]);
}

/* ---- restart ---- */

static int content_put_back(const mpy_file_t *f) {
    MPI_File own;
    int rc = open_by_name(f, MPI_COMM_SELF, MPI_MODE_WRONLY | MPI_MODE_CREATE, MPI_INFO_NULL, &own);
    if (rc != 0) return rc;
    rc = MPY_REAL(File_set_size)(own, f->bytes);
    if (rc == 0) rc = MPY_REAL(File_write_at)(own, 0, f->content, (int)f->bytes, MPI_BYTE, MPI_STATUS_IGNORE);
    MPY_REAL(File_close)(&own);
    return rc;
}

static mpy_file_t *next_file(uint64_t last) {
    mpy_file_t *best = NULL;
    for (uint32_t i = 0; i < mpy_file_limit; i++) {
        mpy_file_t *f = &mpy_files[i];
        if (f->open && f->cid > last && (best == NULL || f->cid < best->cid)) best = f;
    }
    return best;
}

static int open_again(mpy_file_t *f) {
    int group, amode = f->amode & ~(MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_APPEND | MPI_MODE_SEQUENTIAL);
    int rc = MPY_REAL(Group_incl)(mpy_world_group(), f->size, f->world, &group);
    if (rc != 0) return rc;
    rc = MPY_REAL(Comm_create_group)(MPI_COMM_WORLD, group, (int)(f->cid & 0x7fff), &f->real_comm);
    MPY_REAL(Group_free)(&group);
    if (rc == 0) rc = MPY_REAL(Comm_set_errhandler)(f->real_comm, MPI_ERRORS_RETURN);
    if (rc == 0 && f->content != NULL) rc = content_put_back(f);
    if (rc == 0) rc = MPY_REAL(Barrier)(f->real_comm); /* now it exists for all members */
    content_drop(f);
    return rc == 0 ? open_by_name(f, f->real_comm, amode, mpy_real_info(f->info), &f->real) : rc;
}

enum { SHORTER = -1 };

static int cut(const mpy_file_t *f) {
    MPI_Offset sizes[] = {0, f->bytes}; /* now, and at the checkpoint */
    int rc = MPY_REAL(File_get_size)(f->real, &sizes[0]);
    if (rc == 0) rc = MPY_REAL(Bcast)(sizes, 2, MPI_OFFSET, 0, f->real_comm);
    if (rc != 0) return rc;
    if (sizes[0] < sizes[1]) return SHORTER;
    bool cuts = sizes[0] > sizes[1] && !(f->amode & MPI_MODE_RDONLY);
    return cuts ? MPY_REAL(File_set_size)(f->real, sizes[1]) : MPI_SUCCESS;
}

static int put_back(mpy_file_t *f) {
    /* Members that haven't used the shared file pointer don't know its value. */
    MPI_Offset mine = f->shared ? f->shared_position : -1, shared = -1;
    int rc = MPY_REAL(File_set_view)(f->real, f->disp, mpy_view_type_real(&f->etype), mpy_view_type_real(&f->filetype),
                                     f->external32 ? "external32" : "native", mpy_real_info(f->info));
    if (rc == 0) rc = MPY_REAL(File_seek)(f->real, f->position, MPI_SEEK_SET);
    if (rc == 0) rc = MPY_REAL(Allreduce)(&mine, &shared, 1, MPI_OFFSET, MPI_MAX, f->real_comm);
    if (rc == 0 && shared >= 0) rc = MPY_REAL(File_seek_shared)(f->real, shared, MPI_SEEK_SET);
    if (rc == 0 && f->atomic) rc = MPY_REAL(File_set_atomicity)(f->real, 1);
    return rc;
}

static void explain(char *error, uint64_t n, const char *what, const char *name, int rc) {
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int length;
    MPY_REAL(Error_string)(rc, text, &length);
    mpy_text_format(error, n, "cannot %s the MPI file '%s': %s", what, name, text);
}

static int rebuild_one(mpy_file_t *f, char *error, uint64_t n) {
    int rc = open_again(f);
    if (rc != 0) {
        explain(error, n, "open again", f->name, rc);
        return -1;
    }
    rc = cut(f);
    if (rc == SHORTER) {
        mpy_text_format(error, n, "the MPI file '%s' is shorter now than at the checkpoint", f->name);
        return -1;
    }
    if (rc == 0) rc = put_back(f);
    if (rc == 0) return 0;
    explain(error, n, "put back the state of", f->name, rc);
    return -1;
}

int mpy_file_rebuild(char *error, uint64_t n) {
    mpy_thread_t *t = &MPY_UPPER->threads[0];
    uint64_t last = 0;
    mpy_hook_in(t);
    int rc = mpy_datarep_rebuild();
    if (rc != 0) mpy_text_format(error, n, "cannot register a data representation again (MPI error %d)", rc);
    for (mpy_file_t *f; rc == 0 && (f = next_file(last)) != NULL; last = f->cid) rc = rebuild_one(f, error, n);
    mpy_hook_out(t);
    return rc == 0 ? 0 : -1;
}

void mpy_file_rebuild_trace(void) {
    for (uint32_t i = 0; i < mpy_file_limit; i++)
        if (mpy_files[i].open) mpy_file_trace(&mpy_files[i]);
}

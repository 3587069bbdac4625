/* file.c - MPI files as objects: the table of records, open and close, handles, error handlers. Views and hints are in
 * file_view.c, requests in file_access.c; file_rebuild.c has the work of a checkpoint and a restart. Nearly all
 * accesses are generated.
 *
 * Upper half, no libc.
 */
#include "file.h"
#include "clock/clock.h"
#include "environment/errors.h"
#include "environment/info.h"
#include "environment/outside.h"
#include "tools/trace.h"

enum {
    FILES_MAX = 1 << 14,
    KEPT = 32,              /* a handle is reused only when more than this number of handles were freed after it */
    FIRST_INTEGER = 0x1001, /* as in MPICH: lower values are constants of the ABI */
};

mpy_file_t *mpy_files;
uint32_t mpy_file_limit;
static mpy_file_t *first_free, **last_free = &first_free; /* oldest first */
static uint32_t nfree;
static int file_default = MPI_ERRORS_RETURN; /* error handler of MPI_FILE_NULL, and of files to be opened */

/* ---- the table ---- */

static mpy_file_t *slot_take(void) {
    mpy_file_t *f;
    mpy_lock(&mpy_objects_lock);
    if (mpy_files == NULL) mpy_files = mpy_alloc(FILES_MAX * sizeof *mpy_files);
    if (nfree > KEPT || mpy_file_limit == FILES_MAX) {
        f = first_free;
        if (f == NULL) MPY_LOWER->svc->die("too many MPI files open at once (16384)", 1);
        first_free = f->next;
        if (first_free == NULL) last_free = &first_free;
        nfree--;
    } else {
        f = &mpy_files[mpy_file_limit++];
    }
    mpy_unlock(&mpy_objects_lock);
    *f = (mpy_file_t){0};
    return f;
}

static void slot_free(mpy_file_t *f) {
    mpy_lock(&mpy_objects_lock);
    f->open = false;
    f->next = NULL;
    *last_free = f;
    last_free = &f->next;
    nfree++;
    mpy_unlock(&mpy_objects_lock);
}

int PMPI_File_toint(MPI_File handle) {
    const mpy_file_t *f = mpy_file(handle);
    return f != NULL ? (int)(f - mpy_files) + FIRST_INTEGER : 0;
}
MPI_File PMPI_File_fromint(int file) {
    uint32_t i = (uint32_t)file - FIRST_INTEGER;
    return i < mpy_file_limit ? mpy_file(&mpy_files[i]) : MPI_FILE_NULL;
}
MPI_Fint PMPI_File_c2f(MPI_File handle) { return PMPI_File_toint(handle); }
MPI_File PMPI_File_f2c(MPI_Fint file) { return PMPI_File_fromint(file); }

/* ---- open and close ---- */

static bool relative(const char *name) { return name[0] != '/'; }

/* In the lower half. */
static mpy_file_t *adopt(MPI_File real, mpy_comm_t *c, uint64_t seq, const char *name, int amode, int info) {
    mpy_file_t *f = slot_take();
    const mpy_clock_row_t *row = mpy_row(c->row);
    const int32_t *members = c->foreign ? row->members : c->world;
    f->real = real;
    f->real_comm = MPI_COMM_NULL;
    if (!c->foreign) MPY_REAL(Comm_dup)(c->obj.real, &f->real_comm);
    f->size = c->foreign ? (int)row->nmembers : c->size;
    f->world = mpy_alloc((size_t)f->size * sizeof *f->world);
    __builtin_memcpy(f->world, members, (size_t)f->size * sizeof *f->world);
    int32_t smallest = f->world[0];
    for (int i = 1; i < f->size; i++)
        if (f->world[i] < smallest) smallest = f->world[i];
    f->cid = mpy_child_cid(row->cid, seq, smallest);
    f->name = mpy_text_copy(name);
    if (relative(name)) {
        char path[MPY_PATH_SIZE];
        if (mpy_sys(SYS_getcwd, path, sizeof path) > 0) f->directory = mpy_text_copy(path);
    }
    f->amode = amode;
    f->sequential = amode & MPI_MODE_SEQUENTIAL && !c->foreign;
    f->shared = amode & MPI_MODE_APPEND; /* its shared pointer then starts at the end */
    f->session = c->session;
    f->errhandler = file_default;
    mpy_errhandler_ref(f->errhandler);
    f->info = MPI_INFO_NULL;
    mpy_info_merge(&f->info, info);
    f->etype = f->filetype = mpy_view_type(MPI_BYTE);
    f->open = true;
    f->row = mpy_row_add(f->cid, f->world, f->size, PMPI_File_toint(f));
    mpy_row(f->row)->name = f->name;
    mpy_file_trace(f);
    if (c->foreign) {
        f->foreign.name = f->name;
        mpy_foreign_file_open(&f->foreign);
    }
    return f;
}

void mpy_file_trace(mpy_file_t *f) {
    f->trace = MPY_LOWER->svc->trace_comm(f->cid, mpy_ggid(f->world, f->size), f->world, (uint32_t)f->size, 0, f->name);
}

static void forget(mpy_file_t *f) {
    if (f->foreign.name != NULL) mpy_foreign_file_close(&f->foreign);
    mpy_errhandler_unref(f->errhandler);
    mpy_info_drop(f->info);
    mpy_view_type_drop(&f->etype);
    mpy_view_type_drop(&f->filetype);
    mpy_row_remove(f->row);
    mpy_free(f->world, (size_t)f->size * sizeof *f->world);
    mpy_text_free(f->name);
    mpy_text_free(f->directory);
    slot_free(f);
}

int PMPI_File_open(MPI_Comm comm, const char *filename, int amode, MPI_Info info, MPI_File *fh) {
    mpy_thread_t *t = mpy_self();
    mpy_comm_t *c = mpy_comm(comm);
    MPI_File real = MPI_FILE_NULL;
    if (fh != NULL) *fh = MPI_FILE_NULL; /* until the file is open */
    /* both modes together are an error */
    int rc, real_amode = amode & MPI_MODE_RDWR || (c != NULL && c->foreign) ? amode : amode & ~MPI_MODE_SEQUENTIAL;
    if (c == NULL || c->remote_size != 0) {
        mpy_cross_in(t);
        rc = MPY_REAL(File_open)(mpy_real_comm(comm), filename, amode, mpy_real_info(info), &real);
        mpy_cross_out(t);
        return mpy_file_error(NULL, rc, "MPI_File_open");
    }
    mpy_clock_row_t *row = mpy_row(c->row);
    uint64_t record = MPY_TRACE(t, .op = MPY_OP_FILE, MPY_TRACE_COLLECTIVE(c));
    mpy_clock_enter(t, row);
    uint64_t seq = row->seq;
    mpy_cross_in_collective(t);
    rc = MPY_REAL(File_open)(c->obj.real, filename, real_amode, mpy_real_info(info), &real);
    if (rc == 0) *fh = adopt(real, c, seq, filename, amode, info);
    mpy_collective_leave(t, row, rc);
    mpy_traced(t, record, rc);
    return MPY_LIKELY(rc == 0) ? 0 : mpy_file_error(NULL, rc, "MPI_File_open");
}

int PMPI_File_close(MPI_File *fh) {
    mpy_file_call_t call = mpy_file_enter(*fh);
    MPI_File real = mpy_real_file(call.f);
    if (call.f != NULL) {
        mpy_file_settle(call.f);
        /* all members leave together: their rows and records are removed now */
        if (call.f->real_comm != MPI_COMM_NULL) MPY_REAL(Barrier)(call.f->real_comm);
    }
    int rc = MPY_REAL(File_close)(&real);
    if (rc == 0) {
        if (call.f->real_comm != MPI_COMM_NULL) MPY_REAL(Comm_free)(&call.f->real_comm);
        forget(call.f);
        *fh = MPI_FILE_NULL;
    }
    mpy_file_leave(call, rc);
    /* the real library uses this handler, too */
    return MPY_LIKELY(rc == 0) ? 0 : mpy_file_error(NULL, rc, "MPI_File_close");
}

/* ---- error handlers ---- */

int mpy_file_error(const mpy_file_t *f, int code, const char *function) {
    MPI_File handle = (MPI_File)f;
    return mpy_error_of(&handle, f != NULL ? f->errhandler : file_default, code, function);
}

/* Where the handler of `file` is stored. NULL if it is not a file. */
static int *errhandler_of(MPI_File file) {
    mpy_file_t *f = mpy_file(file);
    return f != NULL ? &f->errhandler : file == MPI_FILE_NULL ? &file_default : NULL;
}

int PMPI_File_set_errhandler(MPI_File file, MPI_Errhandler errhandler) {
    mpy_require_mpi("MPI_File_set_errhandler"); /* the default handler exists at any time */
    int *slot = errhandler_of(file);
    int rc = slot != NULL ? mpy_errhandler_put(slot, errhandler, MPY_ERRHANDLER_FILE) : MPI_ERR_FILE;
    return mpy_error(NULL, rc, "MPI_File_set_errhandler");
}

int PMPI_File_get_errhandler(MPI_File file, MPI_Errhandler *errhandler) {
    const int *slot = errhandler_of(file);
    return slot != NULL ? mpy_errhandler_get(*slot, errhandler)
                        : mpy_error(NULL, MPI_ERR_FILE, "MPI_File_get_errhandler");
}

int PMPI_File_call_errhandler(MPI_File fh, int errorcode) {
    if (errhandler_of(fh) == NULL) return mpy_error(NULL, MPI_ERR_FILE, "MPI_File_call_errhandler");
    mpy_file_error(mpy_file(fh), errorcode, "MPI_File_call_errhandler");
    return MPI_SUCCESS;
}

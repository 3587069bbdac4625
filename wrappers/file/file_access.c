/* file_access.c - accesses to files that aren't over when the call returns: nonblocking and split ones.
 *
 * Upper half, no libc.
 *
 * Invariants
 *  1. Nonblocking collective accesses to one file use one buffer in ROMIO, and spoil each other when they are tested by
 *     turns. So they are tested in the order in which they were started, each only when those before it have finished:
 *     all members started them in that order. Those not finished are in the file's queue.
 *  2. ROMIO also puts the individual file pointer back, while it works on such an access, to where that was when it
 *     started. So it is kept here over each test: a drain must not undo the program's seek.
 *  3. Accesses that aren't collective are tested one by one, too: MPICH 5.0.2's MPI_Testall of several looks at
 *     requests that it has freed. A family keeps them out of calls that test many.
 *  4. The queue changes under the file's lock. A request leaves it when it is COMPLETE, so none that is in it is
 *     released.
 */
#include "file.h"
#include "core/request.h"

typedef struct queued { /* a request's `more` */
    mpy_file_t *file;
    mpy_request_t *next;
} queued_t;

#define QUEUED(REQUEST) ((queued_t *)(REQUEST)->more)

/* Tests the queue's first request; true if it has left. With the lock. */
static bool advance(mpy_file_t *f) {
    mpy_request_t *r = f->first;
    MPI_Offset before = 0, after = 0;
    int done = 0;
    MPY_REAL(File_get_position)(f->real, &before);
    r->error = MPY_REAL(Test)(&r->real, &done, &r->status);
    MPY_REAL(File_get_position)(f->real, &after);
    if (after != before) MPY_REAL(File_seek)(f->real, before, MPI_SEEK_SET);
    if (!done && !r->error) return false;
    if (r->error && MPY_LOWER->phase == MPY_PHASE_FROZEN) /* codes die with the library */
        MPY_REAL(Error_class)(r->error, &r->error);
    r->flags |= MPY_RF_COMPLETE;
    f->first = QUEUED(r)->next;
    return true;
}

static bool poke(mpy_p2p_thread_t *th, mpy_request_t *r) {
    (void)th;
    mpy_file_t *f = QUEUED(r)->file;
    mpy_lock(&f->lock);
    while (!(r->flags & MPY_RF_COMPLETE) && advance(f)) continue;
    mpy_unlock(&f->lock);
    return r->flags & MPY_RF_COMPLETE;
}

static const mpy_request_family_t collective_access = {.name = "collective file access", .poke = poke};
static const mpy_request_family_t access = {.name = "file access"};

/* Before it's closed. */
void mpy_file_settle(mpy_file_t *f) {
    mpy_lock(&f->lock);
    while (f->first != NULL) advance(f);
    mpy_unlock(&f->lock);
}

static void enqueue(mpy_file_t *f, mpy_request_t *r) {
    r->more = mpy_alloc(sizeof(queued_t));
    r->bytes = sizeof(queued_t);
    r->family = &collective_access;
    r->flags |= MPY_RF_FAMILY | MPY_RF_MORE;
    QUEUED(r)->file = f;
    mpy_lock(&f->lock);
    if (f->first == NULL)
        f->first = r;
    else
        QUEUED(f->last)->next = r;
    f->last = r;
    mpy_unlock(&f->lock);
}

MPI_Request mpy_file_request(mpy_thread_t *t, mpy_file_t *collective, int real, const void *buf, MPI_Count count,
                             int datatype) {
    mpy_p2p_thread_t *th = &mpy_p2p_threads[t - MPY_UPPER->threads];
    if (th->sent == NULL) mpy_p2p_counters(th);
    mpy_request_t *r = mpy_request_unrecorded(mpy_request_take(th));
    mpy_request_fill(r, MPY_REQ_OTHER, real, buf, count, datatype, MPI_ANY_SOURCE, MPI_ANY_TAG, NULL);
    if (collective != NULL) {
        enqueue(collective, r);
    } else {
        r->family = &access;
        r->flags |= MPY_RF_FAMILY;
    }
    return r->handle;
}

int mpy_file_split_end(MPI_File handle, MPI_Status *status, const char *function) {
    mpy_file_t *f = mpy_file(handle);
    if (f == NULL) return mpy_file_error(NULL, MPI_ERR_FILE, function);
    mpy_thread_t *t = mpy_self();
    mpy_guard_in(t);
    bool begun = f->split;
    if (begun) mpy_status_copy(status, &f->split_status);
    f->split = false;
    mpy_guard_out(t);
    return begun ? MPI_SUCCESS : mpy_file_error(f, MPI_ERR_IO, function);
}

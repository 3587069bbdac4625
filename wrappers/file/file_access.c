/* file_access.c - accesses to files that are not complete when the call returns: nonblocking and split ones.
 *
 * Upper half, no libc.
 *
 * Invariants
 *  1. In ROMIO, nonblocking collective accesses to one file share one buffer. They corrupt each other if they are
 *     tested alternately. So they are tested in the order in which they were started, which is the same on all members;
 *     each is tested only when the earlier ones have finished. Unfinished ones are in the file's queue.
 *  2. While ROMIO works on such an access, it resets the individual file pointer to its value at the start of the
 *     access. So the pointer is saved and restored around each test: a drain must not undo the program's seek. Another
 *     thread must not use it between the two: calls that use it hold the file's lock, or empty the queue first if they
 *     wait for other ranks (generate/libmpi/files.py).
 *  3. Accesses that aren't collective are also tested one by one: MPI_Testall of MPICH 5.0.2 with several requests
 *     reads requests that it has freed. A family keeps them out of calls that test many requests.
 *  4. The queue changes under the file's lock. A request leaves it when it is COMPLETE, so no request in it is
 *     released.
 */
#include "file.h"
#include "p2p/request.h"

typedef struct queued { /* a request's `more` */
    mpy_file_t *file;
    mpy_request_t *next;
} queued_t;

#define QUEUED(REQUEST) ((queued_t *)(REQUEST)->more)

/* Tests the queue's first request. True if it has left the queue. With the lock. */
static bool advance(mpy_file_t *f) {
    mpy_request_t *r = f->first;
    MPI_Offset before = 0, after = 0;
    int done = 0;
    MPY_REAL(File_get_position)(f->real, &before);
    r->error = MPY_REAL(Test)(&r->real, &done, &r->status);
    MPY_REAL(File_get_position)(f->real, &after);
    if (after != before) MPY_REAL(File_seek)(f->real, before, MPI_SEEK_SET);
    if (!done && !r->error) return false;
    if (r->error && MPY_LOWER->phase == MPY_PHASE_FROZEN) /* error codes are valid only in this real library */
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

/* Called before the file is closed. */
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

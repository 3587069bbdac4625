/* bsend.c - buffered sends, the program's attach buffer, and requests that go on without the program.
 *
 * Upper half, no libc. A buffered send is a packed copy, in our memory, sent with a standard nonblocking send whose slot is an
 * orphan. So no real library ever holds the program's buffer: detaching waits in our loop, which a checkpoint can stop, and
 * a restart has nothing to attach again. The attached buffer only bounds how much may be under way (MPI-4 3.6).
 *
 * Invariants
 *  1. Orphans are in the list under mpy_p2p_lock and belong to nobody else; a reap (any thread, in the lower half) releases
 *     those that finished. The drain completes all of their sends.
 *  2. attached.used is the sum of the packed sizes and overheads of the buffered sends among them.
 */
#include "p2p.h"

static mpy_request_t *orphans;

static struct {
    void *buffer; /* NULL: none attached */
    MPI_Count size, used;
    bool automatic; /* MPI_BUFFER_AUTOMATIC: no bound */
} attached;

void mpy_orphan_add(mpy_request_t *r) {
    if (r->flags & MPY_RF_LISTED) mpy_ssend_remove(r); /* nobody asks any more whether it was matched */
    mpy_lock(&mpy_p2p_lock);
    r->flags |= MPY_RF_ORPHAN;
    r->next = orphans;
    orphans = r;
    mpy_unlock(&mpy_p2p_lock);
}

bool mpy_orphan_reap(mpy_p2p_thread_t *th) {
    if (MPY_LIKELY(orphans == NULL)) return true;
    mpy_lock(&mpy_p2p_lock);
    for (mpy_request_t **link = &orphans; *link != NULL;) {
        mpy_request_t *r = *link;
        if (!mpy_request_poke(th, r)) {
            link = &r->next;
            continue;
        }
        *link = r->next;
        if (r->flags & MPY_RF_BSEND) attached.used -= r->count + MPI_BSEND_OVERHEAD;
        mpy_request_release(th, r);
    }
    bool none = orphans == NULL;
    mpy_unlock(&mpy_p2p_lock);
    return none;
}

/* Room for `bytes`: counted, or false. */
static bool reserve(MPI_Count bytes) {
    mpy_lock(&mpy_p2p_lock);
    bool fits = attached.automatic || (attached.buffer != NULL && attached.used + bytes + MPI_BSEND_OVERHEAD <= attached.size);
    if (fits) attached.used += bytes + MPI_BSEND_OVERHEAD;
    mpy_unlock(&mpy_p2p_lock);
    return fits;
}

static int bsend(const char *name, const void *buf, MPI_Count count, int datatype, int dest, int tag, int comm, int *request) {
    mpy_comm_t *c = mpy_comm(comm);
    if (MPY_UNLIKELY(c == NULL)) return mpy_error(NULL, MPI_ERR_COMM, name);
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    mpy_packed_t packed;
    int real, rc;

    mpy_cross_in(t);
    mpy_orphan_reap(th);
    rc = mpy_pack(c, buf, count, datatype, &packed);
    if (rc) goto out;
    if (dest >= 0 && !reserve(packed.bytes)) {
        mpy_pack_free(&packed);
        rc = MPI_ERR_BUFFER;
        goto out;
    }
    rc = mpy_real_isend(packed.data, packed.bytes, MPI_PACKED, dest, tag, c->obj.real, &real);
    if (rc || dest < 0) { /* MPI_PROC_NULL: done at once */
        if (!rc) MPY_REAL(Wait)(&real, MPI_STATUS_IGNORE);
        if (dest >= 0) __atomic_fetch_sub(&attached.used, packed.bytes + MPI_BSEND_OVERHEAD, __ATOMIC_RELAXED);
        mpy_pack_free(&packed);
        if (rc) goto out;
    } else {
        mpy_count_sent(th, c, dest);
        mpy_ssend_later(c, dest, tag);
        mpy_request_t *r = mpy_request_take(th);
        mpy_request_fill(r, MPY_REQ_SEND, real, packed.data, packed.bytes, MPI_PACKED, dest, tag, c);
        r->bytes = packed.capacity;
        r->flags |= MPY_RF_PACKED | MPY_RF_BSEND;
        mpy_orphan_add(r);
    }
    if (request != NULL) { /* the program's request is finished: its buffer is free */
        mpy_request_t *r = mpy_request_take(th);
        r->real = MPI_REQUEST_NULL;
        r->comm = c;
        r->error = MPI_SUCCESS;
        mpy_status_empty(&r->status);
        r->flags = MPY_RF_COMPLETE;
        r->kind = MPY_REQ_SEND;
        *request = r->handle;
    }
out:
    mpy_cross_out(t);
    mpy_p2p_done(t, th);
    return rc == MPI_SUCCESS ? rc : mpy_error(c, rc, name);
}

#define DEFINE_BSEND(SUFFIX, COUNT) \
    MPY_API int PMPI_Bsend##SUFFIX(const void *buf, COUNT count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm) { \
        return bsend("MPI_Bsend" #SUFFIX, buf, count, datatype, dest, tag, comm, NULL); \
    } \
    MPY_EXPORT(Bsend##SUFFIX) \
    MPY_API int PMPI_Ibsend##SUFFIX(const void *buf, COUNT count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm, \
                                    MPI_Request *request) { \
        return bsend("MPI_Ibsend" #SUFFIX, buf, count, datatype, dest, tag, comm, request); \
    } \
    MPY_EXPORT(Ibsend##SUFFIX)

DEFINE_BSEND(, int)
DEFINE_BSEND(_c, MPI_Count)

/* ---- the attached buffer ---- */

static int attach(const char *name, void *buffer, MPI_Count size) {
    if (attached.buffer != NULL) return mpy_error(NULL, MPI_ERR_BUFFER, name);
    if (size < 0) return mpy_error(NULL, MPI_ERR_ARG, name);
    attached.automatic = buffer == MPI_BUFFER_AUTOMATIC;
    attached.size = size;
    attached.buffer = buffer;
    return MPI_SUCCESS;
}

/* Wait until no buffered send is under way. */
void mpy_p2p_flush(void) {
    mpy_thread_t *t = mpy_self();
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    mpy_cross_in(t);
    while (mpy_orphan_reap(th), attached.used > 0) {
        mpy_lock(&mpy_p2p_lock);
        int handle = MPI_REQUEST_NULL;
        for (mpy_request_t *r = orphans; r != NULL; r = r->next)
        if (r->flags & MPY_RF_BSEND) handle = r->handle;
        mpy_unlock(&mpy_p2p_lock);
        mpy_wait_t w = {.handles = &handle, .n = 1, .mode = MPY_WAIT_ALL};
        for (int i = 0; i < 64; i++) {
            mpy_wait_round(t, &w);
            mpy_orphan_reap(th);
            if (attached.used <= 0) break;
        }
    }
    mpy_cross_out(t);
    mpy_p2p_done(t, th);
}

static MPI_Count detach(void *address) {
    mpy_p2p_flush();
    MPI_Count size = attached.size;
    *(void **)address = attached.buffer;
    attached.buffer = NULL;
    attached.size = 0;
    attached.automatic = false;
    return size;
}

MPY_API int PMPI_Buffer_attach(void *buffer, int size) { return attach("MPI_Buffer_attach", buffer, size); }
MPY_EXPORT(Buffer_attach)
MPY_API int PMPI_Buffer_attach_c(void *buffer, MPI_Count size) { return attach("MPI_Buffer_attach_c", buffer, size); }
MPY_EXPORT(Buffer_attach_c)

MPY_API int PMPI_Buffer_detach(void *buffer_addr, int *size) {
    *size = (int)detach(buffer_addr);
    return MPI_SUCCESS;
}
MPY_EXPORT(Buffer_detach)
MPY_API int PMPI_Buffer_detach_c(void *buffer_addr, MPI_Count *size) {
    *size = detach(buffer_addr);
    return MPI_SUCCESS;
}
MPY_EXPORT(Buffer_detach_c)

MPY_API int PMPI_Buffer_flush(void) {
    mpy_p2p_flush();
    return MPI_SUCCESS;
}
MPY_EXPORT(Buffer_flush)

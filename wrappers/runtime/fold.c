/* fold.c - user-defined operations in nonblocking and persistent reductions.
 *
 * Upper half, no libc. The real library would call the program's function in whatever call of ours makes progress, the drain's
 * included, where no code of the program may run. So it only brings the contributions together, packed, with a gathering
 * collective; they are folded here when the program completes the request. To the clock it is one collective, the program's.
 *
 * Invariants
 *  1. The result is contribution 0 op contribution 1 op ... in rank order, whether the operation commutes or not. The function
 *     computes inout = in op inout, so the fold goes from the last contribution down to the first.
 *  2. The function runs on the upper TLS, with in_lower = 0 and no lock held. If it doesn't return (longjmp), the fold can be
 *     done again: the contributions stay.
 *  3. The operation and the datatype are referenced: the program may free both before the reduction is complete. The function is
 *     given a handle that is valid then, too.
 *  4. A packed element has MPI_Type_size bytes, as in MPICH: so `packed` can be cut between elements.
 */
#include "fold.h"
#include "persistent.h"
#include "p2p.h"
#include "trace.h"

struct mpy_fold {
    mpy_op_t *op;
    mpy_object_t *type; /* NULL: predefined */
    int datatype;
    const void *input;
    void *output;
    MPI_Count count, result; /* elements: of the contribution, of the result here (0: none) */
    int contributions;       /* that are folded; the i-th of them at gathered + offset + i * stride */
    size_t offset, stride;
    size_t element; /* bytes, packed */
    char *packed, *gathered, *scratch; /* scratch: elements as in the program's buffers */
    size_t packed_size, gathered_size, scratch_size;
    MPI_Count *pieces; /* Alltoallv: counts to send, to receive, displacements to send, to receive; `peers` of each */
    int peers;
};

static int real_type(const mpy_fold_t *f) { return f->type != NULL ? f->type->real : mpy_real_datatype(f->datatype); }

/* ---- arguments; in the lower half ---- */

static MPI_Count recvcount(const mpy_reduction_t *a, int rank) {
    if (a->kind == MPY_FOLD_REDUCE_SCATTER_BLOCK) return a->count;
    return a->recvcounts != NULL ? a->recvcounts[rank] : a->recvcounts_c[rank];
}

static bool scatters(const mpy_reduction_t *a) { return a->kind == MPY_FOLD_REDUCE_SCATTER || a->kind == MPY_FOLD_REDUCE_SCATTER_BLOCK; }

static bool contributes(const mpy_reduction_t *a, const mpy_comm_t *c) {
    return !(a->kind == MPY_FOLD_REDUCE && c->remote_size != 0 && (a->root == MPI_ROOT || a->root == MPI_PROC_NULL));
}
static bool has_result(const mpy_reduction_t *a, const mpy_comm_t *c) {
    return a->kind != MPY_FOLD_REDUCE || a->root == (c->remote_size != 0 ? MPI_ROOT : c->rank);
}

static bool bad_buffer(const void *buf, const mpy_reduction_t *a, MPI_Count count) { return count > 0 && buf == NULL && mpy_is_builtin(a->datatype); }

/* What the real library would find wrong. The gathering call checks root. */
static int check(const mpy_reduction_t *a, const mpy_comm_t *c) {
    const mpy_datatype_t *d = mpy_datatype(a->datatype);
    MPI_Count size, count = a->count;
    if (c->remote_size != 0 && (a->kind == MPY_FOLD_SCAN || a->kind == MPY_FOLD_EXSCAN)) return MPI_ERR_COMM;
    if (count < 0) return MPI_ERR_COUNT;
    if (a->kind == MPY_FOLD_REDUCE_SCATTER) {
        if (a->recvcounts == NULL && a->recvcounts_c == NULL) return MPI_ERR_ARG;
        for (int i = 0; i < c->size; count += recvcount(a, i++))
            if (recvcount(a, i) < 0) return MPI_ERR_COUNT;
    }
    int rc = MPY_REAL(Type_size_c)(mpy_real_datatype(a->datatype), &size);
    if (rc != 0) return rc;
    if (d != NULL && !d->committed) return MPI_ERR_TYPE;
    bool in = contributes(a, c), out = has_result(a, c), in_place = a->sendbuf == MPI_IN_PLACE;
    if ((in && (bad_buffer(a->sendbuf, a, count) || (in_place && (!out || c->remote_size != 0)))) || (out && (bad_buffer(a->recvbuf, a, count) || a->recvbuf == MPI_IN_PLACE)))
        return MPI_ERR_BUFFER;
    return in && out && count > 0 && a->sendbuf == a->recvbuf && a->recvbuf != MPI_BOTTOM ? MPI_ERR_BUFFER : MPI_SUCCESS;
}

/* ---- records; in the lower half ---- */

static char *buffer(size_t bytes, size_t *size) {
    *size = bytes + 1; /* an empty one has an address too */
    return mpy_alloc(*size);
}

/* Block i of every contribution goes to rank i. */
static void cut(mpy_fold_t *f, const mpy_reduction_t *a, const mpy_comm_t *c) {
    MPI_Count *to = f->pieces = mpy_alloc((size_t)c->size * 4 * sizeof *to), *from = to + c->size, *to_at = from + c->size, *from_at = to_at + c->size;
    MPI_Count element = (MPI_Count)f->element, sum = 0;
    f->peers = c->size;
    for (int i = 0; i < c->size; sum += to[i++]) {
        to[i] = recvcount(a, i) * element;
        to_at[i] = sum;
        from[i] = f->result * element;
        from_at[i] = i * from[i];
    }
}

static mpy_fold_t *record(const mpy_reduction_t *a, const mpy_comm_t *c) {
    mpy_fold_t *f = mpy_alloc(sizeof *f);
    int peers = c->remote_size != 0 ? c->remote_size : c->size;
    bool cuts = scatters(a) && c->remote_size == 0; /* how the other group cuts isn't known here: all of it comes */
    MPI_Count size, before = 0;
    f->op = (mpy_op_t *)mpy_lookup(MPY_OP, a->op);
    mpy_object_ref(&f->op->obj);
    f->datatype = a->datatype;
    f->type = mpy_lookup(MPY_DATATYPE, a->datatype);
    if (f->type != NULL) mpy_object_ref(f->type);
    MPY_REAL(Type_size_c)(real_type(f), &size);
    f->element = (size_t)size;
    f->input = a->sendbuf == MPI_IN_PLACE ? a->recvbuf : a->sendbuf;
    f->output = a->recvbuf;
    f->count = f->result = a->count;
    if (scatters(a)) {
        f->count = 0;
        for (int i = 0; i < c->size; f->count += recvcount(a, i++))
            if (i < c->rank) before += recvcount(a, i);
        f->result = recvcount(a, c->rank);
    }
    if (!has_result(a, c)) f->result = 0;
    if (!contributes(a, c)) f->count = 0;
    MPI_Count block = cuts || f->count == 0 ? f->result : f->count;
    f->stride = (size_t)block * f->element;
    f->offset = cuts ? 0 : (size_t)before * f->element;
    f->contributions = a->kind == MPY_FOLD_SCAN ? c->rank + 1 : a->kind == MPY_FOLD_EXSCAN ? c->rank : peers;
    f->packed = buffer((size_t)f->count * f->element, &f->packed_size);
    f->gathered = buffer(has_result(a, c) ? (size_t)peers * f->stride : 0, &f->gathered_size);
    if (cuts) cut(f, a, c);
    return f;
}

void mpy_fold_destroy(mpy_fold_t *f) {
    mpy_object_unref(MPY_OP, &f->op->obj);
    if (f->type != NULL) mpy_object_unref(MPY_DATATYPE, f->type);
    mpy_free(f->packed, f->packed_size);
    mpy_free(f->gathered, f->gathered_size);
    mpy_free(f->scratch, f->scratch_size);
    mpy_free(f->pieces, (size_t)f->peers * 4 * sizeof *f->pieces);
    mpy_free(f, sizeof *f);
}

int mpy_fold_pack(mpy_fold_t *f) {
    MPI_Count position = 0;
    return f->count == 0 ? MPI_SUCCESS : MPY_REAL(Pack_c)(f->input, f->count, real_type(f), f->packed, (MPI_Count)f->packed_size, &position, MPI_COMM_SELF);
}

/* ---- the fold; upper TLS ---- */

static int unpack(const mpy_fold_t *f, int i, void *to) { /* in the lower half */
    MPI_Count position = 0, bytes = f->result * (MPI_Count)f->element;
    return MPY_REAL(Unpack_c)(f->gathered + f->offset + (size_t)i * f->stride, bytes, &position, to, f->result, real_type(f), MPI_COMM_SELF);
}

/* Room for the result's elements: where a buffer of them "begins" for MPI. In the lower half. */
static int make_scratch(mpy_fold_t *f, char **begin, MPI_Count *extent) {
    MPI_Count lb, true_lb, true_extent;
    int rc = MPY_REAL(Type_get_extent_c)(real_type(f), &lb, extent);
    if (rc == 0) rc = MPY_REAL(Type_get_true_extent_c)(real_type(f), &true_lb, &true_extent);
    if (rc != 0) return rc;
    MPI_Count steps = (f->result - 1) * *extent; /* the last element starts here: below the first one if the extent is negative */
    if (f->scratch == NULL) f->scratch = buffer((size_t)((steps < 0 ? -steps : steps) + true_extent), &f->scratch_size);
    *begin = f->scratch - true_lb - (steps < 0 ? steps : 0);
    return MPI_SUCCESS;
}

/* A handle of the type for the program's function: another one if the program has freed its own. In the lower half. */
static int lend_handle(const mpy_fold_t *f) {
    if (f->type == NULL || mpy_lookup(MPY_DATATYPE, f->type->handle) == f->type) return f->datatype;
    return mpy_object_add(MPY_DATATYPE, f->type);
}
static void take_handle_back(const mpy_fold_t *f, int handle) {
    if (handle != f->datatype) mpy_object_remove(MPY_DATATYPE, handle);
}

/* An operation made with the small form counts in int: it's called for a part at a time. */
static void combine(const mpy_op_t *op, char *in, char *inout, MPI_Count count, MPI_Count extent, int datatype) {
    if (op->big) {
        ((MPI_User_function_c *)op->function)(in, inout, &count, &datatype);
        return;
    }
    for (MPI_Count done = 0, part; done < count; done += part) {
        part = count - done < 0x40000000 ? count - done : 0x40000000;
        int n = (int)part;
        ((MPI_User_function *)op->function)(in + done * extent, inout + done * extent, &n, &datatype);
    }
}

int mpy_fold_finish(mpy_thread_t *t, mpy_fold_t *f) {
    int last = f->contributions - 1, handle = f->datatype;
    char *begin = NULL;
    MPI_Count extent = 0;
    if (f->result == 0 || last < 0) return MPI_SUCCESS;
    mpy_cross_in(t);
    int rc = make_scratch(f, &begin, &extent);
    if (rc == 0) rc = unpack(f, last, f->output);
    if (rc == 0) handle = lend_handle(f);
    mpy_cross_out(t);
    for (int i = last - 1; i >= 0 && rc == 0; i--) {
        mpy_cross_in(t);
        rc = unpack(f, i, begin);
        mpy_cross_out(t);
        if (rc == 0) combine(f->op, begin, f->output, f->result, extent, handle);
    }
    mpy_cross_in(t);
    take_handle_back(f, handle);
    mpy_cross_out(t);
    return rc;
}

/* ---- nonblocking ---- */

static int finish(mpy_thread_t *t, mpy_request_t *r, MPI_Status *status) {
    (void)status;
    return r->error == 0 ? mpy_fold_finish(t, r->more) : r->error;
}
static void release(mpy_request_t *r) { mpy_fold_destroy(r->more); }
static const mpy_request_family_t family = {.name = "reduction", .finish = finish, .release = release};

/* In the lower half. */
static int gather(const mpy_fold_t *f, const mpy_reduction_t *a, const mpy_comm_t *c, int *real) {
    MPI_Count bytes = f->count * (MPI_Count)f->element, block = (MPI_Count)f->stride;
    const MPI_Count *to = f->pieces, *from = to + f->peers, *to_at = from + f->peers, *from_at = to_at + f->peers;
    if (to != NULL) return MPY_REAL(Ialltoallv_c)(f->packed, to, (const MPI_Aint *)to_at, MPI_BYTE, f->gathered, from, (const MPI_Aint *)from_at, MPI_BYTE, c->obj.real, real);
    if (a->kind == MPY_FOLD_REDUCE) return MPY_REAL(Igather_c)(f->packed, bytes, MPI_BYTE, f->gathered, block, MPI_BYTE, a->root, c->obj.real, real);
    return MPY_REAL(Iallgather_c)(f->packed, bytes, MPI_BYTE, f->gathered, block, MPI_BYTE, c->obj.real, real);
}

static const mpy_trace_op_t ops[] = {
    [MPY_FOLD_REDUCE] = MPY_OP_REDUCE, [MPY_FOLD_ALLREDUCE] = MPY_OP_ALLREDUCE, [MPY_FOLD_SCAN] = MPY_OP_SCAN, [MPY_FOLD_EXSCAN] = MPY_OP_EXSCAN,
    [MPY_FOLD_REDUCE_SCATTER] = MPY_OP_REDUCE_SCATTER, [MPY_FOLD_REDUCE_SCATTER_BLOCK] = MPY_OP_REDUCE_SCATTER,
};

static int start(mpy_thread_t *t, mpy_comm_t *c, const mpy_reduction_t *a, mpy_fold_t *f, MPI_Request *request) {
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    int real;
    uint64_t record = MPY_TRACE(t, .op = ops[a->kind], .flags = MPY_TRACE_NONBLOCKING, MPY_TRACE_POST, MPY_TRACE_COLLECTIVE(c),
                                .bytes = (uint64_t)f->count * f->element);
    mpy_clock_start(t, mpy_row(c->row), a->name);
    mpy_cross_in_collective(t);
    int rc = mpy_fold_pack(f);
    if (rc == 0) rc = gather(f, a, c, &real);
    if (rc == 0) {
        mpy_request_t *r = mpy_request_of_family(th, &family, MPY_REQ_OTHER, c, f);
        r->real = real;
        mpy_trace_posted(t, record, r);
        *request = r->handle;
    } else {
        mpy_fold_destroy(f);
    }
    mpy_collective_leave(t, mpy_row(c->row), rc);
    mpy_traced(t, record, rc);
    return rc == 0 ? rc : mpy_error(c, rc, a->name);
}

/* ---- persistent ---- */

static int init(const mpy_reduction_t *a, mpy_fold_t *f, MPI_Request *request) {
    const int64_t bytes = f->count * (int64_t)f->element, block = (int64_t)f->stride;
    MPI_Count *to = f->pieces;
    if (to != NULL) {
        MPI_Count *from = to + f->peers, *to_at = from + f->peers, *from_at = to_at + f->peers;
        const mpy_argument_t arguments[] = {{.pointer = f->packed},   {.pointer = to},   {.pointer = to_at},   {.value = MPI_BYTE},
                                            {.pointer = f->gathered}, {.pointer = from}, {.pointer = from_at}, {.value = MPI_BYTE}};
        return mpy_persistent_init(&mpy_persistent_Alltoallv_init_c, arguments, a->comm, a->info, f, a->name, request);
    }
    const mpy_argument_t arguments[] = {{.pointer = f->packed}, {.value = bytes}, {.value = MPI_BYTE}, {.pointer = f->gathered},
                                        {.value = block},       {.value = MPI_BYTE}, {.value = a->root}};
    const mpy_persistent_call_t *call = a->kind == MPY_FOLD_REDUCE ? &mpy_persistent_Gather_init_c : &mpy_persistent_Allgather_init_c;
    return mpy_persistent_init(call, arguments, a->comm, a->info, f, a->name, request);
}

int mpy_fold(const mpy_reduction_t *a, MPI_Request *request) {
    mpy_comm_t *c = mpy_comm(a->comm);
    if (c == NULL) return mpy_error(NULL, MPI_ERR_COMM, a->name);
    mpy_thread_t *t = mpy_self();
    mpy_fold_t *f = NULL;
    mpy_cross_in(t);
    int rc = check(a, c);
    if (rc == 0) f = record(a, c);
    mpy_cross_out(t);
    if (rc != 0) return mpy_error(c, rc, a->name);
    return a->persistent ? init(a, f, request) : start(t, c, a, f, request);
}

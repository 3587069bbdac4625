/* fold.c - user-defined operations in nonblocking and persistent reductions.
 *
 * Upper half, no libc. The real library would call the program's function in any call that makes progress, also in the
 * drain, where no code of the program may run. So the library only collects the packed contributions. They are folded
 * here when the program completes the request. The clock counts one collective, the program's call.
 *
 * Short contributions are gathered by one collective. Long ones stay with their ranks, which offer them (offer.c); the
 * collective then distributes the tags of the offers, and tells that all members have begun. A rank that gets a result
 * receives a few pieces at a time and folds them, in its own completion calls. No other call works on a reduction, so
 * no rank depends on another rank's wait.
 *
 * Invariants
 *  1. The result is contribution 0 op contribution 1 op ... in rank order, whether the operation commutes or not, with
 *     the brackets of a balanced tree. It is the same on all ranks bit for bit, and the same for short and long
 *     contributions. Rank r takes contributions r, r ^ 1, r ^ 2 ..., so that ranks don't all receive from the same
 *     rank.
 *  2. The function runs on the upper TLS, with in_lower = 0 and no lock held. If it doesn't return (longjmp), it is
 *     called again with the same arguments: what it may have changed was saved.
 *  3. The operation and the datatype are referenced: the program may free both before the reduction is complete. Even
 *     then the function gets a valid handle of the datatype.
 *  4. A packed element has MPI_Type_size bytes, as in MPICH: so packed data can be cut between elements.
 *  5. All members make the same decision whether contributions are gathered or offered, and where they are cut. It
 *     depends on count, element and group.
 */
#include "twophase.h"
#include "op.h"
#include "fold.h"
#include "clock/clock.h"
#include "datatype/datatype.h"
#include "environment/errors.h"
#include "messages/offer.h"
#include "persistent.h"
#include "p2p/p2p.h"
#include "p2p/request.h"
#include "tools/trace.h"

enum {
    /* contributions are offered from this size: one, and those of all members together */
    OFFER_BYTES = 1 << 16, OFFER_ALL = 1 << 20,
    PIECE_BYTES = 1 << 20, PIECES = 64,         /* smallest piece in bytes; largest number of pieces */
    AHEAD = 2,                                  /* pieces that are requested before they are needed */
    LEVELS = 32,
};

struct mpy_fold {
    mpy_op_t *op;
    mpy_datatype_t *type; /* NULL: predefined */
    int datatype, lent; /* a handle for the function, or 0: the program may have freed its own */
    mpy_comm_t *comm;
    mpy_fold_kind_t kind;
    int root;
    const void *input;
    void *output;
    MPI_Count count, result; /* elements: of the contribution, and of the result here (0: none) */
    int contributions;       /* number of contributions that are folded here */
    size_t element;          /* bytes of an element, packed */

    /* gathered: the i-th contribution at gathered + offset + i * stride */
    char *packed, *gathered;
    size_t packed_size, gathered_size, offset, stride;
    MPI_Count *pieces; /* Alltoallv: counts to send, to receive, displacements to send, to receive; `peers` of each */
    int peers;

    /* if offered, the tags are gathered */
    bool offers;
    mpy_offer_t *offer; /* our contribution, from the beginning to the end of a reduction */
    int32_t tag, *readers;
    int nreaders;
    char *window;                 /* AHEAD pieces */
    mpy_request_t *asked[AHEAD];  /* the n-th request is at index n % AHEAD */
    uint64_t nasked, ntaken;
    MPI_Count asked_piece;        /* next piece to request: its first element ... */
    int asked_turn;               /* ... and its turn */

    /* the tree. parts[level]: the part of a level that waits for its sibling. Elements of parts lie as in the program's
     * buffers. */
    MPI_Count piece, at;  /* elements of a piece; first element of the piece that is being folded */
    int origin, turns;    /* contribution origin ^ turn is the turn-th, if there is one */
    int turn, level;      /* level: where the part in `hand` belongs, -1 if there is none */
    char *hand, *parts[LEVELS], *spare[LEVELS];
    int nspare;
    bool calling; /* the function was called and has not returned; `saved` holds the old inout */
    char *rooms, *saved;
    size_t rooms_size, room_size, saved_size, window_size;
    MPI_Count extent, shift; /* of an element; offset in a part of the address that MPI gets */
};

static int real_type(const mpy_fold_t *f) {
    return f->type != NULL ? f->type->obj.real : mpy_real_datatype(f->datatype);
}

/* ---- arguments; in the lower half ---- */

static MPI_Count recvcount(const mpy_reduction_t *a, int rank) {
    if (a->kind == MPY_FOLD_REDUCE_SCATTER_BLOCK) return a->count;
    return a->recvcounts != NULL ? a->recvcounts[rank] : a->recvcounts_c[rank];
}

static bool scatters(const mpy_reduction_t *a) {
    return a->kind == MPY_FOLD_REDUCE_SCATTER || a->kind == MPY_FOLD_REDUCE_SCATTER_BLOCK;
}

static bool contributes(const mpy_reduction_t *a, const mpy_comm_t *c) {
    return !(a->kind == MPY_FOLD_REDUCE && c->remote_size != 0 && (a->root == MPI_ROOT || a->root == MPI_PROC_NULL));
}
static bool has_result(const mpy_reduction_t *a, const mpy_comm_t *c) {
    return a->kind != MPY_FOLD_REDUCE || a->root == (c->remote_size != 0 ? MPI_ROOT : c->rank);
}

static bool bad_buffer(const void *buf, const mpy_reduction_t *a, MPI_Count count) {
    return count > 0 && buf == NULL && mpy_is_builtin(a->datatype);
}

/* Finds the errors that the real library would find. In an inter-communicator the gathering call checks root. */
static int check(const mpy_reduction_t *a, const mpy_comm_t *c) {
    const mpy_datatype_t *d = mpy_datatype(a->datatype);
    MPI_Count size, count = a->count;
    if (c->remote_size != 0 && (a->kind == MPY_FOLD_SCAN || a->kind == MPY_FOLD_EXSCAN)) return MPI_ERR_COMM;
    if (a->kind == MPY_FOLD_REDUCE && c->remote_size == 0 && (a->root < 0 || a->root >= c->size)) return MPI_ERR_ROOT;
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
    if ((in && (bad_buffer(a->sendbuf, a, count) || (in_place && (!out || c->remote_size != 0)))) ||
        (out && (bad_buffer(a->recvbuf, a, count) || a->recvbuf == MPI_IN_PLACE)))
        return MPI_ERR_BUFFER;
    return in && out && count > 0 && a->sendbuf == a->recvbuf && a->recvbuf != MPI_BOTTOM ? MPI_ERR_BUFFER
                                                                                          : MPI_SUCCESS;
}

/* ---- records; in the lower half ---- */

/* Allocates a buffer of the record; false if there is no memory. */
static bool room(char **buffer, size_t bytes, size_t *size) {
    *size = bytes + 1; /* + 1, so that an empty buffer has an address, too */
    return (*buffer = mpy_try_alloc(*size)) != NULL;
}

/* Block i of every contribution goes to rank i. */
static void cut(mpy_fold_t *f, const mpy_reduction_t *a, const mpy_comm_t *c) {
    MPI_Count *to = f->pieces = mpy_alloc((size_t)c->size * 4 * sizeof *to), *from = to + c->size,
              *to_at = from + c->size, *from_at = to_at + c->size;
    MPI_Count element = (MPI_Count)f->element, sum = 0;
    f->peers = c->size;
    for (int i = 0; i < c->size; sum += to[i++]) {
        to[i] = recvcount(a, i) * element;
        to_at[i] = sum;
        from[i] = f->result * element;
        from_at[i] = i * from[i];
    }
}

/* Does `rank` receive our contribution, if it is offered? */
static bool reads(const mpy_fold_t *f, int rank) {
    if (rank == f->comm->rank) return false;
    return f->kind == MPY_FOLD_REDUCE ? rank == f->root : f->kind == MPY_FOLD_ALLREDUCE || rank > f->comm->rank;
}

static void list_readers(mpy_fold_t *f) {
    f->readers = mpy_alloc((size_t)f->comm->size * sizeof *f->readers);
    for (int i = 0; i < f->comm->size; i++)
        if (reads(f, i)) f->readers[f->nreaders++] = f->comm->world[i];
}

static size_t piece_bytes(const mpy_fold_t *f) { return (size_t)f->piece * f->element; }

/* Plans the pieces and allocates the tree: parts whose elements lie as in the program's buffers. */
static int plan(mpy_fold_t *f, MPI_Count count, int origin) {
    MPI_Count lb, true_lb, true_extent, wanted = count * (MPI_Count)f->element / PIECES;
    int levels = 0;
    if (wanted < PIECE_BYTES) wanted = PIECE_BYTES;
    f->piece = f->element > 0 ? wanted / (MPI_Count)f->element : count;
    if (f->piece < 1) f->piece = 1;
    /* functions of operations created with MPI_Op_create count in int */
    if (f->piece > 0x40000000) f->piece = 0x40000000;
    while (1 << levels < f->contributions) levels++;
    f->turns = 1 << levels;
    f->origin = origin & (f->turns - 1);
    f->level = -1;
    if (f->result == 0 || f->contributions == 0) return MPI_SUCCESS;
    MPI_Count elements = f->result < f->piece ? f->result : f->piece;
    int rc = MPY_REAL(Type_get_extent_c)(real_type(f), &lb, &f->extent);
    if (rc == 0) rc = MPY_REAL(Type_get_true_extent_c)(real_type(f), &true_lb, &true_extent);
    if (rc != 0) return rc;
    MPI_Count steps = (elements - 1) * f->extent; /* offset of the last element; negative if it lies below the first */
    f->room_size = (size_t)((steps < 0 ? -steps : steps) + true_extent + 63) & ~(size_t)63;
    f->shift = -true_lb - (steps < 0 ? steps : 0);
    f->nspare = levels + 1; /* one for each level, and `hand` */
    if (!room(&f->rooms, (size_t)f->nspare * f->room_size, &f->rooms_size)) return MPI_ERR_NO_MEM;
    for (int i = 0; i < f->nspare; i++) f->spare[i] = f->rooms + (size_t)i * f->room_size + f->shift;
    return room(&f->saved, (size_t)elements * f->element, &f->saved_size) ? MPI_SUCCESS : MPI_ERR_NO_MEM;
}

/* Returns NULL and sets *rc if the record can't be made. */
static mpy_fold_t *record(const mpy_reduction_t *a, mpy_comm_t *c, int *rc) {
    mpy_fold_t *f = mpy_alloc(sizeof *f);
    int peers = c->remote_size != 0 ? c->remote_size : c->size;
    /* we don't know how the other group cuts, so we gather everything */
    bool cuts = scatters(a) && c->remote_size == 0;
    MPI_Count size, before = 0;
    f->op = (mpy_op_t *)mpy_lookup(MPY_OP, a->op);
    mpy_object_ref(&f->op->obj);
    f->datatype = a->datatype;
    f->type = mpy_datatype(a->datatype);
    if (f->type != NULL) mpy_object_ref(&f->type->obj);
    MPY_REAL(Type_size_c)(real_type(f), &size);
    f->element = (size_t)size;
    f->comm = c;
    f->kind = a->kind;
    f->root = a->root;
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
    size_t bytes = (size_t)f->count * f->element;
    f->stride = (size_t)block * f->element;
    f->offset = cuts ? 0 : (size_t)before * f->element;
    f->contributions = a->kind == MPY_FOLD_SCAN ? c->rank + 1 : a->kind == MPY_FOLD_EXSCAN ? c->rank : peers;
    f->offers = !scatters(a) && c->remote_size == 0 && !c->foreign && bytes >= OFFER_BYTES &&
                bytes >= OFFER_ALL / (size_t)peers;
    *rc = plan(f, f->count, c->rank);
    bool fits = *rc == 0;
    if (f->offers) {
        list_readers(f);
        fits = fits && room(&f->gathered, (size_t)peers * sizeof f->tag, &f->gathered_size);
        if (f->result > 0) fits = fits && room(&f->window, AHEAD * piece_bytes(f), &f->window_size);
    } else {
        fits = fits && room(&f->packed, bytes, &f->packed_size);
        fits = fits && room(&f->gathered, has_result(a, c) ? (size_t)peers * f->stride : 0, &f->gathered_size);
        if (cuts) cut(f, a, c);
    }
    if (fits) return f;
    if (*rc == 0) *rc = MPI_ERR_NO_MEM;
    mpy_fold_destroy(f);
    return NULL;
}

/* A handle of the type for the program's function. In the lower half. */
static int lend_handle(mpy_fold_t *f) {
    if (f->type == NULL) return f->datatype;
    if (f->lent == 0) f->lent = mpy_datatype_lend(f->type);
    return f->lent;
}
static void take_handle_back(mpy_fold_t *f) {
    if (f->lent != 0) mpy_datatype_take_back(f->type);
    f->lent = 0;
}

/* After a reduction has failed, pieces that were requested but have not arrived may still be written to. */
static bool leave_asked(mpy_fold_t *f) {
    bool open = f->ntaken < f->nasked;
    for (; f->ntaken < f->nasked; f->ntaken++) mpy_orphan_add(f->asked[f->ntaken % AHEAD]);
    return open;
}

static void leave_offer(mpy_fold_t *f) {
    if (f->offer != NULL) mpy_offer_leave(f->offer);
    f->offer = NULL;
}

void mpy_fold_destroy(mpy_fold_t *f) {
    if (leave_asked(f)) f->window = NULL;
    leave_offer(f);
    take_handle_back(f);
    mpy_object_unref(MPY_OP, &f->op->obj);
    if (f->type != NULL) mpy_object_unref(MPY_DATATYPE, &f->type->obj);
    mpy_free(f->packed, f->packed_size);
    mpy_free(f->gathered, f->gathered_size);
    mpy_free(f->window, f->window_size);
    mpy_free(f->rooms, f->rooms_size);
    mpy_free(f->saved, f->saved_size);
    mpy_free(f->readers, (size_t)f->comm->size * sizeof *f->readers);
    mpy_free(f->pieces, (size_t)f->peers * 4 * sizeof *f->pieces);
    mpy_free(f, sizeof *f);
}

static int pack(mpy_fold_t *f, char *to, size_t size) {
    MPI_Count position = 0;
    if (f->count == 0) return MPI_SUCCESS;
    return MPY_REAL(Pack_c)(f->input, f->count, real_type(f), to, (MPI_Count)size, &position, MPI_COMM_SELF);
}

int mpy_fold_begin(mpy_fold_t *f) {
    /* the previous start has failed in the middle */
    bool failed = f->level >= 0 || f->turn != 0 || f->ntaken < f->nasked;
    if (failed) return MPI_ERR_INTERN;
    f->at = 0;
    if (!f->offers) return pack(f, f->packed, f->packed_size);
    leave_offer(f); /* left over from a start that has failed */
    size_t bytes = (size_t)f->count * f->element;
    f->asked_piece = 0;
    f->asked_turn = 0;
    f->offer = mpy_offer_make(bytes, piece_bytes(f), f->nreaders);
    if (f->offer == NULL) return MPI_ERR_NO_MEM;
    f->tag = mpy_offer_tag(f->offer);
    int rc = pack(f, mpy_offer_data(f->offer), bytes);
    return rc == 0 ? mpy_offer_post(f->offer, f->readers) : rc;
}

/* ---- pieces of contributions; in the lower half ---- */

static MPI_Count elements_at(const mpy_fold_t *f, MPI_Count at) {
    return f->result - at < f->piece ? f->result - at : f->piece;
}

/* The contribution that is next in turn, or -1 if there is none. */
static int whose(const mpy_fold_t *f, int turn) {
    int i = f->origin ^ turn;
    return i < f->contributions ? i : -1;
}

/* Requests the next pieces, in the order in which they are folded. */
static int ask(mpy_p2p_thread_t *th, mpy_fold_t *f) {
    const int32_t *tags = (const int32_t *)f->gathered;
    int rc = MPI_SUCCESS, real;
    while (rc == 0 && f->nasked - f->ntaken < AHEAD && f->asked_piece < f->result) {
        if (f->asked_turn == f->turns) {
            f->asked_turn = 0;
            f->asked_piece += f->piece;
            continue;
        }
        int i = whose(f, f->asked_turn++);
        if (i < 0 || i == f->comm->rank) continue;
        char *to = f->window + f->nasked % AHEAD * piece_bytes(f);
        rc = mpy_offer_ask(f->comm->world[i], tags[i], to, (size_t)elements_at(f, f->asked_piece) * f->element, &real);
        if (rc == 0) f->asked[f->nasked++ % AHEAD] = mpy_request_unrecorded(mpy_request_other(th, real, f->comm));
    }
    return rc;
}

/* The packed piece of contribution i that is to be folded next. NULL if it has not arrived yet; errors go to *rc. */
static const char *piece_of(mpy_p2p_thread_t *th, mpy_fold_t *f, int i, int *rc) {
    size_t at = (size_t)f->at * f->element;
    if (!f->offers) return f->gathered + f->offset + (size_t)i * f->stride + at;
    if (i == f->comm->rank) return mpy_offer_data(f->offer) + at;
    *rc = ask(th, f);
    mpy_request_t *r = f->asked[f->ntaken % AHEAD];
    if (*rc != 0 || !mpy_request_poke(th, r)) return NULL;
    *rc = r->error;
    return *rc == 0 ? f->window + f->ntaken % AHEAD * piece_bytes(f) : NULL;
}

/* The piece has been folded into the tree: release it. */
static int piece_taken(mpy_p2p_thread_t *th, mpy_fold_t *f, int i) {
    if (!f->offers || i == f->comm->rank) return MPI_SUCCESS;
    mpy_request_release(th, f->asked[f->ntaken++ % AHEAD]);
    return ask(th, f);
}

static int pack_part(const mpy_fold_t *f, const char *part) {
    MPI_Count position = 0, size = (MPI_Count)f->saved_size;
    return MPY_REAL(Pack_c)(part, elements_at(f, f->at), real_type(f), f->saved, size, &position, MPI_COMM_SELF);
}
static int unpack(const mpy_fold_t *f, const char *from, void *to) {
    MPI_Count position = 0, n = elements_at(f, f->at);
    return MPY_REAL(Unpack_c)(from, n * (MPI_Count)f->element, &position, to, n, real_type(f), MPI_COMM_SELF);
}

/* ---- the tree; in the lower half, but leaves it for the program's function ---- */

static void combine(const mpy_op_t *op, char *in, char *inout, MPI_Count count, int datatype) {
    int n = (int)count;
    mpy_op_apply(op, in, inout, op->big ? (void *)&count : &n, &datatype);
}

/* inout = in op inout. Runs again if the function did not return (longjmp). */
static int call(mpy_thread_t *t, mpy_fold_t *f, char *in, char *inout) {
    int rc = f->calling ? unpack(f, f->saved, inout) : pack_part(f, inout);
    if (rc != 0) return rc;
    f->calling = true;
    MPI_Count n = elements_at(f, f->at);
    int handle = lend_handle(f);
    mpy_cross_out(t);
    combine(f->op, in, inout, n, handle);
    mpy_cross_in(t);
    f->calling = false;
    return MPI_SUCCESS;
}

/* The part in `hand` rises until its sibling does not exist yet. Either sibling may be empty (NULL), because there are
 * fewer contributions than turns. */
static int rise(mpy_thread_t *t, mpy_fold_t *f) {
    for (; f->turn >> f->level & 1; f->level++) {
        char *sibling = f->parts[f->level];
        if (sibling != NULL && f->hand != NULL) {
            bool left = !(f->origin >> f->level & 1); /* the earlier part has the lower ranks */
            char *in = left ? sibling : f->hand, *inout = left ? f->hand : sibling;
            int rc = call(t, f, in, inout);
            if (rc != 0) return rc;
            f->spare[f->nspare++] = in;
            f->hand = inout;
        } else if (sibling != NULL) {
            f->hand = sibling;
        }
        f->parts[f->level] = NULL;
    }
    return MPI_SUCCESS;
}

/* Writes a piece of the result into the program's buffer. */
static int deliver(mpy_fold_t *f) {
    int rc = pack_part(f, f->hand);
    if (rc == 0) rc = unpack(f, f->saved, (char *)f->output + f->at * f->extent);
    f->spare[f->nspare++] = f->hand;
    f->at += f->piece;
    return rc;
}

/* Returns false if the piece that is next in turn has not arrived yet. */
static bool take_turn(mpy_thread_t *t, mpy_p2p_thread_t *th, mpy_fold_t *f, int *rc) {
    if (f->level < 0) {
        int i = whose(f, f->turn);
        f->hand = NULL;
        if (i >= 0) {
            const char *bytes = piece_of(th, f, i, rc);
            if (bytes == NULL) return false;
            f->hand = f->spare[--f->nspare];
            *rc = unpack(f, bytes, f->hand);
            if (*rc == 0) *rc = piece_taken(th, f, i);
        }
        f->level = 0;
    }
    if (*rc == 0) *rc = rise(t, f);
    if (*rc != 0) return true;
    if (f->turn == f->turns - 1)
        *rc = deliver(f);
    else
        f->parts[f->level] = f->hand;
    f->turn = (f->turn + 1) & (f->turns - 1);
    f->level = -1;
    return true;
}

bool mpy_fold_finish(mpy_thread_t *t, mpy_p2p_thread_t *th, mpy_fold_t *f, int *rc) {
    *rc = MPI_SUCCESS;
    while (*rc == 0 && f->contributions > 0 && f->at < f->result)
        if (!take_turn(t, th, f, rc)) break;
    if (*rc == 0 && f->contributions > 0 && f->at < f->result) return false;
    take_handle_back(f);
    leave_offer(f);
    return true;
}

bool mpy_fold_let_go(mpy_thread_t *t, const mpy_fold_t *f, mpy_request_t *r) {
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    mpy_wait_t w = {.handles = &r->handle, .n = 1, .mode = MPY_WAIT_ALL};
    mpy_cross_in(t);
    if (f == NULL || !f->offers)
        mpy_orphan_add(r);
    else
        while (!mpy_request_ready(t, th, r)) mpy_wait_round(t, &w);
    mpy_cross_out(t);
    return f == NULL || !f->offers;
}

/* ---- nonblocking ---- */

static bool finish(mpy_thread_t *t, mpy_p2p_thread_t *th, mpy_request_t *r) {
    return mpy_fold_finish(t, th, r->more, &r->error);
}
static bool let_go(mpy_thread_t *t, mpy_request_t *r) { return mpy_fold_let_go(t, r->more, r); }
static void release(mpy_request_t *r) { mpy_fold_destroy(r->more); }
static const mpy_request_family_t family = {
    .name = "reduction", .finish = finish, .let_go = let_go, .release = release,
};

/* In the lower half. */
static int gather(const mpy_fold_t *f, const mpy_reduction_t *a, const mpy_comm_t *c, int *real) {
    MPI_Count bytes = f->count * (MPI_Count)f->element, block = (MPI_Count)f->stride;
    const MPI_Count *to = f->pieces, *from = to + f->peers, *to_at = from + f->peers, *from_at = to_at + f->peers;
    if (f->offers)
        return MPY_REAL(Iallgather)(&f->tag, sizeof f->tag, MPI_BYTE, f->gathered, sizeof f->tag, MPI_BYTE, c->obj.real,
                                    real);
    if (to != NULL)
        return MPY_REAL(Ialltoallv_c)(f->packed, to, (const MPI_Aint *)to_at, MPI_BYTE, f->gathered, from,
                                      (const MPI_Aint *)from_at, MPI_BYTE, c->obj.real, real);
    if (a->kind == MPY_FOLD_REDUCE)
        return MPY_REAL(Igather_c)(f->packed, bytes, MPI_BYTE, f->gathered, block, MPI_BYTE, a->root, c->obj.real,
                                   real);
    return MPY_REAL(Iallgather_c)(f->packed, bytes, MPI_BYTE, f->gathered, block, MPI_BYTE, c->obj.real, real);
}

static const mpy_trace_op_t ops[] = {
    [MPY_FOLD_REDUCE] = MPY_OP_REDUCE,
    [MPY_FOLD_ALLREDUCE] = MPY_OP_ALLREDUCE,
    [MPY_FOLD_SCAN] = MPY_OP_SCAN,
    [MPY_FOLD_EXSCAN] = MPY_OP_EXSCAN,
    [MPY_FOLD_REDUCE_SCATTER] = MPY_OP_REDUCE_SCATTER,
    [MPY_FOLD_REDUCE_SCATTER_BLOCK] = MPY_OP_REDUCE_SCATTER,
};

static int start(mpy_thread_t *t, mpy_comm_t *c, const mpy_reduction_t *a, mpy_fold_t *f, MPI_Request *request) {
    mpy_p2p_thread_t *th = mpy_p2p_self(t);
    int real;
    uint64_t record = MPY_TRACE(t, .op = ops[a->kind], .flags = MPY_TRACE_NONBLOCKING, MPY_TRACE_POST,
                                MPY_TRACE_COLLECTIVE(c), .bytes = (uint64_t)f->count * f->element);
    mpy_clock_start(t, mpy_row(c->row), a->name);
    mpy_cross_in_collective(t);
    int rc = mpy_fold_begin(f);
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

/* ---- with processes outside the job ---- */

static void release_op(mpy_request_t *r) { mpy_object_unref(MPY_OP, r->more); }
static const mpy_request_family_t outside = {.name = "reduction outside the job", .release = release_op};

mpy_request_t *mpy_reduction_outside(mpy_p2p_thread_t *th, int real, mpy_comm_t *c, int op) {
    mpy_object_t *kept = mpy_lookup(MPY_OP, op);
    mpy_object_ref(kept);
    mpy_request_t *r = mpy_request_of_family(th, &outside, MPY_REQ_OTHER, c, kept);
    r->real = real;
    return r;
}

/* ---- persistent ---- */

static int init(const mpy_reduction_t *a, mpy_fold_t *f, MPI_Request *request) {
    const int64_t bytes = f->count * (int64_t)f->element, block = (int64_t)f->stride;
    MPI_Count *to = f->pieces;
    if (to != NULL) {
        MPI_Count *from = to + f->peers, *to_at = from + f->peers, *from_at = to_at + f->peers;
        const mpy_argument_t arguments[] = {{.pointer = f->packed}, {.pointer = to},          {.pointer = to_at},
                                            {.value = MPI_BYTE},    {.pointer = f->gathered}, {.pointer = from},
                                            {.pointer = from_at},   {.value = MPI_BYTE}};
        return mpy_persistent_init(&mpy_persistent_Alltoallv_init_c, arguments, a->comm, a->info, f, a->name, request);
    }
    const mpy_argument_t arguments[] = {{.pointer = f->packed},   {.value = bytes}, {.value = MPI_BYTE},
                                        {.pointer = f->gathered}, {.value = block}, {.value = MPI_BYTE},
                                        {.value = a->root}};
    if (f->offers) {
        const mpy_argument_t bytes_of_tag = {.value = sizeof f->tag}, byte = {.value = MPI_BYTE};
        const mpy_argument_t mine = {.pointer = &f->tag}, all = {.pointer = f->gathered};
        const mpy_argument_t tags[] = {mine, bytes_of_tag, byte, all, bytes_of_tag, byte};
        return mpy_persistent_init(&mpy_persistent_Allgather_init_c, tags, a->comm, a->info, f, a->name, request);
    }
    const mpy_persistent_call_t *call =
        a->kind == MPY_FOLD_REDUCE ? &mpy_persistent_Gather_init_c : &mpy_persistent_Allgather_init_c;
    return mpy_persistent_init(call, arguments, a->comm, a->info, f, a->name, request);
}

int mpy_fold(const mpy_reduction_t *a, MPI_Request *request) {
    mpy_comm_t *c = mpy_comm(a->comm);
    if (c == NULL) return mpy_error(NULL, MPI_ERR_COMM, a->name);
    mpy_thread_t *t = mpy_self();
    mpy_fold_t *f = NULL;
    mpy_cross_in(t);
    int rc = check(a, c);
    if (rc == 0) f = record(a, c, &rc);
    mpy_cross_out(t);
    if (rc != 0) return mpy_error(c, rc, a->name);
    return a->persistent ? init(a, f, request) : start(t, c, a, f, request);
}

/* handles.c - MPICH's integers for the library's objects. See translate.h; invariants 2 and 3 there.
 *
 * Free indices are a stack. So a request gets the index that was freed last, whose entry is in the cache. A lock is
 * taken only if several threads may call.
 *
 * Invariants
 *  1. Indices that look like MPICH's predefined pair types (MPI_FLOAT_INT ...) are never given out.
 *  2. An entry that is free holds the null handle.
 */
#include "back_interface.h"

#include <dlfcn.h>
#include <manapy/boundary.h>
#include <manapy/lock.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void *mpy_null[MPY_KINDS];
void *mpy_predefined[MPY_KINDS][MPY_PREDEFINED];
void **mpy_made[MPY_KINDS];
void *mpy_file_null;
bool mpy_threaded;

enum { PAIR_TYPES = 5 };

typedef struct pool {
    uint32_t lock;
    uint32_t ever; /* indices below were given out once */
    uint32_t nfree;
    uint32_t *stack;
} pool_t;
static pool_t pools[MPY_KINDS];
static mpy_block_t **kept; /* by the index of a request: memory to free with it */

void *mpy_reserve(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void *handle_of(void *library, const mpy_object_t *object) {
    return object->symbol == NULL ? object->value : dlsym(library, object->symbol);
}

bool mpy_handles_open(void *library, char *error, size_t n) {
    for (size_t i = 0; i < mpy_rows_count; i++)
        if (mpy_rows[i].handle == mpy_null_handle[mpy_rows[i].kind])
            mpy_null[mpy_rows[i].kind] = handle_of(library, &mpy_rows[i].object);
    for (int kind = 0; kind < MPY_KINDS; kind++) {
        pool_t *p = &pools[kind];
        mpy_made[kind] = mpy_reserve(MPY_MADE * sizeof(void *));
        p->stack = mpy_reserve(MPY_MADE * sizeof *p->stack);
        p->ever = kind == MPY_KIND_DATATYPE ? PAIR_TYPES : 0;
        if (mpy_made[kind] == NULL || p->stack == NULL) {
            snprintf(error, n, "out of address space for handles");
            return false;
        }
        for (int i = 0; i < MPY_PREDEFINED; i++) mpy_predefined[kind][i] = mpy_null[kind];
    }
    kept = mpy_reserve(MPY_MADE * sizeof *kept);
    for (size_t i = 0; i < mpy_rows_count; i++) {
        const mpy_row_t *row = &mpy_rows[i];
        void *theirs = handle_of(library, &row->object);
        if (theirs == NULL) theirs = mpy_null[row->kind];
        uint32_t h = (uint32_t)row->handle;
        if (h >> 30 == 1 && mpy_predefined[row->kind][h & 0xff] == mpy_null[row->kind])
            mpy_predefined[row->kind][h & 0xff] = theirs;
        if (h >> 30 == 2) mpy_made[row->kind][mpy_made_index(row->handle)] = theirs;
    }
    mpy_file_null = handle_of(library, &mpy_no_file);
    if (mpy_null[MPY_KIND_COMM] != NULL && mpy_null[MPY_KIND_REQUEST] != NULL && mpy_file_null != NULL && kept != NULL)
        return true;
    snprintf(error, n, "it lacks predefined objects of " MPY_LIBRARY);
    return false;
}

static void enter(pool_t *p) {
    if (mpy_threaded) mpy_lock_acquire(&p->lock);
}
static void leave(pool_t *p) {
    if (mpy_threaded) mpy_lock_release(&p->lock);
}

static int made_handle(mpy_kind_t kind, uint32_t index) {
    return (int)(2u << 30 | mpy_kind_bits(kind) << 26 | index);
}

int mpy_handle_add(mpy_kind_t kind, void *theirs) {
    pool_t *p = &pools[kind];
    enter(p);
    uint32_t index = MPY_LIKELY(p->nfree > 0) ? p->stack[--p->nfree] : p->ever++;
    leave(p);
    if (MPY_UNLIKELY(index >= MPY_MADE)) {
        MPY_LOWER->svc->die("too many MPI objects of one kind at once (4194304)", 1);
    }
    mpy_made[kind][index] = theirs;
    return made_handle(kind, index);
}

void mpy_blocks_free(mpy_block_t *blocks) {
    for (mpy_block_t *next; blocks != NULL; blocks = next) {
        next = blocks->next;
        free(blocks);
    }
}

void mpy_handle_remove(mpy_kind_t kind, int handle) {
    uint32_t h = (uint32_t)handle, index = mpy_made_index(handle);
    if (h >> 30 != 2 || (kind == MPY_KIND_DATATYPE && index < PAIR_TYPES)) return;
    pool_t *p = &pools[kind];
    mpy_made[kind][index] = mpy_null[kind];
    if (kind == MPY_KIND_REQUEST && MPY_UNLIKELY(kept[index] != NULL)) {
        mpy_blocks_free(kept[index]);
        kept[index] = NULL;
    }
    enter(p);
    p->stack[p->nfree++] = index;
    leave(p);
}

static int predefined(mpy_kind_t kind, const void *theirs) {
    for (size_t i = 0; i < mpy_rows_count; i++) {
        const mpy_row_t *row = &mpy_rows[i];
        if (row->kind == kind && mpy_in(kind, row->handle) == theirs) return row->handle;
    }
    return mpy_null_handle[kind];
}

int mpy_handle_of(mpy_kind_t kind, void *theirs) {
    if (MPY_LIKELY(kind == MPY_KIND_REQUEST)) return mpy_handle_add(kind, theirs);
    int handle = predefined(kind, theirs);
    return handle != mpy_null_handle[kind] ? handle : mpy_handle_add(kind, theirs);
}

int mpy_handle_find(mpy_kind_t kind, void *theirs) {
    int handle = predefined(kind, theirs);
    if (handle != mpy_null_handle[kind]) return handle;
    uint32_t ever = pools[kind].ever;
    for (uint32_t i = 0; i < ever; i++)
        if (mpy_made[kind][i] == theirs) return made_handle(kind, i);
    return mpy_null_handle[kind];
}

void mpy_request_keep(int request, mpy_block_t *blocks) {
    kept[mpy_made_index(request)] = blocks;
}

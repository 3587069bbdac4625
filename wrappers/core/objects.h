/* objects.h - what the files of all virtual objects share. The objects themselves are in the headers of their rooms.
 *
 * Invariants
 *  1. All of it changes only with in_lower = 1 or inside a hook (invariant 1 of lock.h). If several objects depend on
 *     each other, they change under mpy_objects_lock.
 *  2. "adopt" functions take a new real handle, with the lower TLS, between mpy_cross_in and mpy_cross_out, and return
 *     the program's handle: no snapshot can come between the real object and its record.
 *  3. Callbacks of the program are called with in_lower = 0 and no lock held.
 */
#ifndef MANAPY_OBJECTS_H
#define MANAPY_OBJECTS_H

#include "runtime.h"
#include "lock.h"

extern MPY_HIDDEN uint32_t mpy_objects_lock;

/* ---- is there a lower half? (cross.c) ---- */
extern MPY_HIDDEN bool mpy_above;
/* Ends the process with one line if there is no lower half. */
MPY_HIDDEN void mpy_require_boundary(void);
MPY_HIDDEN mpy_thread_t *mpy_self_main(void); /* mpy_self() for the thread that calls MPI_Init: moves it to slot 0 */
MPY_HIDDEN void mpy_unsupported(const char *function) __attribute__((noreturn));
MPY_HIDDEN void mpy_die(const char *format, const char *argument) __attribute__((noreturn)); /* one %s */
/* In the constructor of a second copy of this library (second_copy.c): redirects all its functions to the first copy.
 * `own` and `first` are the first bytes of the two. False: this is not possible, and nothing has changed. */
MPY_HIDDEN bool mpy_hand_on(const void *own, const void *first);

/* ---- functions of the program that the real library calls (callback.c) ---- */
enum { MPY_MARKER = 3, MPY_SHADOW = 4 }; /* `used` of records that aren't in a slot; records in a slot have 0 to 2 */
typedef void mpy_callback_t(void *argument);
/* called with the lower TLS; calls the function with the upper one */
MPY_HIDDEN void mpy_callback(mpy_callback_t *function, void *argument);
/* the record for a call from inside a callback, or after a longjmp out of it */
MPY_HIDDEN mpy_thread_t *mpy_callback_self(mpy_thread_t *marker);

/* ---- ordered lists of all objects of a kind, to rebuild them in order of creation ---- */
typedef struct mpy_link { struct mpy_link *next, *prev; } mpy_link_t;
static inline void mpy_link_append(mpy_link_t *head, mpy_link_t *l) {
    l->prev = head->prev;
    l->next = head;
    head->prev->next = l;
    head->prev = l;
}
static inline void mpy_link_remove(mpy_link_t *l) {
    l->prev->next = l->next;
    l->next->prev = l->prev;
}

/* All processes of the job, for our own messages. These can be waited for and checkpointed like the program's. No
 * wildcard of the program can match them, because the program never gets this handle. */
extern MPY_HIDDEN mpy_comm_t *mpy_internal_world;

/* ---- constructors ---- */
/* A constructor that fails returns the null handle. */
static inline int mpy_or_null(int rc, int *handle, int null) {
    if (MPY_UNLIKELY(rc != 0) && handle != NULL) *handle = null;
    return rc;
}

/* ---- sorting by ascending keys, in place, without memory (sort.c) ---- */
MPY_HIDDEN void mpy_sort(void **items, uint32_t n, uint64_t (*key)(const void *));

enum { MPY_LOCAL_TYPES = 64 };
/* Translates an array into `real`; or into `local` if that is long enough, otherwise into allocated memory. A NULL
 * array stays NULL. */
MPY_HIDDEN int *mpy_real_datatypes_to(const int *handles, int64_t n, int *real);
MPY_HIDDEN int *mpy_real_datatypes(const int *handles, int64_t n, int *local);
MPY_HIDDEN void mpy_real_datatypes_free(int *real, int64_t n, int *local);

/* Arguments that are weights of a graph: MPI_UNWEIGHTED and MPI_WEIGHTS_EMPTY have different addresses in the real
 * library. */
extern __attribute__((visibility("default"))) int *const MPI_UNWEIGHTED, *const MPI_WEIGHTS_EMPTY;
static inline int *mpy_real_weights(const int *weights) {
    if (weights == MPI_UNWEIGHTED) return MPY_LOWER->mpi_data[MPY_DATA_UNWEIGHTED];
    if (weights == MPI_WEIGHTS_EMPTY) return MPY_LOWER->mpi_data[MPY_DATA_WEIGHTS_EMPTY];
    return (int *)weights;
}

/* ---- text without libc ---- */
static inline size_t mpy_text_length(const char *s) {
    size_t n = 0;
    while (s[n] != 0) n++;
    return n;
}
MPY_HIDDEN char *mpy_text_copy(const char *s); /* from mpy_alloc; free it with mpy_text_free */
MPY_HIDDEN void mpy_text_free(char *s);
MPY_HIDDEN bool mpy_text_equal(const char *a, const char *b);
/* formats with %s and %d into a buffer; truncates */
MPY_HIDDEN void mpy_text_format(char *to, size_t n, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif

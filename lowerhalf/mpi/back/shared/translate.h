/* translate.h - what all files of a back need: handles, ranks, error codes, constants in both directions. Lower half,
 * lower TLS, libc. Each back is a library of its own (libmanapy-back-FOLDER.so), because it is needed only under an MPI
 * of its family. back/shared is compiled for each one: back_interface.h includes FOLDER/FOLDER.h, which includes this.
 *
 *   core  -- MPICH's values -->  back  -- the library's values -->  real library
 *
 * back_calls.c is generated from the table of functions (wrappers/generate/other_abis/back.py): for each function what
 * translates its arguments, calls the real one and translates its results. Values come from table/abi.txt: BACK_X for
 * MPI_X.
 *
 * FOLDER/FOLDER.h defines before it includes this file
 *   mpy_status_t, MPY_STATUS_EMPTY      the library's MPI_Status
 *   MPY_LIBRARY                         its name, for people
 * and, after that or in a .c file of its own
 *   mpy_status_out, mpy_status_in       a status as MPICH's, and back
 *   mpy_up, mpy_down                    called after MPI_Init, before MPI_Finalize
 *   mpy_own_text, mpy_text_code         texts of errors (errors.c)
 *   mpy_spawn_info                      the info that spawned processes get instead of the program's (spawn.c)
 *   mpy_own_open                        fills in the functions that only this back has (open.c)
 *
 * Invariants
 *  1. No function of the library is linked: each is found in the library that load.c has opened (open.c).
 *  2. The core sees only MPICH's values: integer handles of MPICH's layout (bits 30-31: 1 predefined, 2 created; bits
 *     26-29: the kind), MPI_Status of 20 bytes, error classes of MPICH. So an image does not know which library ran.
 *  3. A created handle is an index into `made`. An entry is written before its handle is given out, and a handle is
 *     used by one call at a time, so reading needs no lock.
 *  4. An MPI_File is the library's pointer itself, except the null handle.
 *  5. Every call ends with a class of errors, or with a code for which mpy_code_in would give the same error again.
 */
#ifndef MANAPY_BACK_TRANSLATE_H
#define MANAPY_BACK_TRANSLATE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "function_index.h"
#include "mpich.h"

#define MPY_LIKELY(x) __builtin_expect(!!(x), 1)
#define MPY_UNLIKELY(x) __builtin_expect(!!(x), 0)

/* ---- functions (open.c) ---- */
extern void *mpy_theirs[MPY_FN_COUNT]; /* the library's, in the order of the table; NULL: it lacks this one */

/* Calls one of them: all arguments are words, as the ABI passes them. */
#define MPY_THEIRS(NAME, ...) ((int (*)())mpy_theirs[MPY_FN_##NAME])(__VA_ARGS__)

/* One function of the back. It can be used if the library has the function `needs`. */
typedef struct mpy_ours { int slot, needs; void *function; } mpy_ours_t;
#define OURS(SLOT, NEEDS, FUNCTION) {MPY_FN_##SLOT, MPY_FN_##NEEDS, (void *)(FUNCTION)}
extern const mpy_ours_t mpy_ours_generated[], mpy_ours_written[], mpy_ours_errors[], mpy_ours_spawn[];
extern const size_t mpy_ours_generated_count, mpy_ours_written_count, mpy_ours_errors_count, mpy_ours_spawn_count;
void mpy_fill(void **functions, const mpy_ours_t *ours, size_t n);
bool mpy_own_open(void **functions, char *error, size_t n);
void mpy_up(void);

/* ---- handles (handles.c) ---- */
typedef enum {
    MPY_KIND_COMM, MPY_KIND_GROUP, MPY_KIND_DATATYPE, MPY_KIND_OP, MPY_KIND_ERRHANDLER, MPY_KIND_INFO,
    MPY_KIND_REQUEST, MPY_KIND_MESSAGE, MPY_KIND_WIN, MPY_KIND_SESSION,
    MPY_KINDS
} mpy_kind_t;

enum { MPY_PREDEFINED = 256, MPY_MADE_BITS = 22, MPY_MADE = 1 << MPY_MADE_BITS };

extern void *mpy_null[MPY_KINDS];                       /* the library's null handle */
extern void *mpy_predefined[MPY_KINDS][MPY_PREDEFINED]; /* by the last byte of MPICH's handle; else null */
extern void **mpy_made[MPY_KINDS];                      /* MPY_MADE entries each */
extern bool mpy_threaded;                               /* several threads may call at once */

/* MPICH's null handles. Bits 26-29 are those of all handles of a kind. */
static const int mpy_null_handle[MPY_KINDS] = {
    [MPY_KIND_COMM] = MPI_COMM_NULL,     [MPY_KIND_GROUP] = MPI_GROUP_NULL,
    [MPY_KIND_DATATYPE] = MPI_DATATYPE_NULL, [MPY_KIND_OP] = MPI_OP_NULL,
    [MPY_KIND_ERRHANDLER] = MPI_ERRHANDLER_NULL, [MPY_KIND_INFO] = MPI_INFO_NULL,
    [MPY_KIND_REQUEST] = MPI_REQUEST_NULL, [MPY_KIND_MESSAGE] = MPI_MESSAGE_NULL,
    [MPY_KIND_WIN] = MPI_WIN_NULL,       [MPY_KIND_SESSION] = MPI_SESSION_NULL,
};
static inline uint32_t mpy_kind_bits(mpy_kind_t kind) { return (uint32_t)mpy_null_handle[kind] >> 26; }

/* A predefined object of the library: a symbol whose address is the handle; or, if that is NULL, the handle. */
typedef struct mpy_object { const char *symbol; void *value; } mpy_object_t;
/* One predefined handle: a row of table/abi.txt. */
typedef struct mpy_row { mpy_kind_t kind; int handle; mpy_object_t object; } mpy_row_t;
extern const mpy_row_t mpy_rows[]; /* generated */
extern const size_t mpy_rows_count;
extern const mpy_object_t mpy_no_file;

bool mpy_handles_open(void *library, char *error, size_t n);
int mpy_handle_add(mpy_kind_t kind, void *theirs);  /* a new handle; ends the job with one line if there are too many */
void mpy_handle_remove(mpy_kind_t kind, int handle);
int mpy_handle_of(mpy_kind_t kind, void *theirs);   /* the handle of a predefined object, or a new one */
int mpy_handle_find(mpy_kind_t kind, void *theirs); /* the handle of an object that has one; else null */
void *mpy_reserve(size_t bytes); /* zeros; NULL: no address space is left */
/* Arrays that live as long as the request. */
struct mpy_block;
void mpy_request_keep(int request, struct mpy_block *blocks);

/* The index of a created handle, also in arrays beside `mpy_made`. */
static inline uint32_t mpy_made_index(int handle) { return (uint32_t)handle & (MPY_MADE - 1); }

/* A handle of the core as the library's. Anything else becomes the null handle, for which the library raises the same
 * error. */
static inline void *mpy_in(mpy_kind_t kind, int handle) {
    uint32_t h = (uint32_t)handle;
    if (MPY_LIKELY(h >> 26 == (1u << 4 | mpy_kind_bits(kind)))) return mpy_predefined[kind][h & 0xff];
    bool made = h >> 26 == (2u << 4 | mpy_kind_bits(kind));
    return MPY_LIKELY(made) ? mpy_made[kind][mpy_made_index(handle)] : mpy_null[kind];
}
/* A new object of the library as the core's handle. */
static inline int mpy_out(mpy_kind_t kind, void *theirs) {
    return theirs == mpy_null[kind] ? mpy_null_handle[kind] : mpy_handle_of(kind, theirs);
}
/* After a call that may have freed the object. */
static inline void mpy_inout(mpy_kind_t kind, int *handle, const void *theirs) {
    if (theirs != mpy_null[kind] || *handle == mpy_null_handle[kind]) return;
    mpy_handle_remove(kind, *handle);
    *handle = mpy_null_handle[kind];
}

MPI_Win mpy_win_out(void *theirs);

extern void *mpy_file_null;
static inline void *mpy_file_in(MPI_File file) { return file == MPI_FILE_NULL ? mpy_file_null : (void *)file; }
static inline MPI_File mpy_file_out(void *theirs) { return theirs == mpy_file_null ? MPI_FILE_NULL : theirs; }

/* ---- numbers ---- */
/* MPI_PROC_NULL and MPI_ANY_SOURCE change places. */
static inline int mpy_rank_in(int rank) {
    return MPY_LIKELY(rank >= 0) ? rank
           : rank == MPI_PROC_NULL ? BACK_PROC_NULL
           : rank == MPI_ANY_SOURCE ? BACK_ANY_SOURCE : rank;
}
static inline int mpy_rank_out(int rank) {
    return MPY_LIKELY(rank >= 0) ? rank
           : rank == BACK_PROC_NULL ? MPI_PROC_NULL
           : rank == BACK_ANY_SOURCE ? MPI_ANY_SOURCE : rank;
}
static inline int mpy_root_in(int root) { return root == MPI_ROOT ? BACK_ROOT : mpy_rank_in(root); }
static inline void *mpy_buffer_in(const void *buffer) {
    return MPY_UNLIKELY(buffer == MPI_IN_PLACE) ? (void *)BACK_IN_PLACE : (void *)buffer;
}
static inline int mpy_tag_in(int tag) { return tag == MPI_ANY_TAG ? BACK_ANY_TAG : tag; }
static inline int mpy_tag_out(int tag) { return tag == BACK_ANY_TAG ? MPI_ANY_TAG : tag; }
/* Constants of the groups of table/abi.txt in which the two differ (numbers.c); other values pass. */
typedef enum {
    MPY_GROUP_COMBINER, MPY_GROUP_ORDER, MPY_GROUP_DISTRIBUTE, MPY_GROUP_TYPECLASS, MPY_GROUP_SPLIT, MPY_GROUP_TOPOLOGY,
    MPY_GROUP_LOCK, MPY_GROUP_MODEL, MPY_GROUP_FLAVOR, MPY_GROUP_KEYVAL, MPY_GROUP_WIN_KEYVAL, MPY_GROUP_ASSERT,
    MPY_GROUP_ERROR, MPY_GROUP_COMPARE, MPY_GROUP_THREAD, MPY_GROUP_AMODE, MPY_GROUP_SEEK, MPY_GROUP_T_BIND,
    MPY_GROUP_T_SCOPE, MPY_GROUP_T_VERBOSITY, MPY_GROUP_T_CLASS, MPY_GROUP_T_ORDER,
} mpy_group_t;
int mpy_number_in(mpy_group_t group, int value);
int mpy_number_out(mpy_group_t group, int value);
void mpy_number_set(mpy_group_t group, int ours, int theirs); /* in mpy_up: this library has another value */
int mpy_bits_in(mpy_group_t group, int bits);
int mpy_bits_out(mpy_group_t group, int bits);

/* ---- errors (errors.c) ---- */
/* The library's codes as MPICH's. Codes that the program adds are far above all classes. */
int mpy_code_out_slow(int code);
int mpy_code_in(int code);
int mpy_class_out(int class);
static inline int mpy_code_out(int code) { return MPY_LIKELY(code == 0) ? 0 : mpy_code_out_slow(code); }
/* Has a call failed with this class of the library's? */
int mpy_their_class(int code);
static inline bool mpy_failed_as(int code, int class) { return code != 0 && mpy_their_class(code) == class; }
const char *mpy_own_text(int class); /* of MPICH's class; NULL: the library has one */
int mpy_text_code(int class);        /* what its MPI_Error_string takes for MPICH's class */

/* ---- statuses ---- */
/* MPI_ERROR is written only by calls that complete several requests and fail (MPI-4 3.2.5). */
static inline void mpy_status_put(MPI_Status *to, const mpy_status_t *from, uint64_t bytes, int cancelled) {
    to->count_lo = (int)(uint32_t)bytes;
    to->count_hi_and_cancelled = (int)(bytes >> 32) << 1 | (cancelled != 0);
    to->MPI_SOURCE = mpy_rank_out(from->source);
    to->MPI_TAG = mpy_tag_out(from->tag);
}
void mpy_statuses_out(MPI_Status *to, const mpy_status_t *from, int n, int code);

/* ---- arrays (arrays.c) ---- */
/* Translated arrays of one call. They are in `local`, or in memory that is freed at its end, or with its request. */
typedef struct mpy_block { struct mpy_block *next; } mpy_block_t;
typedef struct mpy_arrays {
    mpy_block_t *blocks;
    bool lasting; /* the call returns a request */
    size_t used;
    uint64_t local[128];
} mpy_arrays_t;
/* `local` stays uninitialized. */
static inline void mpy_arrays_begin(mpy_arrays_t *a, bool lasting) {
    a->blocks = NULL;
    a->lasting = lasting;
    a->used = 0;
}

void *mpy_arrays_take(mpy_arrays_t *a, size_t bytes);
void mpy_blocks_free(mpy_block_t *blocks);
static inline void mpy_arrays_end(mpy_arrays_t *a) {
    if (MPY_UNLIKELY(a->blocks != NULL)) mpy_blocks_free(a->blocks);
}

/* Each gives the translated array, or NULL for NULL. */
int *mpy_ranks_in(mpy_arrays_t *a, const int *ranks, long n);
int *mpy_distributions_in(mpy_arrays_t *a, const int *distributions, long n); /* of MPI_Type_create_darray */
int *mpy_distribution_arguments_in(mpy_arrays_t *a, const int *arguments, long n);
void **mpy_handles_in(mpy_arrays_t *a, mpy_kind_t kind, const int *handles, long n);
void mpy_handles_back(mpy_kind_t kind, int *handles, void **theirs, long n); /* see mpy_inout */
mpy_status_t *mpy_statuses_for(mpy_arrays_t *a, const MPI_Status *statuses, long n);
/* 64-bit numbers as ints; *fits becomes false if one is too large. */
int *mpy_ints_of_counts(mpy_arrays_t *a, const MPI_Count *counts, long n, bool *fits);
int *mpy_ints_of_aints(mpy_arrays_t *a, const MPI_Aint *counts, long n, bool *fits);
MPI_Aint *mpy_aints_of_counts(mpy_arrays_t *a, const MPI_Count *counts, long n, bool *fits);
static inline bool mpy_fits(MPI_Count count) { return count <= INT_MAX && count >= INT_MIN; }

/* The lengths of arrays that the arguments do not tell; 0 if that can't be found out. */
typedef enum { MPY_OF_PEERS, MPY_OF_LOCAL, MPY_OF_SOURCES, MPY_OF_DESTINATIONS } mpy_length_t;
long mpy_length(int comm, mpy_length_t which);
long mpy_length_at_root(int comm, int root); /* of arrays that only the root gives */

/* ---- operations (ops.c) ---- */
int mpy_op_create(void *function, bool big, int commute, MPI_Op *op);
int mpy_op_free(MPI_Op *op);

#endif

/* info.c - infos. The real object answers queries. A copy of keys and values, in order, is kept for rebuilding.
 *
 * Upper half, no libc. MPI_INFO_ENV is predefined and passes through.
 *
 * Invariant: the pairs change under mpy_objects_lock, together with the real object, whose calls don't wait and call
 * nothing back. So threads that change one info find both alike afterwards.
 */
#include "info.h"
#include "errors.h"
#include "core/objects.h"

static mpy_info_t *find(int handle) { return (mpy_info_t *)mpy_lookup(MPY_INFO, handle); }

static void pair_free(mpy_pair_t *p) {
    mpy_text_free(p->key);
    mpy_text_free(p->value);
    mpy_free(p, sizeof *p);
}

/* ---- with mpy_objects_lock ---- */

static mpy_pair_t **pair_find(mpy_info_t *info, const char *key) {
    mpy_pair_t **p = &info->first;
    while (*p != NULL && !mpy_text_equal((*p)->key, key)) p = &(*p)->next;
    return p;
}

static void pair_set(mpy_info_t *info, const char *key, const char *value) {
    mpy_pair_t **p = pair_find(info, key);
    if (*p == NULL) {
        *p = mpy_alloc(sizeof **p);
        (*p)->key = mpy_text_copy(key);
    }
    mpy_text_free((*p)->value);
    (*p)->value = mpy_text_copy(value);
}

static void read_pairs(mpy_info_t *info) {
    int nkeys = 0;
    MPY_REAL(Info_get_nkeys)(info->obj.real, &nkeys);
    for (int i = 0; i < nkeys; i++) {
        char key[MPI_MAX_INFO_KEY + 1], value[MPI_MAX_INFO_VAL + 1];
        int found = 0;
        MPY_REAL(Info_get_nthkey)(info->obj.real, i, key);
        MPY_REAL(Info_get)(info->obj.real, key, MPI_MAX_INFO_VAL, value, &found);
        if (found) pair_set(info, key, value);
    }
}

/* ---- for other files ---- */

bool mpy_info_value(mpy_info_t *info, const char *key, char value[MPI_MAX_INFO_VAL + 1]) {
    mpy_lock(&mpy_objects_lock);
    const mpy_pair_t *p = *pair_find(info, key);
    if (p != NULL) mpy_text_format(value, MPI_MAX_INFO_VAL + 1, "%s", p->value);
    mpy_unlock(&mpy_objects_lock);
    return p != NULL;
}

int mpy_info_adopt(int real) {
    if (mpy_is_builtin(real) || real == MPI_INFO_NULL) return real;
    mpy_info_t *info = mpy_alloc(sizeof *info);
    info->obj.real = real;
    info->obj.refs = 1;
    read_pairs(info); /* no other thread knows it yet */
    return mpy_object_add(MPY_INFO, &info->obj);
}

void mpy_info_reread(int handle) {
    mpy_info_t *info = find(handle);
    if (info == NULL) return;
    mpy_lock(&mpy_objects_lock);
    read_pairs(info);
    mpy_unlock(&mpy_objects_lock);
}

/* The caller has freed the real object, or the real object is freed with this one. */
static void forget(mpy_info_t *info) {
    mpy_object_remove(MPY_INFO, info->obj.handle);
    for (mpy_pair_t *p = info->first, *next; p != NULL; p = next) {
        next = p->next;
        pair_free(p);
    }
    mpy_free(info, sizeof *info);
}

void mpy_info_drop(int handle) {
    mpy_info_t *info = find(handle);
    if (info == NULL) return;
    MPY_REAL(Info_free)(&info->obj.real);
    forget(info);
}

void mpy_info_merge(int *into, int handle) {
    mpy_info_t *from = find(handle);
    if (from == NULL) return;
    if (*into == MPI_INFO_NULL) {
        int real;
        if (MPY_REAL(Info_create)(&real) != 0) return;
        *into = mpy_info_adopt(real);
    }
    mpy_info_t *to = find(*into);
    mpy_lock(&mpy_objects_lock);
    for (const mpy_pair_t *p = from->first; p != NULL; p = p->next)
        if (MPY_REAL(Info_set)(to->obj.real, p->key, p->value) == 0) pair_set(to, p->key, p->value);
    mpy_unlock(&mpy_objects_lock);
}

/* ---- the program's calls ---- */

int PMPI_Info_create(MPI_Info *info) {
    mpy_thread_t *t = mpy_self();
    int real;
    mpy_cross_in(t);
    int rc = MPY_REAL(Info_create)(&real);
    if (rc == 0) *info = mpy_info_adopt(real);
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_error(NULL, mpy_or_null(rc, info, MPI_INFO_NULL), "MPI_Info_create");
}

int PMPI_Info_create_env(int argc, char *argv[], MPI_Info *info) {
    mpy_thread_t *t = mpy_self();
    int real;
    mpy_cross_in(t);
    int rc = MPY_REAL(Info_create_env)(argc, argv, &real);
    if (rc == 0) *info = mpy_info_adopt(real);
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_error(NULL, mpy_or_null(rc, info, MPI_INFO_NULL), "MPI_Info_create_env");
}

int PMPI_Info_dup(MPI_Info info, MPI_Info *newinfo) {
    mpy_thread_t *t = mpy_self();
    int real;
    mpy_cross_in(t);
    int rc = MPY_REAL(Info_dup)(mpy_real_info(info), &real);
    if (rc == 0) *newinfo = mpy_info_adopt(real);
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_error(NULL, mpy_or_null(rc, newinfo, MPI_INFO_NULL), "MPI_Info_dup");
}

int PMPI_Info_set(MPI_Info info, const char *key, const char *value) {
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    mpy_info_t *i = find(info);
    mpy_lock(&mpy_objects_lock);
    int rc = MPY_REAL(Info_set)(mpy_real_info(info), key, value);
    if (rc == 0 && i != NULL) {
        char stored[MPI_MAX_INFO_VAL + 1]; /* as the library stores it: without leading and trailing blanks */
        int found = 0;
        MPY_REAL(Info_get)(i->obj.real, key, MPI_MAX_INFO_VAL, stored, &found);
        pair_set(i, key, found ? stored : value);
    }
    mpy_unlock(&mpy_objects_lock);
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_error(NULL, rc, "MPI_Info_set");
}

int PMPI_Info_delete(MPI_Info info, const char *key) {
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    mpy_info_t *i = find(info);
    mpy_lock(&mpy_objects_lock);
    int rc = MPY_REAL(Info_delete)(mpy_real_info(info), key);
    if (rc == 0 && i != NULL) {
        mpy_pair_t **p = pair_find(i, key), *gone = *p;
        if (gone != NULL) {
            *p = gone->next;
            pair_free(gone);
        }
    }
    mpy_unlock(&mpy_objects_lock);
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_error(NULL, rc, "MPI_Info_delete");
}

int PMPI_Info_free(MPI_Info *info) {
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    mpy_info_t *i = find(*info);
    int real = mpy_real_info(*info);
    int rc = MPY_REAL(Info_free)(&real);
    if (rc == 0) {
        if (i != NULL) forget(i);
        *info = MPI_INFO_NULL;
    }
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? rc : mpy_error(NULL, rc, "MPI_Info_free");
}

int mpy_info_make_again(void) {
    int rc = 0;
    for (uint32_t i = 0; i < 1u << MPY_INDEX_BITS && rc == 0; i++) {
        mpy_info_t *info = (mpy_info_t *)mpy_slots[MPY_INFO][i];
        if (info == NULL) continue;
        rc = MPY_REAL(Info_create)(&info->obj.real);
        for (const mpy_pair_t *p = info->first; p != NULL && rc == 0; p = p->next)
            rc = MPY_REAL(Info_set)(info->obj.real, p->key, p->value);
    }
    return rc;
}

int mpy_info_rebuild(char *error, uint64_t n) {
    mpy_thread_t *t = &MPY_UPPER->threads[0];
    mpy_hook_in(t);
    int rc = mpy_info_make_again();
    mpy_hook_out(t);
    if (rc == 0) return 0;
    mpy_text_format(error, n, "cannot rebuild an info object (MPI error %d)", rc);
    return -1;
}

/* infos.c - infos, which the back keeps itself. Open MPI's keys have 35 characters at most and its values 255, and
 * before MPI_Init version 4 has no infos at all; MPICH's program knows none of these limits. See openmpi.h.
 *
 * Each info of ours has one of Open MPI beside it, which it gets with MPI_Init, and which has the keys that fit. Calls
 * that take an info get that one.
 *
 * Invariants
 *  1. `ours[i]` exists exactly if the handle with index i does.
 *  2. Open MPI is called only between MPI_Init and MPI_Finalize.
 */
#include "openmpi.h"

#include <manapy/boundary.h>
#include <manapy/lock.h>
#include <string.h>

typedef struct pair { struct pair *next; char *key, *value; } pair_t;
typedef struct info { pair_t *first; } info_t;

static info_t **ours; /* MPY_MADE entries */
static info_t environment;
static bool up, environment_read;
static uint32_t highest, lock; /* the lock guards lists and `highest` */

enum { KEYS_FIT = BACK_MAX_INFO_KEY, VALUES_FIT = BACK_MAX_INFO_VAL }; /* with the end of the string */

/* ---- lists of pairs ---- */

static pair_t **find(info_t *info, const char *key) {
    pair_t **at = &info->first;
    while (*at != NULL && strcmp((*at)->key, key) != 0) at = &(*at)->next;
    return at;
}

static void drop(pair_t **at) {
    pair_t *gone = *at;
    *at = gone->next;
    free(gone->key);
    free(gone->value);
    free(gone);
}

static bool put(info_t *info, const char *key, const char *value) {
    pair_t **at = find(info, key);
    char *copy = strdup(value);
    if (copy == NULL) return false;
    if (*at != NULL) {
        free((*at)->value);
        (*at)->value = copy;
        return true;
    }
    pair_t *pair = calloc(1, sizeof *pair);
    if (pair != NULL) pair->key = strdup(key);
    if (pair == NULL || pair->key == NULL) {
        free(pair);
        free(copy);
        return false;
    }
    pair->value = copy;
    *at = pair;
    return true;
}

/* What Open MPI has written into its own info. */
static void read_theirs(info_t *info, void *theirs) {
    char key[KEYS_FIT + 1], value[VALUES_FIT + 1];
    int n = 0, found;
    MPY_THEIRS(Info_get_nkeys, theirs, &n);
    for (int i = 0; i < n; i++) {
        if (MPY_THEIRS(Info_get_nthkey, theirs, i, key) == 0 &&
            MPY_THEIRS(Info_get, theirs, key, VALUES_FIT - 1, value, &found) == 0 && found)
            put(info, key, value);
    }
}

static info_t *info_of(MPI_Info handle) {
    if (handle == MPI_INFO_ENV) {
        if (up && !environment_read) read_theirs(&environment, mpy_in(MPY_KIND_INFO, handle));
        environment_read |= up;
        return &environment;
    }
    return (uint32_t)handle >> 30 == 2 && ours != NULL ? ours[mpy_made_index(handle)] : NULL;
}

/* ---- Open MPI's infos beside ours ---- */

static void tell(void *theirs, const pair_t *pair) {
    if (theirs != mpy_null[MPY_KIND_INFO] && strlen(pair->key) < KEYS_FIT && strlen(pair->value) < VALUES_FIT)
        MPY_THEIRS(Info_set, theirs, pair->key, pair->value);
}

static void make_theirs(uint32_t i) {
    if (!up || MPY_THEIRS(Info_create, &mpy_made[MPY_KIND_INFO][i]) != 0) return;
    for (const pair_t *p = ours[i]->first; p != NULL; p = p->next) tell(mpy_made[MPY_KIND_INFO][i], p);
}

void mpy_up(void) {
    up = true;
    for (uint32_t i = 0; ours != NULL && i <= highest; i++)
        if (ours[i] != NULL && mpy_made[MPY_KIND_INFO][i] == mpy_null[MPY_KIND_INFO]) make_theirs(i);
}

void mpy_down(void) { up = false; }

static MPI_Info add(void *theirs) {
    info_t *info = calloc(1, sizeof *info);
    mpy_lock_acquire(&lock);
    if (ours == NULL) ours = calloc(MPY_MADE, sizeof *ours);
    if (ours == NULL || info == NULL) MPY_LOWER->svc->die("out of memory", 1);
    mpy_lock_release(&lock);
    MPI_Info handle = mpy_handle_add(MPY_KIND_INFO, theirs);
    uint32_t i = mpy_made_index(handle);
    mpy_lock_acquire(&lock);
    if (i > highest) highest = i;
    ours[i] = info;
    mpy_lock_release(&lock);
    return handle;
}

MPI_Info mpy_info_out(void *theirs) {
    if (theirs == mpy_null[MPY_KIND_INFO]) return MPI_INFO_NULL;
    MPI_Info handle = add(theirs);
    read_theirs(ours[mpy_made_index(handle)], theirs);
    return handle;
}

/* ---- the functions ---- */

static int set(MPI_Info info, const char *key, const char *value);

static int check_key(const char *key) {
    size_t n = key == NULL ? 0 : strlen(key);
    return n == 0 || n > MPI_MAX_INFO_KEY ? MPI_ERR_INFO_KEY : MPI_SUCCESS;
}

static int create(MPI_Info *info) {
    *info = add(mpy_null[MPY_KIND_INFO]);
    make_theirs(mpy_made_index(*info));
    return MPI_SUCCESS;
}

int mpy_info_with(MPI_Info *info, int n, const mpy_pair_t *pairs) {
    int rc = create(info);
    for (int i = 0; rc == 0 && i < n; i++) rc = set(*info, pairs[i].key, pairs[i].value);
    return rc;
}

int mpy_info_dup(MPI_Info info, MPI_Info *new) {
    const info_t *from = info_of(info);
    if (from == NULL) return MPI_ERR_INFO;
    MPI_Info handle = add(mpy_null[MPY_KIND_INFO]);
    bool done = true;
    for (const pair_t *p = from->first; p != NULL; p = p->next)
        done &= put(ours[mpy_made_index(handle)], p->key, p->value);
    make_theirs(mpy_made_index(handle));
    *new = handle;
    return done ? MPI_SUCCESS : MPI_ERR_NO_MEM;
}

static int create_env(int argc, char *argv[], MPI_Info *info) {
    (void)argc, (void)argv; /* the environment is known only to a library that is up */
    return up ? mpy_info_dup(MPI_INFO_ENV, info) : create(info);
}

int mpy_info_free(MPI_Info *info) {
    info_t *i = info_of(*info);
    if (i == NULL || i == &environment) return MPI_ERR_INFO;
    void *theirs = mpy_in(MPY_KIND_INFO, *info);
    if (up && theirs != mpy_null[MPY_KIND_INFO]) MPY_THEIRS(Info_free, &theirs);
    while (i->first != NULL) drop(&i->first);
    mpy_lock_acquire(&lock);
    ours[mpy_made_index(*info)] = NULL;
    mpy_lock_release(&lock);
    free(i);
    mpy_handle_remove(MPY_KIND_INFO, *info);
    *info = MPI_INFO_NULL;
    return MPI_SUCCESS;
}

static int set(MPI_Info info, const char *key, const char *value) {
    info_t *i = info_of(info);
    int rc = check_key(key);
    if (i == NULL || i == &environment) return MPI_ERR_INFO;
    if (rc != 0) return rc;
    if (value == NULL || strlen(value) > MPI_MAX_INFO_VAL) return MPI_ERR_INFO_VALUE;
    if (!put(i, key, value)) return MPI_ERR_NO_MEM;
    if (up) tell(mpy_in(MPY_KIND_INFO, info), *find(i, key));
    return MPI_SUCCESS;
}

int mpy_info_delete(MPI_Info info, const char *key) {
    info_t *i = info_of(info);
    int rc = check_key(key);
    if (i == NULL || i == &environment) return MPI_ERR_INFO;
    if (rc != 0) return rc;
    pair_t **at = find(i, key);
    if (*at == NULL) return MPI_ERR_INFO_NOKEY;
    drop(at);
    if (up && strlen(key) < KEYS_FIT) MPY_THEIRS(Info_delete, mpy_in(MPY_KIND_INFO, info), key);
    return MPI_SUCCESS;
}

bool mpy_info_has(MPI_Info info, const char *key) {
    info_t *i = info_of(info);
    return i != NULL && *find(i, key) != NULL;
}

int mpy_info_merge(MPI_Info into, MPI_Info from) {
    const info_t *i = info_of(from);
    if (i == NULL) return MPI_ERR_INFO;
    int rc = MPI_SUCCESS;
    for (const pair_t *p = i->first; p != NULL && rc == 0; p = p->next) rc = set(into, p->key, p->value);
    return rc;
}

static int get_nkeys(MPI_Info info, int *n) {
    const info_t *i = info_of(info);
    if (i == NULL) return MPI_ERR_INFO;
    *n = 0;
    for (const pair_t *p = i->first; p != NULL; p = p->next) ++*n;
    return MPI_SUCCESS;
}

static int get_nthkey(MPI_Info info, int n, char *key) {
    const info_t *i = info_of(info);
    if (i == NULL) return MPI_ERR_INFO;
    const pair_t *p = i->first;
    while (p != NULL && n > 0) p = p->next, n--;
    if (p == NULL || n < 0) return MPI_ERR_ARG;
    strcpy(key, p->key);
    return MPI_SUCCESS;
}

/* The value of a key, or NULL. */
static int look(MPI_Info info, const char *key, int *flag, const char **value) {
    info_t *i = info_of(info);
    int rc = check_key(key);
    if (i == NULL) return MPI_ERR_INFO;
    if (rc != 0) return rc;
    const pair_t *pair = *find(i, key);
    *flag = pair != NULL;
    *value = pair != NULL ? pair->value : NULL;
    return MPI_SUCCESS;
}

static int get(MPI_Info info, const char *key, int length, char *value, int *flag) {
    const char *found;
    int rc = look(info, key, flag, &found);
    if (rc != 0 || found == NULL) return rc;
    if (length < 0) return MPI_ERR_ARG;
    size_t n = strlen(found), most = (size_t)length;
    memcpy(value, found, n < most ? n : most);
    value[n < most ? n : most] = '\0';
    return MPI_SUCCESS;
}

static int get_valuelen(MPI_Info info, const char *key, int *length, int *flag) {
    const char *found;
    int rc = look(info, key, flag, &found);
    if (rc == 0 && found != NULL) *length = (int)strlen(found);
    return rc;
}

static int get_string(MPI_Info info, const char *key, int *length, char *value, int *flag) {
    const char *found;
    int rc = look(info, key, flag, &found);
    if (rc != 0 || found == NULL) return rc;
    if (*length > 0) rc = get(info, key, *length - 1, value, flag);
    *length = (int)strlen(found) + 1;
    return rc;
}

const mpy_ours_t mpy_ours_infos[] = {
    OURS(Info_create, Info_create, create),         OURS(Info_dup, Info_create, mpy_info_dup),
    OURS(Info_create_env, Info_create, create_env), OURS(Info_free, Info_create, mpy_info_free),
    OURS(Info_set, Info_create, set),               OURS(Info_delete, Info_create, mpy_info_delete),
    OURS(Info_get_nkeys, Info_create, get_nkeys),   OURS(Info_get_nthkey, Info_create, get_nthkey),
    OURS(Info_get, Info_create, get),               OURS(Info_get_valuelen, Info_create, get_valuelen),
    OURS(Info_get_string, Info_create, get_string),
    OURS(Get_hw_resource_info, Info_create, create), /* it tells nothing */
};
const size_t mpy_ours_infos_count = sizeof mpy_ours_infos / sizeof *mpy_ours_infos;

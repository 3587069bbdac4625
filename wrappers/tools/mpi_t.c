/* mpi_t.c - the MPI tool interface (MPI_T): calls that use handles. Generated wrappers ask the real library for
 * numbers, names and indices.
 *
 * Upper half, no libc.
 *
 * A handle of the real library is a pointer into it and is valid only in this library. So the program's handles are
 * records here. They refer to their object by name, and are recreated at a restart. Variables then start with the
 * values of the new library: control variables that the program has written are written again, performance variables
 * count from their start.
 *
 * Invariants
 *  1. A record is in the list as long as the program holds the handle. A pointer that isn't in the list is not a
 *     handle. The last value written to a control variable stays, in one record of its name.
 *  2. Real handles belong to the library of generation `made_for`. The rebuild makes them again. So does the first call
 *     after a restart without MPI (MPI_T exists before MPI_Init and after MPI_Finalize, when no rebuild is called). A
 *     record whose variable is missing in the new library has no real handle: MPI_T_ERR_INVALID_HANDLE.
 *  3. The list changes, and is walked, under mpy_objects_lock, and so are the values that are written. A thread uses
 *     the record of a handle that the program gives it without the lock: no other thread frees that handle meanwhile.
 *  4. Errors are returned; no error handler is called (MPI-4 15.3.10).
 */
#include "mpi_t.h"
#include "core/objects.h"
#include "environment/info.h"

extern __attribute__((visibility("default"))) void *const MPI_T_PVAR_ALL_HANDLES; /* data_symbols.c */

/* WRITTEN: the handle no longer exists, but a value must be written again */
typedef enum { ENUM, CVAR, PVAR, PVAR_SESSION, WRITTEN } kind_t;

typedef struct record {
    struct record *next;
    kind_t kind;
    void *real;          /* NULL: none */
    char *name;          /* name of the variable; for an enumeration: of the variable it belongs to */
    int var_class;       /* for a performance variable */
    bool of_pvar;        /* for an enumeration */
    int bind, object;    /* the program's handle of the object that it is bound to */
    bool has_object;
    struct record *session; /* for a performance variable */
    bool started;
    void *written;       /* a value written to a control variable, or NULL */
    size_t bytes;        /* of such a value */
} record_t;

static record_t *records; /* oldest first */
static uint32_t made_for;
static int inits, init_level;

static void remake(void);

/* Begin and end of every call: in the lower half, with handles that belong to this library. */
static mpy_thread_t *enter(void) {
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    if (MPY_UNLIKELY(made_for != MPY_LOWER->generation)) remake();
    return t;
}
static int leave(mpy_thread_t *t, int rc) {
    mpy_cross_out(t);
    return rc;
}

/* ---- records ---- */

static record_t *find(kind_t kind, const void *handle) {
    mpy_lock(&mpy_objects_lock);
    record_t *r = records;
    while (r != NULL && (r != handle || r->kind != kind)) r = r->next;
    mpy_unlock(&mpy_objects_lock);
    return r != NULL && r->real != NULL ? r : NULL;
}

/* With the lock, like drop and release. */
static record_t *append(kind_t kind, void *real, const char *name) {
    record_t *r = mpy_alloc(sizeof *r), **end = &records;
    r->kind = kind;
    r->real = real;
    r->name = mpy_text_copy(name);
    while (*end != NULL) end = &(*end)->next;
    *end = r;
    return r;
}

static record_t *add(kind_t kind, void *real, const char *name) {
    mpy_lock(&mpy_objects_lock);
    record_t *r = append(kind, real, name);
    mpy_unlock(&mpy_objects_lock);
    return r;
}

static void drop(record_t *r) {
    record_t **at = &records;
    while (*at != r) at = &(*at)->next;
    *at = r->next;
    mpy_text_free(r->name);
    if (r->written != NULL) mpy_free(r->written, r->bytes);
    mpy_free(r, sizeof *r);
}

/* The program frees its handle. */
static void release(record_t *r) {
    if (r->kind == CVAR && r->written != NULL)
        r->kind = WRITTEN;
    else
        drop(r);
}

/* Without the lock. */
static void remove_record(record_t *r) {
    mpy_lock(&mpy_objects_lock);
    release(r);
    mpy_unlock(&mpy_objects_lock);
}

/* ---- variables of the real library ---- */

enum { NAME = 512 };
typedef struct variable {
    char name[NAME];
    int var_class, bind, datatype;
    void *enumeration;
} variable_t;

/* MPICH 5 doesn't check this. */
static int in_range(bool is_pvar, int index) {
    int n, rc = is_pvar ? MPY_REAL(T_pvar_get_num)(&n) : MPY_REAL(T_cvar_get_num)(&n);
    return rc != 0 ? rc : index < 0 || index >= n ? MPI_T_ERR_INVALID_INDEX : MPI_SUCCESS;
}

static int describe(bool is_pvar, int index, variable_t *v) {
    int length = NAME, verbosity, scope, flags[3], rc = in_range(is_pvar, index);
    if (rc != 0) return rc;
    *v = (variable_t){.bind = 0};
    if (!is_pvar)
        return MPY_REAL(T_cvar_get_info)(index, v->name, &length, &verbosity, &v->datatype, &v->enumeration, NULL, NULL,
                                         &v->bind, &scope);
    return MPY_REAL(T_pvar_get_info)(index, v->name, &length, &verbosity, &v->var_class, &v->datatype, &v->enumeration,
                                     NULL, NULL, &v->bind, &flags[0], &flags[1], &flags[2]);
}

static int index_of(bool is_pvar, const char *name, int var_class, int *index) {
    return is_pvar ? MPY_REAL(T_pvar_get_index)(name, var_class, index) : MPY_REAL(T_cvar_get_index)(name, index);
}

/* Finds the real handle of a bound object. Requests, messages, files and error handlers are different in the real
 * library, so nothing can be bound to them (and MPICH binds nothing at all). */
static bool bound_to(int bind, int object, int *real) {
    enum { COMM = 9701, DATATYPE, GROUP = 9705, OP, WIN = 9708, INFO = 9710, SESSION };
    static const struct { int bind; mpy_kind_t kind;
    } kinds[] = {
        {COMM, MPY_COMM}, {DATATYPE, MPY_DATATYPE}, {GROUP, MPY_GROUP},     {OP, MPY_OP},
        {WIN, MPY_WIN},   {INFO, MPY_INFO},         {SESSION, MPY_SESSION},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (kinds[i].bind != bind) continue;
        const mpy_object_t *o = mpy_lookup(kinds[i].kind, object);
        *real = o != NULL ? o->real : object;
        return o != NULL || mpy_is_builtin(object);
    }
    return false;
}

/* Allocates the real handle of a record. */
static int allocate(record_t *r, int index, int *count) {
    int object;
    if (r->has_object && !bound_to(r->bind, r->object, &object)) return MPI_T_ERR_INVALID_HANDLE;
    void *argument = r->has_object ? &object : NULL;
    if (r->kind != PVAR) return MPY_REAL(T_cvar_handle_alloc)(index, argument, &r->real, count);
    return MPY_REAL(T_pvar_handle_alloc)(r->session->real, index, argument, &r->real, count);
}

/* ---- a restart ---- */

static void remake_one(record_t *r) {
    variable_t v;
    int index, count;
    bool is_pvar = r->kind == PVAR || r->of_pvar;
    r->real = NULL;
    if (r->kind == PVAR_SESSION) {
        MPY_REAL(T_pvar_session_create)(&r->real);
        return;
    }
    if (r->kind == PVAR && r->session->real == NULL) return;
    if (index_of(is_pvar, r->name, r->var_class, &index) != 0) return;
    if (r->kind == ENUM) {
        if (describe(is_pvar, index, &v) == 0) r->real = v.enumeration;
        return;
    }
    if (allocate(r, index, &count) != 0) r->real = NULL;
    if (r->real == NULL) return;
    if (r->written != NULL) MPY_REAL(T_cvar_write)(r->real, r->written);
    if (r->started) MPY_REAL(T_pvar_start)(r->session->real, r->real);
    if (r->kind == WRITTEN) MPY_REAL(T_cvar_handle_free)(&r->real);
}

/* In the lower half. Sessions are older than the handles that were allocated in them. */
static void remake(void) {
    mpy_lock(&mpy_objects_lock);
    if (made_for != MPY_LOWER->generation) {
        int provided;
        for (int i = 0; i <= inits; i++) MPY_REAL(T_init_thread)(init_level, &provided);
        for (record_t *r = records; r != NULL; r = r->next) remake_one(r);
        /* balances our T_init_thread: values are written even if the program has finalized MPI_T */
        MPY_REAL(T_finalize)();
        made_for = MPY_LOWER->generation;
    }
    mpy_unlock(&mpy_objects_lock);
}

int mpy_tools_rebuild(char *error, uint64_t n) {
    (void)error, (void)n; /* a missing variable is reported to the program when it uses the handle */
    mpy_thread_t *t = &MPY_UPPER->threads[0];
    mpy_hook_in(t);
    remake();
    mpy_hook_out(t);
    return 0;
}

/* ---- begin and end ---- */

int PMPI_T_init_thread(int required, int *provided) {
    mpy_require_boundary();
    mpy_thread_t *t = enter();
    int rc = MPY_REAL(T_init_thread)(required, provided);
    mpy_lock(&mpy_objects_lock);
    if (rc == 0) {
        inits++;
        init_level = required;
    }
    mpy_unlock(&mpy_objects_lock);
    return leave(t, rc);
}

int PMPI_T_finalize(void) {
    mpy_thread_t *t = enter();
    int rc = MPY_REAL(T_finalize)();
    mpy_lock(&mpy_objects_lock);
    if (rc == 0 && --inits == 0) { /* the last call invalidates all handles */
        for (record_t *r = records, *next; r != NULL; r = next) {
            next = r->next;
            release(r);
        }
    }
    mpy_unlock(&mpy_objects_lock);
    return leave(t, rc);
}

/* ---- enumerations ---- */

static void *virtual_enum(const variable_t *v, bool of_pvar) {
    if (v->enumeration == NULL) return NULL;
    mpy_lock(&mpy_objects_lock);
    record_t *r = records;
    while (r != NULL && !(r->kind == ENUM && r->real == v->enumeration)) r = r->next;
    if (r == NULL) {
        r = append(ENUM, v->enumeration, v->name);
        r->of_pvar = of_pvar;
        r->var_class = v->var_class;
    }
    mpy_unlock(&mpy_objects_lock);
    return r;
}

int PMPI_T_enum_get_info(void *enumtype, int *num, char *name, int *name_len) {
    mpy_thread_t *t = enter();
    const record_t *r = find(ENUM, enumtype);
    return leave(t, r == NULL ? MPI_T_ERR_INVALID_HANDLE : MPY_REAL(T_enum_get_info)(r->real, num, name, name_len));
}

int PMPI_T_enum_get_item(void *enumtype, int indx, int *value, char *name, int *name_len) {
    mpy_thread_t *t = enter();
    const record_t *r = find(ENUM, enumtype);
    return leave(t, r == NULL ? MPI_T_ERR_INVALID_HANDLE
                              : MPY_REAL(T_enum_get_item)(r->real, indx, value, name, name_len));
}

/* ---- control variables ---- */

int PMPI_T_cvar_get_info(int cvar_index, char *name, int *name_len, int *verbosity, MPI_Datatype *datatype,
                         void *enumtype, char *desc, int *desc_len, int *bind, int *scope) {
    mpy_thread_t *t = enter();
    void *real = NULL;
    int rc = in_range(false, cvar_index);
    if (rc == 0)
        rc = MPY_REAL(T_cvar_get_info)(cvar_index, name, name_len, verbosity, datatype, enumtype != NULL ? &real : NULL,
                                       desc, desc_len, bind, scope);
    variable_t v;
    if (rc == 0 && enumtype != NULL)
        *(void **)enumtype = describe(false, cvar_index, &v) == 0 ? virtual_enum(&v, false) : NULL;
    return leave(t, rc);
}

int PMPI_T_cvar_handle_alloc(int cvar_index, void *obj_handle, void *handle, int *count) {
    mpy_thread_t *t = enter();
    variable_t v;
    int rc = describe(false, cvar_index, &v);
    if (rc != 0) return leave(t, rc);
    record_t *r = add(CVAR, NULL, v.name);
    r->bind = v.bind;
    r->has_object = obj_handle != NULL && v.bind != MPI_T_BIND_NO_OBJECT;
    if (r->has_object) r->object = *(int *)obj_handle;
    rc = allocate(r, cvar_index, count);
    if (rc != 0) {
        remove_record(r);
        return leave(t, rc);
    }
    r->bytes = v.datatype == MPI_CHAR ? (size_t)*count : (size_t)*count * mpy_basic_size(v.datatype);
    *(void **)handle = r;
    return leave(t, rc);
}

int PMPI_T_cvar_handle_free(void *handle) {
    mpy_thread_t *t = enter();
    record_t *r = find(CVAR, *(void **)handle);
    if (r == NULL) return leave(t, MPI_T_ERR_INVALID_HANDLE);
    int rc = MPY_REAL(T_cvar_handle_free)(&r->real);
    if (rc == 0) {
        remove_record(r);
        *(void **)handle = NULL;
    }
    return leave(t, rc);
}

int PMPI_T_cvar_read(void *handle, void *buf) {
    mpy_thread_t *t = enter();
    const record_t *r = find(CVAR, handle);
    return leave(t, r == NULL ? MPI_T_ERR_INVALID_HANDLE : MPY_REAL(T_cvar_read)(r->real, buf));
}

int PMPI_T_cvar_write(void *handle, const void *buf) {
    mpy_thread_t *t = enter();
    record_t *r = find(CVAR, handle);
    int rc = r == NULL ? MPI_T_ERR_INVALID_HANDLE : MPY_REAL(T_cvar_write)(r->real, buf);
    mpy_lock(&mpy_objects_lock);
    for (record_t *old = records, *next; rc == 0 && old != NULL; old = next) {
        next = old->next;
        if (old->written == NULL || old == r || !mpy_text_equal(old->name, r->name)) continue;
        mpy_free(old->written, old->bytes);
        old->written = NULL;
        if (old->kind == WRITTEN) drop(old);
    }
    if (rc == 0) {
        if (r->written == NULL) r->written = mpy_alloc(r->bytes);
        __builtin_memcpy(r->written, buf, r->bytes);
    }
    mpy_unlock(&mpy_objects_lock);
    return leave(t, rc);
}

/* ---- performance variables ---- */

int PMPI_T_pvar_get_info(int pvar_index, char *name, int *name_len, int *verbosity, int *var_class,
                         MPI_Datatype *datatype, void *enumtype, char *desc, int *desc_len, int *bind, int *readonly,
                         int *continuous, int *atomic) {
    mpy_thread_t *t = enter();
    void *real = NULL;
    int rc = in_range(true, pvar_index);
    if (rc == 0)
        rc = MPY_REAL(T_pvar_get_info)(pvar_index, name, name_len, verbosity, var_class, datatype,
                                       enumtype != NULL ? &real : NULL, desc, desc_len, bind, readonly, continuous,
                                       atomic);
    variable_t v;
    if (rc == 0 && enumtype != NULL)
        *(void **)enumtype = describe(true, pvar_index, &v) == 0 ? virtual_enum(&v, true) : NULL;
    return leave(t, rc);
}

int PMPI_T_pvar_session_create(void *session) {
    mpy_thread_t *t = enter();
    void *real;
    int rc = MPY_REAL(T_pvar_session_create)(&real);
    if (rc == 0) *(void **)session = add(PVAR_SESSION, real, "");
    return leave(t, rc);
}

int PMPI_T_pvar_session_free(void *session) {
    mpy_thread_t *t = enter();
    record_t *s = find(PVAR_SESSION, *(void **)session);
    if (s == NULL) return leave(t, MPI_T_ERR_INVALID_SESSION);
    int rc = MPY_REAL(T_pvar_session_free)(&s->real);
    if (rc == 0) {
        mpy_lock(&mpy_objects_lock);
        for (record_t *r = records, *next; r != NULL; r = next) { /* its handles are freed with it */
            next = r->next;
            if (r->kind == PVAR && r->session == s) drop(r);
        }
        drop(s);
        mpy_unlock(&mpy_objects_lock);
        *(void **)session = NULL;
    }
    return leave(t, rc);
}

int PMPI_T_pvar_handle_alloc(void *session, int pvar_index, void *obj_handle, void *handle, int *count) {
    mpy_thread_t *t = enter();
    variable_t v;
    record_t *s = find(PVAR_SESSION, session);
    int rc = s == NULL ? MPI_T_ERR_INVALID_SESSION : describe(true, pvar_index, &v);
    if (rc != 0) return leave(t, rc);
    record_t *r = add(PVAR, NULL, v.name);
    r->session = s;
    r->var_class = v.var_class;
    r->bind = v.bind;
    r->has_object = obj_handle != NULL && v.bind != MPI_T_BIND_NO_OBJECT;
    if (r->has_object) r->object = *(int *)obj_handle;
    rc = allocate(r, pvar_index, count);
    if (rc == 0)
        *(void **)handle = r;
    else
        remove_record(r);
    return leave(t, rc);
}

int PMPI_T_pvar_handle_free(void *session, void *handle) {
    mpy_thread_t *t = enter();
    const record_t *s = find(PVAR_SESSION, session);
    record_t *r = find(PVAR, *(void **)handle);
    if (s == NULL) return leave(t, MPI_T_ERR_INVALID_SESSION);
    if (r == NULL || r->session != s) return leave(t, MPI_T_ERR_INVALID_HANDLE);
    int rc = MPY_REAL(T_pvar_handle_free)(s->real, &r->real);
    if (rc == 0) {
        remove_record(r);
        *(void **)handle = NULL;
    }
    return leave(t, rc);
}

/* The real handle for a call on one variable of a session, or on all of them. Returns an MPI_T error code. */
static int real_pvar(const record_t *session, const void *handle, void **real) {
    if (session == NULL) return MPI_T_ERR_INVALID_SESSION;
    *real = MPY_LOWER->mpi_data[MPY_DATA_T_PVAR_ALL_HANDLES];
    if (handle == MPI_T_PVAR_ALL_HANDLES) return MPI_SUCCESS;
    const record_t *r = find(PVAR, handle);
    if (r == NULL || r->session != session) return MPI_T_ERR_INVALID_HANDLE;
    *real = r->real;
    return MPI_SUCCESS;
}

/* MPI_T_pvar_start, _stop and _reset, which have the same type. */
static int control(int slot, void *session, void *handle) {
    mpy_thread_t *t = enter();
    const record_t *s = find(PVAR_SESSION, session);
    void *real;
    int rc = real_pvar(s, handle, &real);
    if (rc == 0) rc = ((mpy_fn_T_pvar_start_t)MPY_LOWER->mpi[slot])(s->real, real);
    mpy_lock(&mpy_objects_lock);
    for (record_t *r = records; rc == 0 && slot != MPY_FN_T_pvar_reset && r != NULL; r = r->next)
        if (r->kind == PVAR && r->session == s && (r == handle || handle == MPI_T_PVAR_ALL_HANDLES))
            r->started = slot == MPY_FN_T_pvar_start;
    mpy_unlock(&mpy_objects_lock);
    return leave(t, rc);
}

int PMPI_T_pvar_start(void *session, void *handle) { return control(MPY_FN_T_pvar_start, session, handle); }
int PMPI_T_pvar_stop(void *session, void *handle) { return control(MPY_FN_T_pvar_stop, session, handle); }
int PMPI_T_pvar_reset(void *session, void *handle) { return control(MPY_FN_T_pvar_reset, session, handle); }

/* MPI_T_pvar_read and _readreset, which have the same type. */
static int get(int slot, void *session, void *handle, void *buf) {
    mpy_thread_t *t = enter();
    const record_t *s = find(PVAR_SESSION, session);
    void *real;
    int rc = real_pvar(s, handle, &real);
    return leave(t, rc != 0 ? rc : ((mpy_fn_T_pvar_read_t)MPY_LOWER->mpi[slot])(s->real, real, buf));
}

int PMPI_T_pvar_read(void *session, void *handle, void *buf) { return get(MPY_FN_T_pvar_read, session, handle, buf); }
int PMPI_T_pvar_readreset(void *session, void *handle, void *buf) {
    return get(MPY_FN_T_pvar_readreset, session, handle, buf);
}

int PMPI_T_pvar_write(void *session, void *handle, const void *buf) {
    mpy_thread_t *t = enter();
    const record_t *s = find(PVAR_SESSION, session);
    void *real;
    int rc = real_pvar(s, handle, &real);
    return leave(t, rc != 0 ? rc : MPY_REAL(T_pvar_write)(s->real, real, buf));
}

/* ---- events: they can be queried, but not registered. MPICH raises none, and callbacks would come from inside the
 * library at any time. So there are no registrations and no instances. ---- */

int PMPI_T_event_get_info(int event_index, char *name, int *name_len, int *verbosity, MPI_Datatype array_of_datatypes[],
                          MPI_Aint array_of_displacements[], int *num_elements, void *enumtype, MPI_Info *info,
                          char *desc, int *desc_len, int *bind) {
    mpy_thread_t *t = enter();
    int real;
    void *enumeration;
    int rc =
        MPY_REAL(T_event_get_info)(event_index, name, name_len, verbosity, array_of_datatypes, array_of_displacements,
                                   num_elements, &enumeration, info != NULL ? &real : NULL, desc, desc_len, bind);
    if (rc == 0 && info != NULL) *info = mpy_info_adopt(real);
    if (rc == 0 && enumtype != NULL) *(void **)enumtype = NULL;
    return leave(t, rc);
}

int PMPI_T_source_get_info(int source_index, char *name, int *name_len, char *desc, int *desc_len, void *ordering,
                           MPI_Count *ticks_per_second, MPI_Count *max_ticks, MPI_Info *info) {
    mpy_thread_t *t = enter();
    int real;
    int rc = MPY_REAL(T_source_get_info)(source_index, name, name_len, desc, desc_len, ordering, ticks_per_second,
                                         max_ticks, info != NULL ? &real : NULL);
    if (rc == 0 && info != NULL) *info = mpy_info_adopt(real);
    return leave(t, rc);
}

int PMPI_T_event_handle_alloc(int event_index, void *obj_handle, MPI_Info info, void *event_registration) {
    (void)obj_handle, (void)info, (void)event_registration;
    mpy_thread_t *t = enter();
    int events = 0, rc = MPY_REAL(T_event_get_num)(&events);
    if (rc == 0) rc = event_index < 0 || event_index >= events ? MPI_T_ERR_INVALID_INDEX : MPI_T_ERR_OUT_OF_HANDLES;
    return leave(t, rc);
}

static int no_handle(void) {
    mpy_thread_t *t = enter();
    int events, rc = MPY_REAL(T_event_get_num)(&events);
    return leave(t, rc != 0 ? rc : MPI_T_ERR_INVALID_HANDLE);
}

#define NO_HANDLE(NAME, ...) \
    int PMPI_T_event_##NAME(__VA_ARGS__) { return no_handle(); }
#define UNUSED __attribute__((unused))
NO_HANDLE(handle_free, UNUSED void *event_registration, UNUSED void *user_data,
          UNUSED mpy_opaque_function *free_cb_function)
NO_HANDLE(handle_get_info, UNUSED void *event_registration, UNUSED MPI_Info *info_used)
NO_HANDLE(handle_set_info, UNUSED void *event_registration, UNUSED MPI_Info info)
NO_HANDLE(register_callback, UNUSED void *event_registration, UNUSED int cb_safety, UNUSED MPI_Info info,
          UNUSED void *user_data, UNUSED mpy_opaque_function *event_cb_function)
NO_HANDLE(callback_get_info, UNUSED void *event_registration, UNUSED int cb_safety, UNUSED MPI_Info *info_used)
NO_HANDLE(callback_set_info, UNUSED void *event_registration, UNUSED int cb_safety, UNUSED MPI_Info info)
NO_HANDLE(set_dropped_handler, UNUSED void *event_registration, UNUSED mpy_opaque_function *dropped_cb_function)
NO_HANDLE(read, UNUSED void *event_instance, UNUSED int element_index, UNUSED void *buffer)
NO_HANDLE(copy, UNUSED void *event_instance, UNUSED void *buffer)
NO_HANDLE(get_timestamp, UNUSED void *event_instance, UNUSED MPI_Count *event_timestamp)
NO_HANDLE(get_source, UNUSED void *event_instance, UNUSED int *source_index)

/* written.c - functions of the back that do not follow from the kinds of their arguments. See translate.h. */
#include "back_interface.h"

#include <stdio.h>
#include <string.h>

/* ---- begin and end ---- */

/* A second MPI_Init, which only fails in MPICH, may end the process. */
static bool begun;

static int init_thread(int *argc, char ***argv, int required, int *provided) {
    if (begun) return MPI_ERR_OTHER;
    begun = true;
    int level = 0;
    int rc = MPY_THEIRS(Init_thread, argc, argv, mpy_number_in(MPY_GROUP_THREAD, required), &level);
    level = mpy_number_out(MPY_GROUP_THREAD, level);
    mpy_threaded = level == MPI_THREAD_MULTIPLE;
    if (rc == 0) mpy_up();
    if (provided != NULL) *provided = level;
    return mpy_code_out(rc);
}
static int init(int *argc, char ***argv) {
    if (begun) return MPI_ERR_OTHER;
    begun = true;
    int rc = MPY_THEIRS(Init, argc, argv);
    if (rc == 0) mpy_up();
    return mpy_code_out(rc);
}
static int finalize(void) {
    mpy_down();
    return mpy_code_out(MPY_THEIRS(Finalize));
}

/* ---- names: the library's may be longer ---- */

static int fitting(char *to, int size, const char *from, int *length) {
    int n = (int)strlen(from);
    if (n >= size) n = size - 1;
    memcpy(to, from, (size_t)n);
    to[n] = '\0';
    if (length != NULL) *length = n;
    return MPI_SUCCESS;
}

static int get_processor_name(char *name, int *length) {
    char theirs[BACK_MAX_PROCESSOR_NAME] = "";
    int n = 0, rc = MPY_THEIRS(Get_processor_name, theirs, &n);
    return rc != 0 ? mpy_code_out(rc) : fitting(name, MPI_MAX_PROCESSOR_NAME, theirs, length);
}

static int port_out(int rc, char *name, const char *theirs) {
    if (rc != 0) return mpy_code_out(rc);
    if (strlen(theirs) >= MPI_MAX_PORT_NAME) return MPI_ERR_PORT; /* a shortened one would lead nowhere */
    strcpy(name, theirs);
    return MPI_SUCCESS;
}
static int open_port(MPI_Info info, char *name) {
    char theirs[BACK_MAX_PORT_NAME] = "";
    return port_out(MPY_THEIRS(Open_port, mpy_in(MPY_KIND_INFO, info), theirs), name, theirs);
}
static int lookup_name(const char *service, MPI_Info info, char *name) {
    char theirs[BACK_MAX_PORT_NAME] = "";
    return port_out(MPY_THEIRS(Lookup_name, service, mpy_in(MPY_KIND_INFO, info), theirs), name, theirs);
}

/* ---- predefined attributes ---- */

static int comm_get_attr(MPI_Comm comm, int keyval, void *value, int *flag) {
    static int shown[16];
    int *theirs = NULL, key = mpy_number_in(MPY_GROUP_KEYVAL, keyval);
    int rc = MPY_THEIRS(Comm_get_attr, mpy_in(MPY_KIND_COMM, comm), key, &theirs, flag);
    if (rc != 0 || !*flag || theirs == NULL) return mpy_code_out(rc);
    int number = *theirs;
    if (keyval == MPI_IO || keyval == MPI_HOST) number = mpy_rank_out(number);
    if (keyval == MPI_LASTUSEDCODE)
        number = number <= BACK_ERR_LASTCODE || number == MPI_ERR_LASTCODE ? MPI_ERR_LASTCODE : mpy_class_out(number);
    shown[key & 15] = number;
    *(int **)value = &shown[key & 15];
    return MPI_SUCCESS;
}

static int win_get_attr(MPI_Win win, int keyval, void *value, int *flag) {
    static int shown[2][8]; /* MPICH's numbers are from 1 to 4 */
    int key = mpy_number_in(MPY_GROUP_WIN_KEYVAL, keyval);
    int rc = MPY_THEIRS(Win_get_attr, mpy_in(MPY_KIND_WIN, win), key, value, flag);
    bool model = keyval == MPI_WIN_MODEL;
    if (rc != 0 || !*flag || !(model || keyval == MPI_WIN_CREATE_FLAVOR)) return mpy_code_out(rc);
    int number = mpy_number_out(model ? MPY_GROUP_MODEL : MPY_GROUP_FLAVOR, **(int **)value);
    shown[model][number & 7] = number;
    *(int **)value = &shown[model][number & 7];
    return MPI_SUCCESS;
}

/* ---- windows ---- */

/* The core asks for things that a window does not have before it sets the error handler. */
MPI_Win mpy_win_out(void *theirs) {
    if (theirs == mpy_null[MPY_KIND_WIN]) return MPI_WIN_NULL;
    MPY_THEIRS(Win_set_errhandler, theirs, mpy_in(MPY_KIND_ERRHANDLER, MPI_ERRORS_RETURN));
    return mpy_handle_add(MPY_KIND_WIN, theirs);
}

/* ---- communicators: the library may write the new one when the request completes, into our table ---- */

static int idup(int rc, MPI_Comm made, void *request, MPI_Comm *newcomm, MPI_Request *out) {
    if (rc != 0) {
        mpy_handle_remove(MPY_KIND_COMM, made);
        return mpy_code_out(rc);
    }
    *newcomm = made;
    *out = mpy_out(MPY_KIND_REQUEST, request);
    return MPI_SUCCESS;
}
static void **place(MPI_Comm comm) { return &mpy_made[MPY_KIND_COMM][mpy_made_index(comm)]; }

static int comm_idup(MPI_Comm comm, MPI_Comm *newcomm, MPI_Request *request) {
    void *theirs = mpy_null[MPY_KIND_REQUEST];
    MPI_Comm made = mpy_handle_add(MPY_KIND_COMM, mpy_null[MPY_KIND_COMM]);
    int rc = MPY_THEIRS(Comm_idup, mpy_in(MPY_KIND_COMM, comm), place(made), &theirs);
    return idup(rc, made, theirs, newcomm, request);
}

static int comm_idup_with_info(MPI_Comm comm, MPI_Info info, MPI_Comm *newcomm, MPI_Request *request) {
    if (mpy_theirs[MPY_FN_Comm_idup_with_info] == NULL) return comm_idup(comm, newcomm, request); /* hints are advice */
    void *theirs = mpy_null[MPY_KIND_REQUEST];
    MPI_Comm made = mpy_handle_add(MPY_KIND_COMM, mpy_null[MPY_KIND_COMM]);
    int rc = MPY_THEIRS(Comm_idup_with_info, mpy_in(MPY_KIND_COMM, comm), mpy_in(MPY_KIND_INFO, info), place(made),
                        &theirs);
    return idup(rc, made, theirs, newcomm, request);
}

/* ---- datatypes ---- */

/* The same type each time, which can't be freed. */
static int permanent(int rc, void *theirs, MPI_Datatype *type) {
    if (rc != 0) return mpy_code_out(rc);
    *type = mpy_handle_find(MPY_KIND_DATATYPE, theirs);
    if (*type == MPI_DATATYPE_NULL) *type = mpy_out(MPY_KIND_DATATYPE, theirs);
    return MPI_SUCCESS;
}
static int type_f90_real(int p, int r, MPI_Datatype *type) {
    void *theirs = NULL;
    int rc = MPY_THEIRS(Type_create_f90_real, p, r, &theirs);
    return permanent(rc, theirs, type);
}
static int type_f90_complex(int p, int r, MPI_Datatype *type) {
    void *theirs = NULL;
    int rc = MPY_THEIRS(Type_create_f90_complex, p, r, &theirs);
    return permanent(rc, theirs, type);
}
static int type_f90_integer(int r, MPI_Datatype *type) {
    void *theirs = NULL;
    int rc = MPY_THEIRS(Type_create_f90_integer, r, &theirs);
    return permanent(rc, theirs, type);
}

/* The core answers for derived types: this is asked only for predefined ones, and for what is no type. */
static int type_contents(MPI_Datatype type, int ints, int aints, int types, int i[], MPI_Aint a[], MPI_Datatype t[]) {
    (void)types, (void)t;
    void *none[1];
    int rc = MPY_THEIRS(Type_get_contents, mpy_in(MPY_KIND_DATATYPE, type), ints, aints, 0, i, a, none);
    return rc == 0 ? MPI_ERR_TYPE : mpy_code_out(rc);
}
static int type_contents_c(MPI_Datatype type, MPI_Count ints, MPI_Count aints, MPI_Count counts, MPI_Count types,
                           int i[], MPI_Aint a[], MPI_Count c[], MPI_Datatype t[]) {
    (void)counts, (void)c;
    return type_contents(type, (int)ints, (int)aints, (int)types, i, a, t);
}

/* ---- operations ---- */

static int op_create(MPI_User_function *function, int commute, MPI_Op *op) {
    return mpy_op_create((void *)function, false, commute, op);
}
static int op_create_c(MPI_User_function_c *function, int commute, MPI_Op *op) {
    return mpy_op_create((void *)function, true, commute, op);
}

/* ---- files ---- */

/* Neither calls the function for the extent, whose argument would need translation. */
static int register_datarep(const char *name, void *read, void *write, void *extent, void *state) {
    return mpy_code_out(MPY_THEIRS(Register_datarep, name, read, write, extent, state));
}
static int register_datarep_c(const char *name, void *read, void *write, void *extent, void *state) {
    if (mpy_theirs[MPY_FN_Register_datarep_c] == NULL) return register_datarep(name, read, write, extent, state);
    return mpy_code_out(MPY_THEIRS(Register_datarep_c, name, read, write, extent, state));
}

/* ---- MPI_T: what a variable is bound to ---- */

static void *bound(int bind, const int *object) {
    static const struct { int bind; mpy_kind_t kind; } kinds[] = {
        {BACK_T_BIND_MPI_COMM, MPY_KIND_COMM},   {BACK_T_BIND_MPI_DATATYPE, MPY_KIND_DATATYPE},
        {BACK_T_BIND_MPI_GROUP, MPY_KIND_GROUP}, {BACK_T_BIND_MPI_OP, MPY_KIND_OP},
        {BACK_T_BIND_MPI_WIN, MPY_KIND_WIN},     {BACK_T_BIND_MPI_INFO, MPY_KIND_INFO},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].bind == bind) return mpy_in(kinds[i].kind, *object);
    return NULL;
}

static int cvar_handle_alloc(int index, void *object, void *handle, int *count) {
    int bind = 0;
    if (object != NULL) MPY_THEIRS(T_cvar_get_info, index, NULL, NULL, NULL, NULL, NULL, NULL, NULL, &bind, NULL);
    void *theirs = object != NULL ? bound(bind, object) : NULL;
    return mpy_code_out(MPY_THEIRS(T_cvar_handle_alloc, index, theirs != NULL ? &theirs : NULL, handle, count));
}

static int pvar_handle_alloc(void *session, int index, void *object, void *handle, int *count) {
    int bind = 0;
    if (object != NULL)
        MPY_THEIRS(T_pvar_get_info, index, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, &bind, NULL, NULL, NULL);
    void *theirs = object != NULL ? bound(bind, object) : NULL;
    return mpy_code_out(
        MPY_THEIRS(T_pvar_handle_alloc, session, index, theirs != NULL ? &theirs : NULL, handle, count));
}

const mpy_ours_t mpy_ours_written[] = {
    OURS(Init, Init, init),
    OURS(Init_thread, Init_thread, init_thread),
    OURS(Finalize, Finalize, finalize),
    OURS(Get_processor_name, Get_processor_name, get_processor_name),
    OURS(Open_port, Open_port, open_port),
    OURS(Lookup_name, Lookup_name, lookup_name),
    OURS(Comm_get_attr, Comm_get_attr, comm_get_attr),
    OURS(Win_get_attr, Win_get_attr, win_get_attr),
    OURS(Comm_idup, Comm_idup, comm_idup),
    OURS(Comm_idup_with_info, Comm_idup, comm_idup_with_info),
    OURS(Type_create_f90_real, Type_create_f90_real, type_f90_real),
    OURS(Type_create_f90_complex, Type_create_f90_complex, type_f90_complex),
    OURS(Type_create_f90_integer, Type_create_f90_integer, type_f90_integer),
    OURS(Type_get_contents, Type_get_contents, type_contents),
    OURS(Type_get_contents_c, Type_get_contents, type_contents_c),
    OURS(Op_create, Op_create, op_create),
    OURS(Op_create_c, Op_create, op_create_c),
    OURS(Op_free, Op_free, mpy_op_free),
    OURS(T_cvar_handle_alloc, T_cvar_handle_alloc, cvar_handle_alloc),
    OURS(T_pvar_handle_alloc, T_pvar_handle_alloc, pvar_handle_alloc),
    OURS(Register_datarep, Register_datarep, register_datarep),
    OURS(Register_datarep_c, Register_datarep, register_datarep_c),
};
const size_t mpy_ours_written_count = sizeof mpy_ours_written / sizeof *mpy_ours_written;

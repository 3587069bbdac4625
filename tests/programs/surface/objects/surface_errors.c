/* Surface: error handlers and attributes, and callbacks that fail, call MPI, or jump out. See checkpointed.h and
 * test_surface.py. */
#include "../../mpi_states.h"

#include <setjmp.h>

/* ---- error handlers of communicators ---- */

static MPI_Comm handled, old_style;
static MPI_Errhandler shared, freed_handle;
static int calls, last_class, nested;
static jmp_buf jump;
static enum { RETURN, CALL_MPI, CHANGE_CODE, JUMP } mode;

static void on_error(MPI_Comm *comm, int *code, ...) {
    CHECK(*comm == handled || *comm == old_style);
    MPI_Error_class(*code, &last_class);
    calls++;
    if (mode == CALL_MPI) MPI_Allreduce(&rank, &nested, 1, MPI_INT, MPI_SUM, MPI_COMM_SELF);
    if (mode == CHANGE_CODE) *code = MPI_ERR_TAG;
    if (mode == JUMP) longjmp(jump, 1);
}

static int fail(MPI_Comm comm) { return MPI_Send(&rank, 1, MPI_INT, size + 3, 0, comm); }

static void handlers_set_up(void) {
    MPI_Comm_dup(MPI_COMM_WORLD, &handled);
    MPI_Comm_dup(MPI_COMM_WORLD, &old_style);
    MPI_Comm_create_errhandler(on_error, &shared);
    MPI_Comm_set_errhandler(handled, shared);
    MPI_Errhandler_create(on_error, &freed_handle);
    MPI_Errhandler_set(old_style, freed_handle);
    MPI_Errhandler_free(&freed_handle); /* still exists as the communicator's handler */
    CHECK(freed_handle == MPI_ERRHANDLER_NULL);
    mode = JUMP; /* after a jump no rank is inside a call: the checkpoint comes */
    if (!setjmp(jump)) fail(handled);
    CHECK(calls == 1 && last_class == MPI_ERR_RANK);
    mode = RETURN;
}

static void handlers_check(void) {
    MPI_Errhandler handler;
    int before = calls;
    CHECK(fail(handled) == MPI_SUCCESS && last_class == MPI_ERR_RANK); /* MPICH: the handler has dealt with it */
    mode = CALL_MPI;
    nested = -1;
    fail(handled);
    CHECK(nested == rank);
    mode = CHANGE_CODE;
    CHECK(fail(old_style) == MPI_SUCCESS);
    mode = JUMP;
    if (!setjmp(jump)) fail(handled);
    mode = RETURN;
    CHECK(calls == before + 4);
    MPI_Comm_call_errhandler(handled, MPI_ERR_OTHER);
    CHECK(calls == before + 5 && last_class == MPI_ERR_OTHER);
    MPI_Comm_get_errhandler(handled, &handler);
    CHECK(handler == shared);
    MPI_Errhandler_free(&handler);
    MPI_Errhandler_get(old_style, &handler);
    CHECK(handler != MPI_ERRORS_RETURN && handler != shared);
    MPI_Errhandler_free(&handler);
    MPI_Comm_set_errhandler(handled, MPI_ERRORS_RETURN);
    CHECK(class_of(fail(handled)) == MPI_ERR_RANK && calls == before + 5);
    MPI_Errhandler_free(&shared);
    MPI_Comm_free(&handled);
    MPI_Comm_free(&old_style);
}

/* A window whose handler was never set: its errors belong to no object (in MPICH). */
static MPI_Win unhandled;

static void bad_handlers_set_up(void) { MPI_Win_create(NULL, 0, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &unhandled); }

static void bad_handlers_check(void) {
    MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
    CHECK(class_of(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRHANDLER_NULL)) == MPI_ERR_ERRHANDLER);
    CHECK(class_of(MPI_Comm_set_errhandler(MPI_COMM_WORLD, (MPI_Errhandler)0x12345)) == MPI_ERR_ERRHANDLER);
    CHECK(class_of(MPI_Comm_set_errhandler(MPI_COMM_NULL, MPI_ERRORS_RETURN)) == MPI_ERR_COMM);
    CHECK(class_of(MPI_Comm_create_errhandler(NULL, &handler)) == MPI_ERR_ARG);
    CHECK(class_of(MPI_Errhandler_free(&handler)) == MPI_ERR_ERRHANDLER);
    CHECK(class_of(MPI_Comm_call_errhandler(MPI_COMM_NULL, MPI_ERR_TAG)) == MPI_ERR_COMM);
    CHECK(class_of(MPI_Comm_get_errhandler(MPI_COMM_NULL, &handler)) == MPI_ERR_COMM);
    CHECK(class_of(MPI_Put(&rank, 1, MPI_INT, size + 3, 0, 1, MPI_INT, unhandled)) == MPI_ERR_RANK);
    MPI_Win_get_errhandler(unhandled, &handler);
    CHECK(handler == MPI_ERRORS_ARE_FATAL);
    MPI_Win_free(&unhandled);
}

/* ---- error classes, codes and texts of the program ---- */

static int class, code, other_class, silent;

static void codes_set_up(void) {
    int gone;
    MPI_Add_error_class(&class);
    MPI_Add_error_code(class, &code);
    MPI_Add_error_string(code, "a text of the program");
    MPI_Add_error_class(&other_class);
    MPI_Add_error_code(other_class, &gone);
    MPI_Add_error_string(gone, "gone");
    CHECK(MPI_Remove_error_string(gone) == MPI_SUCCESS && MPI_Remove_error_code(gone) == MPI_SUCCESS);
    MPI_Add_error_code(class, &silent);
    MPI_Add_error_string(silent, "one text");
    MPI_Add_error_string(silent, "and another");
    CHECK(MPI_Remove_error_string(silent) == MPI_SUCCESS);
}

static void codes_check(void) {
    char text[MPI_MAX_ERROR_STRING];
    int n, *highest, flag;
    CHECK(class_of(code) == class);
    MPI_Error_string(code, text, &n);
    CHECK(!strcmp(text, "a text of the program") && n == 21);
    MPI_Error_string(silent, text, &n);
    CHECK(n == 0);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_LASTUSEDCODE, &highest, &flag);
    CHECK(flag && *highest >= class);
    CHECK(MPI_Remove_error_class(other_class) == MPI_SUCCESS);
    CHECK(class_of(MPI_Remove_error_class(MPI_ERR_ARG)) == MPI_ERR_OTHER);
    CHECK(class_of(MPI_ERR_TRUNCATE) == MPI_ERR_TRUNCATE);
}

/* ---- attributes: values, copies, deletion in reverse order ---- */

static int keyval, old_keyval, type_keyval, deleted[10], deletions, copy_result, delete_result;
static MPI_Comm carrier;
static MPI_Datatype type;

static int on_copy(MPI_Comm comm, int key, void *extra, void *in, void *out, int *flag) {
    int n;
    MPI_Comm_size(comm, &n); /* callbacks may call MPI */
    CHECK(n == size && (key == keyval || key == old_keyval) && extra == &deletions);
    *(char **)out = (char *)in + 1;
    *flag = 1;
    return copy_result;
}

static int on_delete(MPI_Comm comm, int key, void *value, void *extra) {
    (void)comm, (void)value;
    CHECK(extra == &deletions);
    if (deletions < 10) deleted[deletions] = key;
    deletions++;
    if (mode == JUMP) longjmp(jump, 1);
    return delete_result;
}

static void attributes_set_up(void) {
    MPI_Comm_dup(MPI_COMM_WORLD, &carrier);
    MPI_Comm_create_keyval(on_copy, on_delete, &keyval, &deletions);
    MPI_Keyval_create(on_copy, on_delete, &old_keyval, &deletions);
    MPI_Comm_set_attr(carrier, keyval, &rank);
    MPI_Attr_put(carrier, old_keyval, &size);
    MPI_Type_create_keyval(MPI_TYPE_DUP_FN, MPI_TYPE_NULL_DELETE_FN, &type_keyval, NULL);
    MPI_Type_contiguous(3, MPI_INT, &type);
    MPI_Type_set_attr(type, type_keyval, &rank);
}

static void attributes_check(void) {
    void *value;
    int flag;
    MPI_Comm copy;
    MPI_Datatype types[2];
    MPI_Comm_get_attr(carrier, keyval, &value, &flag);
    CHECK(flag && value == &rank);
    MPI_Attr_get(carrier, old_keyval, &value, &flag);
    CHECK(flag && value == &size);
    MPI_Comm_dup(carrier, &copy);
    MPI_Comm_get_attr(copy, old_keyval, &value, &flag);
    CHECK(flag && value == (char *)&size + 1);
    deletions = 0;
    MPI_Comm_set_attr(copy, keyval, &flag); /* deletes the old value */
    CHECK(deletions == 1 && deleted[0] == keyval);
    MPI_Comm_free(&copy);
    CHECK(deletions == 3 && deleted[1] == old_keyval && deleted[2] == keyval);
    MPI_Attr_delete(carrier, old_keyval);
    MPI_Comm_delete_attr(carrier, keyval);
    CHECK(deletions == 5);
    MPI_Comm_get_attr(carrier, keyval, &value, &flag);
    CHECK(!flag);

    MPI_Type_dup(type, &types[0]);
    MPI_Type_delete_attr(type, type_keyval);
    MPI_Type_get_attr(type, type_keyval, &value, &flag);
    CHECK(!flag);
    MPI_Type_get_attr(types[0], type_keyval, &value, &flag);
    CHECK(flag && value == &rank);
    MPI_Type_free(&types[0]);
    MPI_Type_free(&type);
    MPI_Keyval_free(&old_keyval);
    MPI_Comm_free_keyval(&keyval);
    MPI_Type_free_keyval(&type_keyval);
    CHECK(keyval == MPI_KEYVAL_INVALID && old_keyval == MPI_KEYVAL_INVALID && type_keyval == MPI_KEYVAL_INVALID);
    MPI_Comm_free(&carrier);
}

/* ---- callbacks of attributes that fail or jump out ---- */

static int failing;
static MPI_Comm victim;

static int bad_copy(MPI_Comm comm, int key, void *extra, void *in, void *out, int *flag) {
    (void)comm, (void)key, (void)extra;
    *(void **)out = in;
    *flag = 1;
    if (mode == JUMP) longjmp(jump, 1);
    return copy_result;
}

static void failures_set_up(void) {
    MPI_Comm copy = MPI_COMM_NULL;
    MPI_Comm_dup(MPI_COMM_WORLD, &victim);
    MPI_Comm_set_errhandler(victim, MPI_ERRORS_RETURN);
    MPI_Comm_create_keyval(bad_copy, on_delete, &failing, &deletions);
    MPI_Comm_set_attr(victim, failing, &rank);
    mode = JUMP;
    if (!setjmp(jump)) MPI_Comm_dup(victim, &copy);
    if (!setjmp(jump)) MPI_Comm_delete_attr(victim, failing);
    mode = RETURN;
    CHECK(copy == MPI_COMM_NULL);
}

static void failures_check(void) {
    MPI_Comm copy = MPI_COMM_NULL;
    void *value;
    int flag;
    copy_result = MPI_ERR_TOPOLOGY;
    CHECK(class_of(MPI_Comm_dup(victim, &copy)) == MPI_ERR_TOPOLOGY && copy == MPI_COMM_NULL);
    copy_result = 0;
    delete_result = MPI_ERR_DIMS;
    CHECK(class_of(MPI_Comm_delete_attr(victim, failing)) == MPI_ERR_DIMS);
    MPI_Comm_get_attr(victim, failing, &value, &flag);
    CHECK(flag && value == &rank);
    CHECK(class_of(MPI_Comm_set_attr(victim, failing, &size)) == MPI_ERR_DIMS);
    MPI_Comm_get_attr(victim, failing, &value, &flag);
    CHECK(flag && value == &rank);
    CHECK(class_of(MPI_Comm_free(&victim)) == MPI_ERR_DIMS && victim != MPI_COMM_NULL);
    delete_result = 0;
    MPI_Comm_get_attr(victim, failing, &value, &flag);
    CHECK(!flag);
    MPI_Comm_dup(victim, &copy);
    MPI_Comm_free(&copy);
    MPI_Comm_free(&victim);
    MPI_Comm_free_keyval(&failing);
}

static void bad_keyvals_set_up(void) {}

static void bad_keyvals_check(void) {
    void *value;
    int flag, wrong = MPI_TAG_UB, of_types;
    MPI_Type_create_keyval(MPI_TYPE_NULL_COPY_FN, MPI_TYPE_NULL_DELETE_FN, &of_types, NULL);
    CHECK(class_of(MPI_Comm_set_attr(MPI_COMM_WORLD, MPI_TAG_UB, &flag)) == MPI_ERR_KEYVAL);
    CHECK(class_of(MPI_Comm_delete_attr(MPI_COMM_WORLD, MPI_TAG_UB)) == MPI_ERR_KEYVAL);
    CHECK(class_of(MPI_Comm_free_keyval(&wrong)) == MPI_ERR_KEYVAL);
    CHECK(class_of(MPI_Comm_get_attr(MPI_COMM_WORLD, 77, &value, &flag)) == MPI_ERR_KEYVAL);
    CHECK(class_of(MPI_Comm_set_attr(MPI_COMM_WORLD, of_types, &flag)) == MPI_ERR_KEYVAL);
    CHECK(class_of(MPI_Comm_get_attr(MPI_COMM_NULL, MPI_TAG_UB, &value, &flag)) == MPI_ERR_COMM);
    CHECK(class_of(MPI_Type_set_attr(MPI_DATATYPE_NULL, of_types, &flag)) == MPI_ERR_TYPE);
    CHECK(class_of(MPI_Comm_free_keyval(&of_types)) == MPI_ERR_KEYVAL);
    MPI_Type_free_keyval(&of_types);
}

/* ---- keyvals that are freed while attributes of them exist ---- */

static int freed_keyval;
static MPI_Comm bearer;

static void freed_keyvals_set_up(void) {
    int key;
    MPI_Comm_dup(MPI_COMM_WORLD, &bearer);
    MPI_Comm_create_keyval(MPI_COMM_DUP_FN, on_delete, &key, &deletions);
    MPI_Comm_set_attr(bearer, freed_keyval = key, &rank);
    MPI_Comm_free_keyval(&key);
    CHECK(key == MPI_KEYVAL_INVALID);
}

static void freed_keyvals_check(void) {
    void *value;
    int flag, again = freed_keyval;
    MPI_Comm copy;
    MPI_Comm_get_attr(bearer, freed_keyval, &value, &flag);
    CHECK(flag && value == &rank);
    MPI_Comm_dup(bearer, &copy);
    CHECK(MPI_Comm_free_keyval(&again) == MPI_SUCCESS && again == MPI_KEYVAL_INVALID); /* once more */
    deletions = 0;
    CHECK(MPI_Comm_set_attr(copy, freed_keyval, &size) == MPI_SUCCESS && deletions == 1);
    CHECK(MPI_Comm_delete_attr(copy, freed_keyval) == MPI_SUCCESS && deletions == 2);
    MPI_Comm_get_attr(bearer, freed_keyval, &value, &flag);
    CHECK(flag && value == &rank);
    MPI_Comm_free(&copy);
    MPI_Comm_free(&bearer);
    CHECK(deletions == 3);
}

/* ---- constructors that fail return the null handle, and have no other effect ---- */

static void constructors_set_up(void) {}

static int refuse(MPI_Datatype from, int key, void *extra, void *in, void *out, int *flag) {
    (void)from, (void)key, (void)extra, (void)in, (void)out, (void)flag;
    return copy_result;
}

static void constructors_check(void) {
    int key, type_key;
    MPI_Comm from, made = MPI_COMM_WORLD;
    MPI_Datatype made_type = MPI_INT;
    MPI_Request request;
    MPI_Comm_dup(MPI_COMM_SELF, &from);
    MPI_Comm_set_errhandler(from, MPI_ERRORS_RETURN);
    MPI_Comm_create_keyval(bad_copy, MPI_COMM_NULL_DELETE_FN, &key, NULL);
    MPI_Type_create_keyval(refuse, MPI_TYPE_NULL_DELETE_FN, &type_key, NULL);
    MPI_Comm_set_attr(from, key, &rank);
    MPI_Type_set_attr(MPI_FLOAT, type_key, &rank); /* of predefined types attributes are copied, too */
    copy_result = MPI_ERR_TOPOLOGY;
    CHECK(class_of(MPI_Comm_dup(from, &made)) == MPI_ERR_TOPOLOGY && made == MPI_COMM_NULL);
    made = MPI_COMM_WORLD;
    CHECK(class_of(MPI_Comm_dup_with_info(from, MPI_INFO_NULL, &made)) == MPI_ERR_TOPOLOGY && made == MPI_COMM_NULL);
    made = MPI_COMM_WORLD;
    CHECK(class_of(MPI_Comm_idup(from, &made, &request)) == MPI_ERR_TOPOLOGY && made == MPI_COMM_NULL);
    CHECK(class_of(MPI_Type_dup(MPI_FLOAT, &made_type)) == MPI_ERR_TOPOLOGY && made_type == MPI_DATATYPE_NULL);
    copy_result = 0;
    CHECK(MPI_Comm_dup(from, &made) == MPI_SUCCESS && MPI_Comm_free(&made) == MPI_SUCCESS);
    MPI_Type_delete_attr(MPI_FLOAT, type_key);
    MPI_Comm_free(&from);
    MPI_Type_free_keyval(&type_key);
    MPI_Comm_free_keyval(&key);
}

/* ---- a thousand codes: none of them needs a question to the process manager ---- */

static void many_codes_set_up(void) {}

static void many_codes_check(void) {
    double begin = now();
    int many, made;
    MPI_Add_error_class(&many);
    for (int i = 0; i < 1000; i++) MPI_Add_error_code(many, &made);
    CHECK(class_of(made) == many && now() - begin < 10);
}

/* ---- reductions that call MPI or jump out ---- */

static MPI_Op adding;
static MPI_Comm between;

static void add(void *in, void *inout, int *n, MPI_Datatype *datatype) {
    int bytes, r;
    MPI_Aint address;
    MPI_Type_size(*datatype, &bytes);
    MPI_Comm_rank(MPI_COMM_WORLD, &r);
    MPI_Get_address(inout, &address);
    CHECK(bytes == 4 && r == rank && (void *)address == inout);
    if (mode == JUMP) longjmp(jump, 1);
    for (int i = 0; i < *n; i++) ((int *)inout)[i] += ((int *)in)[i];
}

static void jump_out_of_reductions(void) {
    int one = 1, result = 5;
    mode = JUMP;
    if (!setjmp(jump)) {
        MPI_Reduce_local(&one, &result, 1, MPI_INT, adding);
        CHECK(!"jumped");
    }
    if (!setjmp(jump)) MPI_Reduce(&one, &result, 1, MPI_INT, adding, 0, between);
    mode = RETURN;
}

static void reductions_set_up(void) {
    MPI_Comm_split(MPI_COMM_WORLD, rank / 2, rank, &between);
    MPI_Op_create(add, 1, &adding);
    int flag;
    jump_out_of_reductions();
    /* the next call reports that the reduction is over */
    MPI_Iprobe(MPI_ANY_SOURCE, 99, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
}

static void reductions_check(void) {
    int value = rank + 1, result = 0;
    MPI_Allreduce(&value, &result, 1, MPI_INT, adding, MPI_COMM_WORLD);
    CHECK(result == size * (size + 1) / 2);
    result = 10;
    MPI_Reduce_local(&value, &result, 1, MPI_INT, adding);
    CHECK(result == 10 + rank + 1);
    MPI_Op_free(&adding);
    MPI_Comm_free(&between);
}

int main(int argc, char **argv) {
    static const state_t states[] = {
        STATE(handlers),    STATE(bad_handlers),  STATE(codes),        STATE(attributes), STATE(failures),
        STATE(bad_keyvals), STATE(freed_keyvals), STATE(constructors), STATE(many_codes), STATE(reductions),
    };
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    find_rank();
    int result = run_states(argc, argv, states, sizeof states / sizeof *states);
    MPI_Finalize();
    return result;
}

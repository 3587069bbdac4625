/* Objects that several threads use at the same time, each with its own communicators: keyvals, error handlers,
 * datatypes. Objects that are made of them hold references; in the end all references are gone. Then handles of the
 * tool interface, and an info. (MPICH itself doesn't notice the use of freed handles, and its infos aren't made for
 * several threads, so this is checked only under manapy.) Prints "ok". */
#include "../mpi_states.h"

#include <pthread.h>

static void on_error(MPI_Comm *comm, int *code, ...) { (void)comm, (void)code; }

enum { THREADS = 4, TIMES = 400 };
static int shared_keyval, shared_copies, shared_deletions;
static MPI_Errhandler shared_handler;
static MPI_Datatype shared_type;

static int count_copy(MPI_Comm comm, int key, void *extra, void *in, void *out, int *flag) {
    (void)comm, (void)key, (void)extra;
    *(void **)out = in;
    *flag = 1;
    __atomic_add_fetch(&shared_copies, 1, __ATOMIC_RELAXED);
    return MPI_SUCCESS;
}
static int count_delete(MPI_Comm comm, int key, void *value, void *extra) {
    (void)comm, (void)key, (void)value, (void)extra;
    __atomic_add_fetch(&shared_deletions, 1, __ATOMIC_RELAXED);
    return MPI_SUCCESS;
}

static void *share(void *on) {
    MPI_Comm own = *(MPI_Comm *)on, copy;
    for (int i = 0; i < TIMES; i++) {
        MPI_Errhandler handler;
        MPI_Datatype made;
        MPI_Comm_dup(own, &copy);
        MPI_Comm_set_errhandler(copy, shared_handler);
        MPI_Comm_get_errhandler(copy, &handler);
        MPI_Errhandler_free(&handler);
        MPI_Type_contiguous(2, shared_type, &made);
        MPI_Type_free(&made);
        MPI_Comm_free(&copy);
    }
    return NULL;
}

static void make(void) {
    MPI_Comm_create_keyval(count_copy, count_delete, &shared_keyval, NULL);
    MPI_Comm_create_errhandler(on_error, &shared_handler);
    MPI_Type_contiguous(3, MPI_INT, &shared_type);
}

static void share_all(void) {
    MPI_Comm comms[THREADS];
    pthread_t threads[THREADS];
    void *value;
    int flag, bytes = 0, key = shared_keyval;
    MPI_Errhandler handler = shared_handler;
    for (int i = 0; i < THREADS; i++) {
        MPI_Comm_dup(MPI_COMM_SELF, &comms[i]);
        MPI_Comm_set_attr(comms[i], shared_keyval, &rank);
    }
    MPI_Comm_free_keyval(&shared_keyval);
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, share, &comms[i]);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    CHECK(shared_copies == THREADS * TIMES && shared_deletions == shared_copies);
    for (int i = 0; i < THREADS; i++) {
        MPI_Comm_get_attr(comms[i], key, &value, &flag);
        CHECK(flag && value == &rank);
        MPI_Comm_free(&comms[i]);
    }
    /* All references are gone, and so are the objects. */
    CHECK(class_of(MPI_Comm_get_attr(MPI_COMM_WORLD, key, &value, &flag)) == MPI_ERR_KEYVAL);
    CHECK(MPI_Type_size(shared_type, &bytes) == MPI_SUCCESS && bytes == 12);
    CHECK(MPI_Type_free(&shared_type) == MPI_SUCCESS);
    CHECK(MPI_Errhandler_free(&shared_handler) == MPI_SUCCESS);
    CHECK(class_of(MPI_Errhandler_free(&handler)) == MPI_ERR_ERRHANDLER);
}

/* ---- communicators of all threads are forgotten in agreements of any of them ---- */

static void *make_and_free(void *on) {
    for (int i = 0; i < 5 * TIMES; i++) {
        MPI_Comm copy;
        CHECK(MPI_Comm_dup(*(MPI_Comm *)on, &copy) == MPI_SUCCESS);
        MPI_Comm_free(&copy);
    }
    return NULL;
}

static void forget_all(void) {
    MPI_Comm comms[THREADS];
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) MPI_Comm_dup(MPI_COMM_SELF, &comms[i]);
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, make_and_free, &comms[i]);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) MPI_Comm_free(&comms[i]);
}

/* ---- error handlers that threads set on one communicator ---- */

static MPI_Comm contested;

static void *set_again_and_again(void *handler) {
    for (int i = 0; i < 5000 * TIMES; i++) MPI_Comm_set_errhandler(contested, *(MPI_Errhandler *)handler);
    return NULL;
}

static void contest(void) {
    MPI_Errhandler handlers[THREADS], freed;
    pthread_t threads[THREADS];
    MPI_Comm_dup(MPI_COMM_SELF, &contested);
    for (int i = 0; i < THREADS; i++) MPI_Comm_create_errhandler(on_error, &handlers[i]);
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, set_again_and_again, &handlers[i]);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    MPI_Comm_set_errhandler(contested, MPI_ERRORS_RETURN);
    for (int i = 0; i < THREADS; i++) {
        freed = handlers[i];
        CHECK(MPI_Errhandler_free(&handlers[i]) == MPI_SUCCESS); /* no other thread has taken its last reference */
        CHECK(class_of(MPI_Errhandler_free(&freed)) == MPI_ERR_ERRHANDLER);
    }
    MPI_Comm_free(&contested);
}

/* ---- handles of the tool interface, which each thread makes and frees for itself ---- */

static int tool_variable;

static void *use_tool_handles(void *unused) {
    int failed = 0;
    (void)unused;
    for (int i = 0; i < TIMES; i++) {
        MPI_T_cvar_handle handles[100];
        int count, value;
        for (int k = 0; k < 100; k++)
            failed += MPI_T_cvar_handle_alloc(tool_variable, NULL, &handles[k], &count) != MPI_SUCCESS;
        for (int k = 0; k < 100; k++) {
            failed += MPI_T_cvar_read(handles[k], &value) != MPI_SUCCESS;
            failed += MPI_T_cvar_handle_free(&handles[k]) != MPI_SUCCESS;
        }
    }
    CHECK(failed == 0);
    return NULL;
}

/* A variable that is an int and is bound to nothing. */
static int int_variable(void) {
    int n = 0;
    MPI_T_cvar_get_num(&n);
    for (int i = 0; i < n; i++) {
        char name[256];
        int length = sizeof name, none = 0, verbosity, bind, scope;
        MPI_Datatype type;
        MPI_T_enum enumeration;
        if (MPI_T_cvar_get_info(i, name, &length, &verbosity, &type, &enumeration, NULL, &none, &bind, &scope) == 0 &&
            type == MPI_INT && bind == MPI_T_BIND_NO_OBJECT)
            return i;
    }
    return -1;
}

static void use_all_tool_handles(void) {
    pthread_t threads[THREADS];
    int provided;
    MPI_T_init_thread(MPI_THREAD_MULTIPLE, &provided);
    tool_variable = int_variable();
    CHECK(tool_variable >= 0);
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, use_tool_handles, NULL);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    MPI_T_finalize();
}

/* ---- one info, whose keys threads set and delete ---- */

static MPI_Info shared_info;

static void *use_info(void *own) {
    for (int i = 0; i < 50 * TIMES; i++) {
        CHECK(MPI_Info_set(shared_info, own, "value") == MPI_SUCCESS);
        CHECK(MPI_Info_delete(shared_info, own) == MPI_SUCCESS);
    }
    return NULL;
}

static void use_one_info(void) {
    static char keys[THREADS][2] = {"a", "b", "c", "d"};
    pthread_t threads[THREADS];
    int n = -1;
    MPI_Info_create(&shared_info);
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, use_info, keys[i]);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    MPI_Info_get_nkeys(shared_info, &n);
    CHECK(n == 0);
    MPI_Info_free(&shared_info);
}

int main(int argc, char **argv) {
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    find_rank();
    make();
    share_all();
    forget_all();
    contest();
    use_all_tool_handles();
    use_one_info();
    MPI_Finalize();
    puts(failures ? "failed" : "ok");
    return failures != 0;
}

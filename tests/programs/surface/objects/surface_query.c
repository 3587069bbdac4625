/* Surface: small questions, memory, infos, statuses, Fortran conversions. See checkpointed.h and test_surface.py. */
#include "../../mpi_states.h"

#include <pthread.h>

/* ---- the library and the process: the same answers before and after ---- */

static char library[MPI_MAX_LIBRARY_VERSION_STRING], processor[MPI_MAX_PROCESSOR_NAME];
static int version, subversion, level;
static double started;

static void questions_set_up(void) {
    int n;
    MPI_Get_version(&version, &subversion);
    MPI_Get_library_version(library, &n);
    MPI_Get_processor_name(processor, &n);
    MPI_Query_thread(&level);
    started = MPI_Wtime();
    CHECK(version >= (is_open_mpi() ? 3 : 4) && n > 0 && level == MPI_THREAD_SERIALIZED);
}

static void *ask(void *main_thread) {
    MPI_Is_thread_main(main_thread);
    return NULL;
}

static void questions_check(void) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int n, flag = -1, other = -1, major, minor;
    pthread_t thread;
    MPI_Info info;
    MPI_Get_version(&n, &flag);
    CHECK(n == version && flag == subversion);
    MPI_Get_library_version(text, &n);
    CHECK(!strcmp(text, library));
    MPI_Get_processor_name(text, &n);
    CHECK(!strcmp(text, processor) && n == (int)strlen(processor));
    MPI_Query_thread(&n);
    CHECK(n == level);
    MPI_Is_thread_main(&flag);
    pthread_create(&thread, NULL, ask, &other);
    pthread_join(thread, NULL);
    CHECK(flag == 1 && other == 0);
    MPI_Initialized(&flag);
    MPI_Finalized(&other);
    CHECK(flag && !other);
    CHECK(class_of(MPI_Init(NULL, NULL)) == MPI_ERR_OTHER); /* twice */
    CHECK(MPI_Wtime() >= started && MPI_Wtick() > 0 && MPI_Wtick() < 0.1);
    CHECK(MPI_Pcontrol(1) == MPI_SUCCESS);
    CHECK(MPI_Get_hw_resource_info(&info) == MPI_SUCCESS);
    MPI_Info_get_nkeys(info, &n);
    MPI_Info_free(&info);
    CHECK(n >= 0);
    CHECK(class_of(MPI_Abort(MPI_COMM_NULL, 1)) == MPI_ERR_COMM);

    int truth = 7, falsehood = 7;
    MPI_Abi_get_version(&major, &minor);
    CHECK(major == -1 && minor == -1); /* not the standard's binary interface */
    MPI_Abi_get_info(&info);
    MPI_Info_get(info, "mpi_aint_size", 9, text, &flag);
    CHECK(flag && atoi(text) == sizeof(MPI_Aint));
    MPI_Info_free(&info);
    MPI_Abi_get_fortran_info(&info);
    MPI_Info_get(info, "mpi_integer_size", 9, text, &flag);
    CHECK(flag && atoi(text) == 4);
    MPI_Info_free(&info);
    MPI_Abi_get_fortran_booleans(4, &truth, &falsehood, &flag);
    CHECK(flag && truth == 1 && falsehood == 0);
    CHECK(class_of(MPI_Abi_set_fortran_info(MPI_INFO_NULL)) == MPI_ERR_ABI);
    CHECK(class_of(MPI_Abi_set_fortran_booleans(4, &truth, &falsehood)) == MPI_ERR_ABI);
}

/* ---- memory and addresses ---- */

static char *memory;
static int place[10];

static void memory_set_up(void) {
    MPI_Alloc_mem(100000, MPI_INFO_NULL, &memory);
    memset(memory, rank + 1, 100000);
}

static void memory_check(void) {
    MPI_Aint a, b;
    CHECK(memory[0] == rank + 1 && memory[99999] == rank + 1);
    CHECK(MPI_Free_mem(memory) == MPI_SUCCESS);
    MPI_Get_address(&place[0], &a);
    MPI_Address(&place[3], &b);
    CHECK(MPI_Aint_diff(b, a) == 3 * sizeof(int) && MPI_Aint_add(a, 3 * sizeof(int)) == b && a == (MPI_Aint)place);
    CHECK(class_of(MPI_Alloc_mem(-1, MPI_INFO_NULL, &memory)) == MPI_ERR_ARG &&
          class_of(MPI_Get_address(place, NULL)) == MPI_ERR_ARG);
    CHECK(class_of(MPI_Alloc_mem(8, (MPI_Info)0x77, &memory)) == MPI_ERR_INFO);
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "mpi_minimum_memory_alignment", "4096");
    MPI_Alloc_mem(100, info, &memory);
    CHECK((MPI_Aint)memory % 4096 == 0);
    MPI_Free_mem(memory);
    MPI_Info_free(&info);
}

/* ---- infos ---- */

static MPI_Info info, copy, arguments;

static void infos_set_up(void) {
    char *vector[] = {"program", "-host", "here", NULL};
    MPI_Info_create(&info);
    MPI_Info_set(info, "one", "1");
    MPI_Info_set(info, "two", "zwei");
    MPI_Info_set(info, "gone", "x");
    MPI_Info_delete(info, "gone");
    MPI_Info_dup(info, &copy);
    MPI_Info_set(info, "one", "eins");
    MPI_Info_create_env(3, vector, &arguments);
}

static void infos_check(void) {
    char key[MPI_MAX_INFO_KEY + 1], value[100];
    int n, flag, length = 100;
    MPI_Info_get(info, "one", 99, value, &flag);
    CHECK(flag && !strcmp(value, "eins"));
    MPI_Info_get_string(copy, "one", &length, value, &flag);
    CHECK(flag && !strcmp(value, "1") && length == 2);
    MPI_Info_get_valuelen(info, "two", &n, &flag);
    CHECK(flag && n == 4);
    MPI_Info_get_valuelen(info, "gone", &n, &flag);
    CHECK(!flag);
    MPI_Info_get_nkeys(copy, &n);
    MPI_Info_get_nthkey(copy, 1, key);
    CHECK(n == 2 && !strcmp(key, "two"));
    MPI_Info_get_nkeys(arguments, &n);
    CHECK(n > 0);
    CHECK(class_of(MPI_Info_set(info, "", "x")) == MPI_ERR_INFO_KEY &&
          class_of(MPI_Info_delete(info, "gone")) == MPI_ERR_INFO_NOKEY);
    CHECK(class_of(MPI_Info_get_nthkey(info, 9, key)) == MPI_ERR_ARG &&
          class_of(MPI_Info_set((MPI_Info)1, "a", "b")) == MPI_ERR_INFO);
    MPI_Info_free(&info);
    MPI_Info_free(&copy);
    MPI_Info_free(&arguments);
    CHECK(info == MPI_INFO_NULL);
}

/* ---- statuses are memory of the program ---- */

static MPI_Status status;
static MPI_Datatype pair;

static void statuses_set_up(void) {
    MPI_Type_contiguous(2, MPI_INT, &pair);
    MPI_Type_commit(&pair);
    memset(&status, 0, sizeof status);
    MPI_Status_set_source(&status, 3);
    MPI_Status_set_tag(&status, 4);
    MPI_Status_set_error(&status, MPI_ERR_OTHER);
    MPI_Status_set_cancelled(&status, 1);
    MPI_Status_set_elements(&status, MPI_INT, 7);
}

static void statuses_check(void) {
    int n, flag;
    MPI_Count many;
    MPI_Status_get_source(&status, &n);
    CHECK(n == 3 && status.MPI_SOURCE == 3);
    MPI_Status_get_tag(&status, &n);
    CHECK(n == 4);
    MPI_Status_get_error(&status, &n);
    CHECK(n == MPI_ERR_OTHER);
    MPI_Test_cancelled(&status, &flag);
    CHECK(flag);
    MPI_Get_count(&status, MPI_INT, &n);
    CHECK(n == 7);
    MPI_Get_count(&status, pair, &n);
    CHECK(n == MPI_UNDEFINED);
    MPI_Get_elements(&status, pair, &n);
    CHECK(n == 7);
    MPI_Status_set_elements_c(&status, pair, 6);
    MPI_Get_count_c(&status, pair, &many);
    CHECK(many == 3);
    MPI_Status_set_elements_x(&status, MPI_CHAR, 5000000000ll);
    MPI_Get_elements_x(&status, MPI_CHAR, &many);
    CHECK(many == 5000000000ll);
    MPI_Get_elements_c(&status, MPI_CHAR, &many);
    CHECK(many == 5000000000ll);
    MPI_Get_count(&status, MPI_CHAR, &n);
    CHECK(n == MPI_UNDEFINED); /* too large for an int */
    CHECK(class_of(MPI_Get_count(&status, MPI_DATATYPE_NULL, &n)) == MPI_ERR_TYPE);
    CHECK(class_of(MPI_Status_set_elements(&status, MPI_INT, -1)) == MPI_ERR_COUNT);
    MPI_Type_free(&pair);
}

/* ---- Fortran: integers made of handles before the checkpoint are the same objects after it ---- */

static MPI_Fint f_comm, f_type, f_group, f_info, f_op, f_errhandler, f_request, f_session, f_file,
    f_status[MPI_F_STATUS_SIZE];
static int i_comm, number, received;

static void add(void *in, void *inout, int *n, MPI_Datatype *type) {
    (void)type;
    for (int i = 0; i < *n; i++) ((int *)inout)[i] += ((int *)in)[i];
}

static void on_error(MPI_Comm *comm, int *code, ...) { (void)comm, (void)code; }

static void fortran_set_up(void) {
    MPI_Comm comm;
    MPI_Datatype type;
    MPI_Group group;
    MPI_Info hints;
    MPI_Op op;
    MPI_Errhandler errhandler;
    MPI_Request request;
    MPI_Session session;
    MPI_Status own = {.MPI_SOURCE = 2, .MPI_TAG = 9, .MPI_ERROR = 5};
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Type_contiguous(3, MPI_INT, &type);
    MPI_Comm_group(comm, &group);
    MPI_Info_create(&hints);
    MPI_Info_set(hints, "a", "b");
    MPI_Op_create(add, 1, &op);
    MPI_Comm_create_errhandler(on_error, &errhandler);
    MPI_Irecv(&received, 1, MPI_INT, (rank + size - 1) % size, 5, comm, &request);
    MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &session);
    f_comm = MPI_Comm_c2f(comm);
    i_comm = MPI_Comm_toint(comm);
    f_type = MPI_Type_c2f(type);
    f_group = MPI_Group_c2f(group);
    f_info = MPI_Info_c2f(hints);
    f_op = MPI_Op_c2f(op);
    f_errhandler = MPI_Errhandler_c2f(errhandler);
    f_request = MPI_Request_c2f(request);
    f_session = MPI_Session_c2f(session);
    f_file = MPI_File_c2f(MPI_FILE_NULL);
    MPI_Status_c2f(&own, f_status);
}

static void fortran_check(void) {
    int value = rank, result = -1;
    MPI_Comm comm = MPI_Comm_f2c(f_comm);
    CHECK(comm == MPI_Comm_fromint(i_comm));
    MPI_Op op = MPI_Op_f2c(f_op);
    CHECK(MPI_Op_fromint(MPI_Op_toint(op)) == op);
    MPI_Allreduce(&value, &result, 1, MPI_INT, op, comm);
    CHECK(result == size * (size - 1) / 2);
    MPI_Datatype type = MPI_Type_f2c(f_type);
    CHECK(MPI_Type_fromint(MPI_Type_toint(type)) == type);
    MPI_Type_size(type, &number);
    CHECK(number == 12);
    MPI_Group group = MPI_Group_f2c(f_group);
    CHECK(MPI_Group_fromint(MPI_Group_toint(group)) == group);
    MPI_Group_rank(group, &number);
    CHECK(number == rank);
    MPI_Info hints = MPI_Info_f2c(f_info);
    CHECK(MPI_Info_fromint(MPI_Info_toint(hints)) == hints);
    MPI_Info_get_nkeys(hints, &number);
    CHECK(number == 1);
    MPI_Errhandler errhandler = MPI_Errhandler_f2c(f_errhandler);
    CHECK(MPI_Errhandler_fromint(MPI_Errhandler_toint(errhandler)) == errhandler &&
          MPI_Comm_set_errhandler(comm, errhandler) == MPI_SUCCESS);
    MPI_Request request = MPI_Request_f2c(f_request);
    CHECK(MPI_Request_fromint(MPI_Request_toint(request)) == request);
    MPI_Send(&value, 1, MPI_INT, (rank + 1) % size, 5, comm);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    CHECK(received == (rank + size - 1) % size);
    MPI_Session session = MPI_Session_f2c(f_session);
    CHECK(MPI_Session_fromint(MPI_Session_toint(session)) == session && MPI_Session_finalize(&session) == MPI_SUCCESS);
    CHECK(MPI_File_f2c(f_file) == MPI_FILE_NULL && MPI_File_fromint(MPI_File_toint(MPI_FILE_NULL)) == MPI_FILE_NULL);
    CHECK(MPI_Win_f2c(MPI_Win_c2f(MPI_WIN_NULL)) == MPI_WIN_NULL &&
          MPI_Win_fromint(MPI_Win_toint(MPI_WIN_NULL)) == MPI_WIN_NULL);
    CHECK(MPI_Message_f2c(MPI_Message_c2f(MPI_MESSAGE_NO_PROC)) == MPI_MESSAGE_NO_PROC &&
          MPI_Message_fromint(MPI_Message_toint(MPI_MESSAGE_NULL)) == MPI_MESSAGE_NULL);

    MPI_Status own;
    MPI_F08_status modern;
    MPI_Fint old[MPI_F_STATUS_SIZE];
    MPI_Status_f2c(f_status, &own);
    CHECK(own.MPI_SOURCE == 2 && own.MPI_TAG == 9 && own.MPI_ERROR == 5 && f_status[MPI_F_SOURCE] == 2 &&
          f_status[MPI_F_TAG] == 9);
    MPI_Status_c2f08(&own, &modern);
    own.MPI_SOURCE = 0;
    MPI_Status_f082c(&modern, &own);
    CHECK(own.MPI_SOURCE == 2);
    MPI_Status_f082f(&modern, old);
    CHECK(old[MPI_F_TAG] == 9);
    memset(&modern, 0, sizeof modern);
    MPI_Status_f2f08(old, &modern);
    CHECK(modern.MPI_TAG == 9);
    MPI_Op_free(&op);
    MPI_Type_free(&type);
    MPI_Group_free(&group);
    MPI_Info_free(&hints);
    MPI_Errhandler_free(&errhandler);
    MPI_Comm_free(&comm);
}

int main(int argc, char **argv) {
    static const state_t states[] = {STATE(questions), STATE(memory), STATE(infos), STATE(statuses), STATE(fortran)};
    int provided, flag;
    MPI_Initialized(&flag);
    CHECK(!flag);
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    find_rank();
    int result = run_states(argc, argv, states, sizeof states / sizeof *states);
    MPI_Finalize();
    MPI_Finalized(&flag);
    return result != 0 || !flag;
}

/* The MPI library is loaded three times: by its name, and from two more files (arguments). Each copy is used with the
 * objects of the others, before and after a checkpoint. The main thread uses all copies; another thread uses only one.
 * See checkpointed.h; 2 ranks. */
#include "../mpi_states.h"

#include <dlfcn.h>
#include <pthread.h>

/* The functions that this program calls through the copies. */
#define FUNCTIONS(X)                                                                                           \
    X(Init_thread) X(Finalize) X(Comm_dup) X(Comm_free) X(Comm_set_name) X(Comm_get_name)                      \
    X(Comm_create_keyval) X(Comm_set_attr) X(Comm_get_attr) X(Op_create) X(Allreduce)                          \
    X(Type_contiguous) X(Type_commit) X(Irecv) X(Recv) X(Send) X(Wait)                                         \
    X(Dist_graph_create_adjacent) X(Dist_graph_neighbors_count)
#define MEMBER(name) __typeof__(&MPI_##name) name;
typedef struct {
    FUNCTIONS(MEMBER)
    int *const *unweighted;
    int (*dup)(MPI_Comm, int, void *, void *, void *, int *);
} copy_t;

static copy_t copies[2];

#define FIND(name) CHECK((c->name = (__typeof__(c->name))dlsym(library, "MPI_" #name)) != NULL);
static void open_copy(copy_t *c, const char *path, int scope) {
    void *library = dlopen(path, RTLD_NOW | scope);
    if (library == NULL) printf("FAILED dlopen: %s\n", dlerror()), exit(1);
    FUNCTIONS(FIND)
    CHECK((void *)c->Comm_dup != (void *)MPI_Comm_dup); /* it is another copy */
    c->unweighted = dlsym(library, "MPI_UNWEIGHTED");
    c->dup = (__typeof__(c->dup))dlsym(library, "MPIR_Dup_fn");
}

/* ---- objects made by one copy and used by another ---- */

static MPI_Comm made, graph, copied;
static MPI_Op last_digit;
static MPI_Datatype triple;
static MPI_Request open_receive;
static int keyval, value = 17, received[3];

static void add_digits(void *in, void *inout, int *n, MPI_Datatype *type) {
    (void)type;
    for (int i = 0; i < *n; i++) ((int *)inout)[i] = (((int *)in)[i] + ((int *)inout)[i]) % 10;
}

static void objects_set_up(void) {
    const copy_t *a = &copies[0], *b = &copies[1];
    int other = 1 - rank;
    a->Comm_dup(MPI_COMM_WORLD, &made);
    b->Comm_set_name(made, "of two copies");
    a->Op_create(add_digits, 1, &last_digit);
    b->Type_contiguous(3, MPI_INT, &triple);
    a->Type_commit(&triple);
    b->Irecv(received, 1, triple, other, 5, made, &open_receive);
    b->Comm_create_keyval(a->dup, MPI_COMM_NULL_DELETE_FN, &keyval, NULL);
    a->Comm_set_attr(made, keyval, &value);
    MPI_Comm_dup(made, &copied);
    a->Dist_graph_create_adjacent(made, 1, &other, *a->unweighted, 1, &other, *b->unweighted, MPI_INFO_NULL, 0,
                                  &graph);
}

static void is_whole(MPI_Comm comm) {
    char name[MPI_MAX_OBJECT_NAME];
    int n, in, out, weighted = -1, found, sum, own = 8 + rank, *attribute;
    copies[0].Comm_get_name(made, name, &n);
    CHECK(strcmp(name, "of two copies") == 0);
    copies[0].Comm_get_attr(comm, keyval, &attribute, &found);
    CHECK(found && attribute == &value);
    copies[1].Allreduce(&own, &sum, 1, MPI_INT, last_digit, comm);
    CHECK(sum == 7);
    MPI_Allreduce(&own, &sum, 1, MPI_INT, last_digit, comm);
    CHECK(sum == 7);
    MPI_Dist_graph_neighbors_count(graph, &in, &out, &weighted);
    CHECK(in == 1 && out == 1 && !weighted);
    copies[1].Dist_graph_neighbors_count(graph, &in, &out, &weighted);
    CHECK(in == 1 && out == 1 && !weighted);
}

static void objects_check(void) {
    int sent[3] = {rank, 10 + rank, 20 + rank};
    is_whole(made);
    is_whole(copied);
    copies[0].Send(sent, 3, MPI_INT, 1 - rank, 5, made);
    copies[0].Wait(&open_receive, MPI_STATUS_IGNORE);
    CHECK(received[0] == 1 - rank && received[1] == 11 - rank && received[2] == 21 - rank);
    copies[1].Comm_free(&copied);
    CHECK(copied == MPI_COMM_NULL);
    MPI_Comm_free(&made);
}

/* ---- a thread that waits in one copy at the checkpoint ---- */

static pthread_t thread;
static MPI_Comm of_thread;
static int reached, got;

static void *wait_for_message(void *unused) {
    (void)unused;
    int token = 0;
    copies[0].Recv(&token, 1, MPI_INT, 1 - rank, 6, of_thread, MPI_STATUS_IGNORE);
    __atomic_store_n(&reached, 1, __ATOMIC_RELEASE);
    copies[0].Recv(&got, 1, MPI_INT, 1 - rank, 7, of_thread, MPI_STATUS_IGNORE);
    return NULL;
}

static void thread_set_up(void) {
    MPI_Comm_dup(MPI_COMM_WORLD, &of_thread);
    pthread_create(&thread, NULL, wait_for_message, NULL);
    copies[1].Send(&rank, 1, MPI_INT, 1 - rank, 6, of_thread);
    WAIT_UNTIL(__atomic_load_n(&reached, __ATOMIC_ACQUIRE));
}

static void thread_check(void) {
    int sent = 40 + rank;
    copies[1].Send(&sent, 1, MPI_INT, 1 - rank, 7, of_thread);
    pthread_join(thread, NULL);
    CHECK(got == 41 - rank);
    MPI_Comm_free(&of_thread);
}

int main(int argc, char **argv) {
    static const state_t states[] = {STATE(objects), STATE(thread)};
    int level;
    if (argc != 3) return 2;
    open_copy(&copies[0], argv[1], RTLD_LOCAL);
    copies[0].Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    CHECK(level == MPI_THREAD_MULTIPLE);
    open_copy(&copies[1], argv[2], RTLD_GLOBAL);
    find_rank();
    int result = run_states(1, argv, states, sizeof states / sizeof *states);
    copies[1].Finalize();
    return result;
}

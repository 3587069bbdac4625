/* Surface: connections to processes outside the job, and inside it. See checkpointed.h and test_surface.py.
 *
 * No connection to the outside is open at the checkpoint, because such a checkpoint would be refused (test_dynamic.py).
 */
#include "../../mpi_states.h"

#include <sys/socket.h>
#include <sys/un.h>

enum { PORT = 1024 }; /* MPICH over UCX needs more than MPI_MAX_PORT_NAME, and a hint that says so */

static char *self_path;
static MPI_Info roomy; /* the hint */

static int sum(int value, MPI_Comm comm) {
    int result = -1;
    MPI_Allreduce(&value, &result, 1, MPI_INT, MPI_SUM, comm);
    return result;
}

static void add(void *in, void *inout, int *n, MPI_Datatype *datatype) {
    (void)datatype;
    for (int i = 0; i < *n; i++) ((int *)inout)[i] += ((int *)in)[i];
}

/* The same by requests, with an operation of the program that is freed meanwhile. */
static int sum_by_request(int value, MPI_Comm comm) {
    int result = -1;
    MPI_Op op;
    MPI_Request request;
    MPI_Op_create(add, 1, &op);
    MPI_Iallreduce(&value, &result, 1, MPI_INT, op, comm, &request);
    MPI_Op_free(&op);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
#ifndef OPEN_MPI /* 4.1 has no persistent collectives */
    int again = -1;
    if (is_open_mpi()) return result;
    MPI_Op_create(add, 1, &op);
    MPI_Allreduce_init(&value, &again, 1, MPI_INT, op, comm, MPI_INFO_NULL, &request);
    MPI_Op_free(&op);
    MPI_Start(&request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Request_free(&request);
    CHECK(again == result);
#endif
    return result;
}

/* ---- children: this program, run with the argument "child" ---- */

static int child(void) {
    MPI_Comm parent, again;
    int r, n;
    MPI_Comm_get_parent(&parent);
    MPI_Comm_rank(parent, &r);
    MPI_Comm_remote_size(parent, &n);
    n = sum(100 + r, parent);
    sum_by_request(100 + r, parent);
    MPI_Comm_dup(parent, &again);
    sum(n, again);
    MPI_Comm_disconnect(&again);
    MPI_Comm_disconnect(&parent);
    return 0;
}

/* The data that the two children of a spawn exchange with us. */
static void family(MPI_Comm children) {
    int n, r;
    MPI_Comm again;
    MPI_Comm_remote_size(children, &n);
    MPI_Comm_rank(children, &r);
    CHECK(n == 2 && r == rank);
    CHECK(sum(rank, children) == 201);
    CHECK(sum_by_request(rank, children) == 201);
    MPI_Comm_dup(children, &again);
    CHECK(sum(1, again) == 2 * size * (size - 1) / 2);
    MPI_Comm_disconnect(&again);
    MPI_Comm_disconnect(&children);
    CHECK(children == MPI_COMM_NULL);
}

static void spawn(void) {
    char *arguments[] = {"child", NULL}, *commands[] = {self_path, self_path}, **vectors[] = {arguments, arguments};
    int one[] = {1, 1}, codes[2] = {-1, -1};
    MPI_Info infos[] = {MPI_INFO_NULL, MPI_INFO_NULL};
    MPI_Comm children;
    MPI_Comm_spawn(self_path, arguments, 2, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &children, codes);
    CHECK(codes[0] == MPI_SUCCESS && codes[1] == MPI_SUCCESS);
    family(children);
    MPI_Comm_spawn_multiple(2, commands, vectors, one, infos, 0, MPI_COMM_WORLD, &children, MPI_ERRCODES_IGNORE);
    family(children);
}

static void children_set_up(void) { spawn(); }
static void children_check(void) {
    MPI_Comm parent = MPI_COMM_WORLD;
    MPI_Comm_get_parent(&parent);
    CHECK(parent == MPI_COMM_NULL);
    spawn();
}

/* ---- a port that is open at the checkpoint and leads to this rank after it; the job's two halves connect over it
 * ---- */

static char port[PORT];

static void open_port(char *name) { CHECK(MPI_Open_port(roomy, name) == MPI_SUCCESS); }

static void ports_set_up(void) {
    if (rank != 0) return;
    open_port(port);
    MPI_Publish_name("a service of surface_dynamic", MPI_INFO_NULL, port);
}

static void ports_check(void) {
    MPI_Comm half, inter;
    char found[PORT] = "";
    if (rank == 0) {
        MPI_Lookup_name("a service of surface_dynamic", roomy, found);
        CHECK(!strcmp(found, port));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1) MPI_Lookup_name("a service of surface_dynamic", roomy, found);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
    if (rank % 2 == 0)
        MPI_Comm_accept(port, MPI_INFO_NULL, 0, half, &inter);
    else
        MPI_Comm_connect(found, MPI_INFO_NULL, 0, half, &inter);
    int n;
    MPI_Comm_remote_size(inter, &n);
    CHECK(n == size / 2 && sum(rank % 2, inter) == (1 - rank % 2) * n);
    MPI_Comm_free(&inter);
    MPI_Comm_free(&half);
    if (rank != 0) return;
    CHECK(MPI_Unpublish_name("a service of surface_dynamic", MPI_INFO_NULL, port) == MPI_SUCCESS);
    CHECK(MPI_Close_port(port) == MPI_SUCCESS);
    CHECK(class_of(MPI_Lookup_name("a service of surface_dynamic", roomy, found)) == MPI_ERR_NAME);
}

/* ---- connections between parts of the job are communicators like others: they exist again after a restart ---- */

static MPI_Comm bridge;

static void inside_set_up(void) {
    MPI_Comm half;
    char name[PORT] = "";
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
    if (rank == size - 2) open_port(name);
    MPI_Bcast(name, PORT, MPI_CHAR, size - 2, MPI_COMM_WORLD);
    if (rank % 2 == 0)
        MPI_Comm_accept(name, MPI_INFO_NULL, 0, half, &bridge);
    else
        MPI_Comm_connect(name, MPI_INFO_NULL, 0, half, &bridge);
    if (rank == size - 2) MPI_Close_port(name);
    MPI_Comm_free(&half);
}

static void inside_check(void) {
    int value = rank, other = -1, r;
    MPI_Comm_rank(bridge, &r);
    CHECK(r == (size - 1 - rank) / 2);
    MPI_Sendrecv(&value, 1, MPI_INT, r, 1, &other, 1, MPI_INT, r, 1, bridge, MPI_STATUS_IGNORE);
    CHECK(other == (rank % 2 ? rank - 1 : rank + 1));
    CHECK(sum(1, bridge) == size / 2);
    MPI_Comm_disconnect(&bridge);
}

/* ---- two processes with a socket between them: ranks 2i and 2i + 1 ---- */

static MPI_Comm joined;

static void join_set_up(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int other = rank ^ 1, fd = socket(AF_UNIX, SOCK_STREAM, 0), server = fd;
    if (rank % 2 == 0) {
        snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "surface_dynamic-%d", (int)getpid());
        CHECK(bind(server, (struct sockaddr *)&address, sizeof address) == 0 && listen(server, 1) == 0);
        MPI_Send(&address, sizeof address, MPI_BYTE, other, 1, MPI_COMM_WORLD);
        fd = accept(server, NULL, NULL);
        close(server);
    } else {
        MPI_Recv(&address, sizeof address, MPI_BYTE, other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    }
    CHECK(MPI_Comm_join(fd, &joined) == MPI_SUCCESS);
    close(fd);
}

static void join_check(void) {
    int value = rank, other = -1;
    MPI_Sendrecv(&value, 1, MPI_INT, 0, 1, &other, 1, MPI_INT, 0, 1, joined, MPI_STATUS_IGNORE);
    CHECK(other == (rank ^ 1) && sum(rank, joined) == (rank ^ 1));
    MPI_Comm_disconnect(&joined);
}

int main(int argc, char **argv) {
    static const state_t states[] = {STATE(children), STATE(ports), STATE(inside), STATE(join)};
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    find_rank();
    self_path = argv[0];
    MPI_Info_create(&roomy);
    MPI_Info_set(roomy, "port_name_size", "1024");
    int result = argc > 1 && !strcmp(argv[1], "child") ? child()
                                                       : run_states(argc, argv, states, sizeof states / sizeof *states);
    MPI_Finalize();
    return result;
}

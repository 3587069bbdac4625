/* Surface: buffered sends, and the buffers of the process, of communicators and of sessions. See checkpointed.h and
 * test_surface.py. */
#include "../../mpi_states.h"

enum { BYTES = 20000, MESSAGE = 3000 };

static int next, before;
static char big[MESSAGE];

static void receive(MPI_Comm comm, int tag, char value) {
    char got[MESSAGE] = {0};
    MPI_Recv(got, MESSAGE, MPI_CHAR, before, tag, comm, MPI_STATUS_IGNORE);
    CHECK(got[0] == value && got[MESSAGE - 1] == value);
}

static void fill(char value) { memset(big, value, MESSAGE); }

/* ---- the process's buffer: unreceived messages are in progress at the checkpoint, and a flush waits for them ---- */

static char process_buffer[BYTES];
static MPI_Request flush;

static void process_set_up(void) {
    MPI_Request request;
    MPI_Buffer_attach(process_buffer, BYTES);
    CHECK(class_of(MPI_Buffer_attach(process_buffer, BYTES)) == MPI_ERR_OTHER); /* there is one */
    fill('a');
    MPI_Bsend(big, MESSAGE, MPI_CHAR, next, 1, MPI_COMM_WORLD);
    fill('b');
    MPI_Bsend_c(big, MESSAGE, MPI_CHAR, next, 2, MPI_COMM_WORLD);
    fill('c');
    MPI_Ibsend(big, MESSAGE, MPI_CHAR, next, 3, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    fill('d');
    MPI_Ibsend_c(big, MESSAGE, MPI_CHAR, next, 4, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    fill('x');
    MPI_Buffer_iflush(&flush);
}

static void process_check(void) {
    void *address;
    int bytes, rc = MPI_SUCCESS;
    MPI_Count many;
    for (int i = 0; i < 4; i++) receive(MPI_COMM_WORLD, i + 1, (char)('a' + i));
    MPI_Wait(&flush, MPI_STATUS_IGNORE);
    CHECK(flush == MPI_REQUEST_NULL);
    /* too much, together with the overhead */
    CHECK(class_of(MPI_Bsend(process_buffer, BYTES, MPI_CHAR, next, 5, MPI_COMM_WORLD)) == MPI_ERR_BUFFER);
    MPI_Buffer_flush();
    MPI_Buffer_detach(&address, &bytes);
    CHECK(address == process_buffer && bytes == BYTES);
    rc = MPI_Bsend(big, 1, MPI_CHAR, next, 5, MPI_COMM_WORLD);
    CHECK(class_of(rc) == MPI_ERR_BUFFER);
    MPI_Buffer_attach_c(process_buffer, BYTES / 2);
    MPI_Buffer_detach_c(&address, &many);
    CHECK(address == process_buffer && many == BYTES / 2);
    MPI_Buffer_detach(&address, &bytes);
    CHECK(address == NULL && bytes == 0);
    CHECK(class_of(MPI_Buffer_attach(process_buffer, -1)) == MPI_ERR_ARG);
}

/* ---- a communicator's buffer: it is used before the process's, and no other communicator uses it ---- */

static char comm_buffer[BYTES];
static MPI_Comm comm;
static MPI_Request comm_flush;

static void comm_set_up(void) {
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_attach_buffer(comm, comm_buffer, 2 * MESSAGE);
    fill('e');
    MPI_Bsend(big, MESSAGE, MPI_CHAR, next, 1, comm);
    /* the process's buffer has room, but isn't used */
    CHECK(class_of(MPI_Bsend(process_buffer, 2 * MESSAGE, MPI_CHAR, next, 1, comm)) == MPI_ERR_BUFFER);
    MPI_Comm_iflush_buffer(comm, &comm_flush);
}

static void comm_check(void) {
    void *address;
    int bytes;
    MPI_Count many;
    receive(comm, 1, 'e');
    MPI_Wait(&comm_flush, MPI_STATUS_IGNORE);
    fill('f');
    MPI_Bsend(big, MESSAGE, MPI_CHAR, next, 2, comm);
    receive(comm, 2, 'f');
    MPI_Comm_flush_buffer(comm);
    MPI_Comm_detach_buffer(comm, &address, &bytes);
    CHECK(address == comm_buffer && bytes == 2 * MESSAGE);
    MPI_Comm_attach_buffer_c(comm, MPI_BUFFER_AUTOMATIC, 0); /* exactly the necessary size */
    for (int i = 0; i < 10; i++) MPI_Bsend(big, MESSAGE, MPI_CHAR, next, 3, comm);
    for (int i = 0; i < 10; i++) receive(comm, 3, 'f');
    MPI_Comm_detach_buffer_c(comm, &address, &many);
    CHECK(address == MPI_BUFFER_AUTOMATIC);
    CHECK(class_of(MPI_Comm_attach_buffer(MPI_COMM_NULL, comm_buffer, BYTES)) == MPI_ERR_COMM);
    MPI_Comm_free(&comm);
}

/* ---- a session's buffer: for the communicators that come from it, and for those made of them ---- */

static char session_buffer[BYTES];
static MPI_Session session;
static MPI_Comm of_session, copy;
static MPI_Request session_flush;

static void session_set_up(void) {
    MPI_Group group;
    MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_RETURN, &session);
    MPI_Group_from_session_pset(session, "mpi://WORLD", &group);
    MPI_Comm_create_from_group(group, "buffers", MPI_INFO_NULL, MPI_ERRORS_RETURN, &of_session);
    MPI_Group_free(&group);
    MPI_Comm_dup(of_session, &copy);
    MPI_Session_attach_buffer(session, session_buffer, BYTES);
    CHECK(class_of(MPI_Session_attach_buffer(session, session_buffer, BYTES)) == MPI_ERR_OTHER);
    fill('g');
    MPI_Bsend(big, MESSAGE, MPI_CHAR, next, 1, of_session);
    MPI_Session_iflush_buffer(session, &session_flush);
}

static void session_check(void) {
    void *address;
    int bytes;
    MPI_Count many;
    fill('h');
    MPI_Bsend(big, MESSAGE, MPI_CHAR, next, 1, copy);
    receive(of_session, 1, 'g');
    receive(copy, 1, 'h');
    MPI_Wait(&session_flush, MPI_STATUS_IGNORE);
    MPI_Session_flush_buffer(session);
    MPI_Session_detach_buffer(session, &address, &bytes);
    CHECK(address == session_buffer && bytes == BYTES);
    CHECK(class_of(MPI_Bsend(big, MESSAGE, MPI_CHAR, next, 1, copy)) == MPI_ERR_BUFFER);
    MPI_Session_attach_buffer_c(session, session_buffer, BYTES);
    MPI_Session_detach_buffer_c(session, &address, &many);
    CHECK(address == session_buffer && many == BYTES);
    MPI_Comm_free(&copy);
    MPI_Comm_free(&of_session);
    MPI_Session_finalize(&session);
}

static void set_up(void) {
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    next = (rank + 1) % size;
    before = (rank + size - 1) % size;
}

int main(int argc, char **argv) {
    static const state_t states[] = {STATE(process), STATE(comm), STATE(session)};
    return run_mpi_states(argc, argv, set_up, states, sizeof states / sizeof *states);
}

/* failing_windows.c - a window that can't be made, because too few communicators are left for its parts: nothing of the
 * unfinished window remains. (Natively MPICH 5.0 crashes in MPI_Win_allocate if none is left.) Prints "ok". */
#include "../mpi_states.h"

enum { MANY = 1 << 16, SPARE = 8, TIMES = 3 };
static MPI_Comm comms[MANY];
static int n;

static void fill(void) {
    while (n < MANY && MPI_Comm_dup(MPI_COMM_WORLD, &comms[n]) == MPI_SUCCESS) n++;
}

static int make(MPI_Win *win) {
    void *base;
    *win = MPI_WIN_NULL;
    return MPI_Win_allocate(64, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base, win);
}

int main(int argc, char **argv) {
    MPI_Win win;
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    find_rank();
    fill();
    int all = n;
    while (n > all - SPARE) MPI_Comm_free(&comms[--n]);
    while (n < all && make(&win) == MPI_SUCCESS) {
        MPI_Win_free(&win);
        MPI_Comm_dup(MPI_COMM_WORLD, &comms[n++]);
    }
    CHECK(n < all);
    for (int i = 0; i < TIMES; i++) {
        CHECK(make(&win) != MPI_SUCCESS && win == MPI_WIN_NULL);
    }
    while (n < all) {
        MPI_Comm_dup(MPI_COMM_WORLD, &comms[n++]);
        CHECK(make(&win) != MPI_SUCCESS && win == MPI_WIN_NULL);
    }
    fill();
    CHECK(n == all);
    while (n > 0) MPI_Comm_free(&comms[--n]);
    CHECK(make(&win) == MPI_SUCCESS);
    MPI_Win_free(&win);
    MPI_Finalize();
    puts(failures ? "failed" : "ok");
    return failures != 0;
}

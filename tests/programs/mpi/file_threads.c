/* A file that two threads use: one writes with the individual file pointer, the other starts nonblocking collective
 * accesses and tests them. The pointer must stay where the first thread has left it. (ROMIO itself sets it back, so
 * this is checked only under manapy.) Prints "ok".
 *
 *     mpirun -n 2 manapy-launch file_threads FILE
 */
#include "../mpi_states.h"

#include <pthread.h>

enum { WRITES = 20000, FAR = 1 << 20, AT_ONCE = 1 << 12 };
static MPI_File file;
static int written;

static void *write_on(void *unused) {
    (void)unused;
    for (int i = 0; i < WRITES; i++) {
        int value = WRITES * rank + i;
        CHECK(MPI_File_write(file, &value, 1, MPI_INT, MPI_STATUS_IGNORE) == MPI_SUCCESS);
    }
    __atomic_store_n(&written, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void write_far(void) {
    static char data[AT_ONCE];
    MPI_Request request;
    int done = 0;
    MPI_File_iwrite_at_all(file, FAR + rank * AT_ONCE, data, AT_ONCE, MPI_BYTE, &request);
    while (!done) MPI_Test(&request, &done, MPI_STATUS_IGNORE);
}

int main(int argc, char **argv) {
    pthread_t writer;
    MPI_Offset position;
    int provided, all = 0, found, wrong = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    find_rank();
    MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, MPI_INFO_NULL,
                  &file);
    MPI_File_seek(file, rank * WRITES * (MPI_Offset)sizeof(int), MPI_SEEK_SET);
    pthread_create(&writer, NULL, write_on, NULL);
    while (!all) {
        write_far();
        int mine = __atomic_load_n(&written, __ATOMIC_ACQUIRE);
        MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    }
    pthread_join(writer, NULL);
    MPI_File_get_position(file, &position);
    CHECK(position == (rank + 1) * WRITES * (MPI_Offset)sizeof(int));
    for (int i = 0; i < WRITES; i++) {
        MPI_Offset at = (WRITES * rank + i) * (MPI_Offset)sizeof(int);
        MPI_File_read_at(file, at, &found, 1, MPI_INT, MPI_STATUS_IGNORE);
        wrong += found != WRITES * rank + i;
    }
    CHECK(wrong == 0);
    MPI_File_close(&file);
    MPI_Finalize();
    puts(failures ? "failed" : "ok");
    return failures != 0;
}

/* callbacks.c - manapy.h: callbacks around checkpoints, in a program that also runs without manapy.
 *
 *   callbacks FOLDER: runs until FOLDER/end exists; with FOLDER/fail the first callback refuses
 *
 * -DWITHOUT_MPI: only manapy_poll() lets callbacks run.
 */
#include <manapy.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#ifndef WITHOUT_MPI
#include <mpi.h>
#endif

static char folder[512];
static int rank;

static int told(const char *what) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, what);
    return access(path, F_OK) == 0;
}

static void say(const char *text, const void *data) {
    printf("rank %d %s %s\n", rank, text, (const char *)data);
    fflush(stdout);
}

static int after(void *data) {
    say("goes on", data);
    return 0;
}

static int back(void *data) {
    say("comes back", data);
    return 0;
}

static int unused(void *data) {
    say("calls what was removed", data);
    return 0;
}

static int before(void *data) {
    say("leaves", data);
    manapy_forget(unused, "b");
    if (!told("fail")) return 0;
    manapy_refuse("the file is\nlocked");
    return 7;
}

static int plain(void *data) {
    say("leaves plainly", data);
    return told("plain") ? 9 : 0;
}

int main(int argc, char **argv) {
    snprintf(folder, sizeof folder, "%s", argc > 1 ? argv[1] : ".");
#ifndef WITHOUT_MPI
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
#endif
    int there = manapy_before_checkpoint(plain, "a");
    there += manapy_before_checkpoint(before, "b");
    there += manapy_after_checkpoint(after, "a");
    there += manapy_after_checkpoint(after, "b");
    there += manapy_after_restart(back, "a");
    there += manapy_after_checkpoint(unused, "b");
    printf("registered %d\n", there);
    printf("running\n");
    fflush(stdout);
    for (int ends = 0; !ends;) {
        usleep(1000);
        ends = told("end");
#ifdef WITHOUT_MPI
        manapy_poll();
#else
        MPI_Allreduce(MPI_IN_PLACE, &ends, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
#endif
    }
#ifndef WITHOUT_MPI
    MPI_Finalize();
#endif
    printf("ok\n");
    return 0;
}

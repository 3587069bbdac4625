/* spawn.c - MPI_Comm_spawn. See translate.h. */
#include "back_interface.h"

static void forget(void *told, const void *given) {
    if (told != given) MPY_THEIRS(Info_free, &told);
}

/* A code for each process. asked: their number at the root, else 0: only the root gives it. Other ranks know of those
 * that have been started. */
static void codes_out(int *codes, int asked, void *intercomm) {
    int n = asked;
    if (asked == 0) MPY_THEIRS(Comm_remote_size, intercomm, &n);
    for (int i = 0; codes != NULL && i < n; i++) codes[i] = mpy_code_out(codes[i]);
}

static int comm_spawn(const char *command, char *argv[], int maxprocs, MPI_Info info, int root, MPI_Comm comm,
                      MPI_Comm *intercomm, int codes[]) {
    void *theirs = mpy_null[MPY_KIND_COMM];
    void *given = mpy_in(MPY_KIND_INFO, info), *told = mpy_spawn_info(given);
    int rc = MPY_THEIRS(Comm_spawn, command, argv, maxprocs, told, root, mpy_in(MPY_KIND_COMM, comm), &theirs, codes);
    forget(told, given);
    if (rc == 0) *intercomm = mpy_out(MPY_KIND_COMM, theirs);
    if (rc == 0) codes_out(codes, mpy_length_at_root(comm, root) > 0 ? maxprocs : 0, theirs);
    return mpy_code_out(rc);
}

static int comm_spawn_multiple(int count, char *commands[], char **argvs[], const int maxprocs[],
                               const MPI_Info infos[], int root, MPI_Comm comm, MPI_Comm *intercomm, int codes[]) {
    void *theirs = mpy_null[MPY_KIND_COMM];
    int all = 0;
    mpy_arrays_t arrays;
    mpy_arrays_begin(&arrays, false);
    long given = mpy_length_at_root(comm, root) > 0 ? count : 0; /* only the root gives them */
    void **o_infos = mpy_handles_in(&arrays, MPY_KIND_INFO, given ? infos : NULL, given);
    void **told = mpy_handles_in(&arrays, MPY_KIND_INFO, given ? infos : NULL, given);
    for (long i = 0; i < given; i++) told[i] = mpy_spawn_info(o_infos[i]);
    int rc = MPY_THEIRS(Comm_spawn_multiple, count, commands, argvs, maxprocs, told, root, mpy_in(MPY_KIND_COMM, comm),
                        &theirs, codes);
    for (long i = 0; i < given; i++) forget(told[i], o_infos[i]);
    for (long i = 0; i < given; i++) all += maxprocs[i];
    if (rc == 0) *intercomm = mpy_out(MPY_KIND_COMM, theirs);
    if (rc == 0) codes_out(codes, all, theirs);
    mpy_arrays_end(&arrays);
    return mpy_code_out(rc);
}

const mpy_ours_t mpy_ours_spawn[] = {
    OURS(Comm_spawn, Comm_spawn, comm_spawn),
    OURS(Comm_spawn_multiple, Comm_spawn_multiple, comm_spawn_multiple),
};
const size_t mpy_ours_spawn_count = sizeof mpy_ours_spawn / sizeof *mpy_ours_spawn;

/* foreign.c - refuses MPI libraries other than manapy's.
 *
 * Half: lower, in the SIGSYS handler on the upper TLS: no libc. Called for every mapping of the upper half that may
 * contain code; the program's loader makes these for libraries, at its start and in dlopen.
 *
 * manapy's own libraries replace libmpi.so.12, libmpi.so.40, libmpi_mpifh.so.40 and libmpi_abi.so.1 (lib/manapy/upper).
 * With any other library the program would run without manapy: Open MPI's ranks under another launcher are all rank 0,
 * and a checkpoint sees nothing of the library.
 */
#include "foreign.h"
#include "base/sys.h"

#include <manapy/boundary.h>
#include <sys/mman.h>

static const char *after(const char *text, const char *prefix) { /* NULL if the text doesn't begin with the prefix */
    while (*prefix != 0)
        if (*text++ != *prefix++) return NULL;
    return text;
}

static int contains(const char *text, const char *part) {
    for (; *text != 0; text++)
        if (after(text, part) != NULL) return 1;
    return 0;
}

static const char *base_name(const char *path) {
    const char *name = path;
    for (; *path != 0; path++)
        if (*path == '/') name = path + 1;
    return name;
}

/* Advice for the user, or NULL if it is not such a library. */
static const char *advice(const char *path) {
    const char *name = base_name(path), *number;
    if (contains(path, "/manapy/upper/")) return NULL;
    if ((number = after(name, "libmpi_abi.so")) != NULL && after(number, ".0") == NULL)
        return " by its path or a DT_RPATH; manapy's own library takes the place of the one of the MPI-5 standard ABI, "
               "and is found as libmpi_abi.so.1 without a path (`manapy doctor PROGRAM`)";
    if (number != NULL)
        return ": a draft of the standard ABI, which this version of manapy does not support; build the program with "
               "MPICH 5 (mpicc_abi)";
    if (after(name, "libmpifort_abi.so") != NULL)
        return ": Intel MPI's Fortran for the standard ABI, which this version of manapy does not support; build the "
               "program without -mpi-abi";
    number = after(name, "libmpi.so.");
    if ((number != NULL && after(number, "40") != NULL) || after(name, "libmpi_mpifh") != NULL)
        return " by its path or a DT_RPATH; manapy's own library takes the place of Open MPI's, and is found by "
               "its name without a path (`manapy doctor PROGRAM`)";
    if (number != NULL && after(number, "12") == NULL)
        return ": an MPI whose ABI this version of manapy does not support; build the program with MPICH, Intel MPI, "
               "or Open MPI 4 or 5";
    if (number != NULL || after(name, "libmpich.so.") != NULL)
        return " by its path or a DT_RPATH; manapy's own library takes its place, and is found as libmpi.so.12 without "
               "a path (`manapy doctor PROGRAM`)";
    return NULL;
}

static char *put(char *at, const char *end, const char *text) {
    while (*text != 0 && at < end) *at++ = *text++;
    return at;
}

void mpy_foreign_check(int fd) {
    char link[32] = "/proc/self/fd/", digits[12], path[512], line[900];
    int n = 0;
    char *at = link + 14;
    for (unsigned rest = (unsigned)fd; n == 0 || rest != 0; rest /= 10) digits[n++] = (char)('0' + rest % 10);
    while (n > 0) *at++ = digits[--n];
    *at = 0;
    long got = mpy_sys(SYS_readlink, link, path, sizeof path - 1);
    if (got <= 0) return;
    path[got] = 0;
    const char *why = advice(path), *end = line + sizeof line - 1;
    if (why == NULL) return;
    at = put(put(put(line, end, "the program loads the MPI library "), end, path), end, why);
    *at = 0;
    MPY_LOWER->svc->die(line, 1);
}

/* program.c - finds the ELF file to load for the user's command, and makes its environment.
 *
 * Half: lower, before the program starts; libc may be called.
 *
 * Invariants
 *  1. Follows execvp(3): PATH, #! lines (execve(2): one optional argument, then the script's path), and /bin/sh for
 *     text without a #! line.
 *  2. The program's environment differs from ours only in LD_LIBRARY_PATH, MPI4PY_LIBMPI and MPI4PY_MPIABI, and in
 *     LD_PRELOAD. LD_PRELOAD is for the dynamic linker; wrappers/dmtcp.c removes our entry. (preload.c may have kept
 *     the list in another variable.)
 */
#include "program.h"
#include "base/reason.h"
#include "preload.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *join(const char *a, const char *sep, const char *b) {
    char *s = malloc(strlen(a) + strlen(sep) + strlen(b) + 1);
    if (!s) { perror("manapy-launch"); exit(1); }
    return strcat(strcat(strcpy(s, a), sep), b);
}

static int runnable(const char *path) {
    struct stat st;
    if (stat(path, &st)) return errno == EACCES ? 126 : 127;
    /* execve checks the effective user, too */
    return S_ISREG(st.st_mode) && !faccessat(AT_FDCWD, path, X_OK, AT_EACCESS) ? 0 : 126;
}

static int search(const char *name, char **found, char *error, size_t n) {
    int code = 127;
    if (strchr(name, '/')) {
        code = runnable(name);
        *found = strdup(name);
    } else {
        const char *path = getenv("PATH");
        char *copy = strdup(path ? path : "/usr/local/bin:/usr/bin:/bin"), *rest = copy, *dir;
        while (code != 0 && (dir = strsep(&rest, ":"))) {
            char *try = join(*dir ? dir : ".", "/", name);
            int c = runnable(try);
            if (c == 0) *found = try; else free(try);
            if (c != 127) code = c;
        }
        free(copy);
    }
    if (code == 127) mpy_reason(error, n, "cannot run '%s': no such program (give its path, or check PATH)", name);
    if (code == 126) mpy_reason(error, n, "cannot run '%s': not an executable file (check its permissions)", name);
    return code;
}

static char **prepend(char **argv, size_t skip, size_t n, char *const *head) {
    size_t argc = 0;
    while (argv[argc]) argc++;
    char **out = calloc(argc - skip + n + 1, sizeof *out);
    memcpy(out, head, n * sizeof *out);
    memcpy(out + n, argv + skip, (argc - skip) * sizeof *out);
    return out;
}

int mpy_program_find(const char *path, char **argv, mpy_program_t *out, char *error, size_t n) {
    out->argv = argv;
    int code = 0;
    if (path) out->path = strdup(path);
    else code = search(argv[0], &out->path, error, n);
    for (int depth = 0; code == 0; depth++) {
        char head[256] = "";
        int fd = open(out->path, O_RDONLY | O_CLOEXEC);
        ssize_t got = fd < 0 ? -1 : read(fd, head, sizeof head - 1);
        if (fd >= 0) close(fd);
        if (got < 0) { mpy_reason(error, n, "cannot read '%s': %s", out->path, strerror(errno)); return 126; }
        if (got >= 4 && !memcmp(head, "\177ELF", 4)) return 0;
        if (depth == 4) {
            mpy_reason(error, n, "cannot run '%s': its interpreters are nested too deeply", out->path);
            return 126;
        }
        if (head[0] != '#' || head[1] != '!') { /* execvp's fallback: run /bin/sh */
            out->argv = prepend(out->argv, 1, 2, (char *[]){"/bin/sh", out->path});
            out->path = strdup("/bin/sh");
            continue;
        }
        head[strcspn(head, "\n")] = 0;
        char *interp = head + 2 + strspn(head + 2, " \t"), *end = interp + strcspn(interp, " \t"),
             *arg = end + strspn(end, " \t");
        *end = 0;
        for (char *tail = arg + strlen(arg); tail > arg && (tail[-1] == ' ' || tail[-1] == '\t' || tail[-1] == '\r');)
            *--tail = 0;
        char *parts[3] = {strdup(interp), *arg ? strdup(arg) : out->path, out->path};
        out->argv = prepend(out->argv, 1, *arg ? 3 : 2, parts);
        out->path = parts[0];
        code = runnable(out->path);
        if (code)
            mpy_reason(error, n, "cannot run '%s': its interpreter '%s' is missing or not executable",
                       out->argv[*arg ? 2 : 1], out->path);
    }
    return code;
}

/* Returns NAME=OWN or NAME=OWN:OLD; NAME=OLD if OLD begins with OWN already, as in a rank that called exec. */
static char *put_first(const char *name, const char *own, const char *old) {
    size_t n = strlen(own);
    if (old && !strncmp(old, own, n) && (old[n] == 0 || old[n] == ':')) return join(name, "=", old);
    return old && *old ? join(join(name, "=", own), ":", old) : join(name, "=", own);
}

/* Does the user ask mpi4py for its module of the standard ABI? mpi4py ignores case, blanks and hyphens. */
static int is_standard_abi(const char *name) {
    const char *want = "mpiabi";
    for (; *name != 0; name++) {
        if (strchr(" -_", *name) != NULL) continue;
        if (tolower((unsigned char)*name) != *want) return 0;
        want++;
    }
    return *want == 0;
}

char **mpy_program_environ(char **env, const char *upper_dir, int preload) {
    size_t count = 0, n = 0;
    while (env[count]) count++;
    char **out = calloc(count + 5, sizeof *out);
    const char *path = NULL, *preloaded = NULL;
    int standard = 0;
    for (size_t i = 0; i < count; i++) {
        const char *list = mpy_preload_of_program(env[i]);
        if (list) preloaded = list;
        else if (!strncmp(env[i], "LD_LIBRARY_PATH=", 16)) path = env[i] + 16;
        else if (!strncmp(env[i], "MPI4PY_MPIABI=", 14)) standard = is_standard_abi(env[i] + 14);
        else if (strncmp(env[i], "MPI4PY_LIBMPI=", 14)) out[n++] = env[i];
    }
    out[n++] = put_first("LD_LIBRARY_PATH", upper_dir, path);
    /* The list in LD_PRELOAD can't contain blanks. Without a directory, the library is found in LD_LIBRARY_PATH. */
    if (preload)
        out[n++] = put_first("LD_PRELOAD",
                             strpbrk(upper_dir, " :") ? "libdmtcp.so" : join(upper_dir, "/", "libdmtcp.so"), preloaded);
    else if (preloaded) out[n++] = join("LD_PRELOAD", "=", preloaded);
    out[n++] = join("MPI4PY_LIBMPI=", upper_dir, standard ? "/libmpi_abi.so.1" : "/libmpi.so.12");
    out[n++] = standard ? "MPI4PY_MPIABI=mpiabi" : "MPI4PY_MPIABI=mpich";
    return out;
}

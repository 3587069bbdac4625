/* trap_exec.c - exec and the name of the executable.
 *
 * Half: lower, in the SIGSYS handler on the upper TLS: no libc.
 *
 * If a rank's process calls exec (a shell script that ends in `exec python app.py`, a pyenv shim), the lower half would
 * be lost. So this exec becomes an exec of manapy-launch with the new program. An exec in a child is not changed.
 *
 * Invariants
 *  1. The handler runs with every signal blocked. The program's mask is restored before an exec, which would otherwise
 *     inherit ours.
 */
#include "base/sys.h"
#include "trap.h"
#include <sys/mman.h>

static const char *launcher, *rejoin;
static const mpy_options_t *options;
static int kept_fd = -1;

void mpy_exec_note(const char *launcher_path, const char *rejoin_text, const mpy_options_t *given, int pmi_fd) {
    launcher = launcher_path;
    rejoin = rejoin_text;
    options = given;
    kept_fd = pmi_fd;
}

static int is_self_exe(const char *p) {
    static const char self[] = "/proc/self/exe";
    int i = 0;
    while (self[i] && p[i] == self[i]) i++;
    if (self[i] == 0 && p[i] == 0) return 1;
    if (i < 6) return 0; /* the path doesn't even begin with "/proc/" */
    long pid = 0;
    const char *q = p + 6;
    while (*q >= '0' && *q <= '9') pid = pid * 10 + (*q++ - '0');
    return q > p + 6 && pid == MPY_TRAP->pid && q[0] == '/' && q[1] == 'e' && q[2] == 'x' && q[3] == 'e' && q[4] == 0;
}

long mpy_trap_readlink(mpy_trap_t *t) {
    int at = t->nr == SYS_readlinkat;
    const char *path = (const char *)t->a[at];
    char *out = (char *)t->a[at + 1];
    long room = t->a[at + 2], n = 0;
    if (!path || !is_self_exe(path)) return mpy_sys6(t->nr, t->a[0], t->a[1], t->a[2], t->a[3], 0, 0);
    while (n < room && MPY_TRAP->exe[n]) { out[n] = MPY_TRAP->exe[n]; n++; }
    return n;
}

static long exec_program(const char *path, char *const *argv, char *const *envp, uint64_t mask) {
    uint64_t full = ~0ul;
    mpy_sys(SYS_rt_sigprocmask, SIG_SETMASK, &mask, 0, 8);
    long r = mpy_sys(SYS_execve, path, argv, envp);
    mpy_sys(SYS_rt_sigprocmask, SIG_SETMASK, &full, 0, 8);
    return r;
}

long mpy_trap_execve(mpy_trap_t *t) {
    const char *path = (const char *)t->a[0];
    char *const *argv = (char *const *)t->a[1];
    char *const *envp = (char *const *)t->a[2];
    uint64_t mask = *(uint64_t *)&t->uc->uc_sigmask;
    if (mpy_sys(SYS_getpid) != mpy_id_real(MPY_TRAP->pid) || MPY_UPPER->mpi_initialized || !launcher)
        return exec_program(path, argv, envp, mask);

    long r = mpy_sys(SYS_access, path, 1 /* X_OK */); /* errors as natively, while there is someone to tell */
    if (r) return r;
    long argc = 0;
    while (argv && argv[argc]) argc++;
    uint64_t bytes = (uint64_t)(argc + 15) * sizeof(char *); /* may be more than fits on an alternate stack */
    long map = mpy_sys6(SYS_mmap, 0, (long)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mpy_sys_failed(map)) return map;
    char **next = (char **)map;
    long n = 0;
    next[n++] = (char *)launcher;
    next[n++] = (char *)"--exec";
    next[n++] = (char *)path;
    next[n++] = (char *)"--rejoin";
    next[n++] = (char *)rejoin;
    next[n++] = (char *)"--shift";
    next[n++] = (char *)options->shift;
    next[n++] = (char *)"--on-failover";
    next[n++] = (char *)options->on_failover;
    next[n++] = (char *)"--compress";
    next[n++] = (char *)options->compress;
    if (!options->trace) next[n++] = (char *)"--no-trace";
    next[n++] = (char *)"--";
    for (long i = 0; i < argc; i++) next[n++] = argv[i];
    next[n] = 0;
    if (kept_fd >= 0) mpy_sys(SYS_fcntl, kept_fd, 2 /* F_SETFD */, 0);
    r = exec_program(launcher, next, envp, mask);
    if (kept_fd >= 0) mpy_sys(SYS_fcntl, kept_fd, 2, 1 /* FD_CLOEXEC */);
    mpy_sys(SYS_munmap, map, bytes);
    return r;
}

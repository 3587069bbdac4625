/* trap_exec.c - exec and the name of the executable.
 *
 * Half: lower, in the SIGSYS handler on the upper TLS: no libc.
 *
 * If a rank's process calls exec (a shell script that ends in `exec python app.py`, a pyenv shim), the lower half would
 * be lost. So this exec becomes an exec of manapy-launch with the new program. So does an exec in a child, which then
 * is a member of the rank's tree (lowerhalf/tree).
 *
 * Invariants
 *  1. The handler runs with every signal blocked. The program's mask is restored before an exec, which would otherwise
 *     inherit ours.
 *  2. The child may share our memory (vfork). So nothing is left behind there, except a page for a very long list of
 *     arguments, which no code can unmap.
 *  3. An exec of the MPI process itself is not changed once MPI is initialized: it ends the rank. Nor is a child's exec
 *     of a program that cannot call MPI through our libraries, that starts a job of its own, or that is to be ignored
 *     (--ignore-child).
 *  4. An invitation to the tree (lowerhalf/tree/hub.c) that arrives during an exec does not end the new program: the
 *     signal is ignored there.
 */
#include "base/match.h"
#include "base/page.h"
#include "base/sys.h"
#include "trap.h"
#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { OPTIONS = 30, ON_STACK = 128 };

static mpy_exec_t how = {.kept = {-1, -1, -1}};
static const mpy_options_t *options;

void mpy_exec_note(const mpy_exec_t *given, const mpy_options_t *options_given) {
    how = *given;
    options = options_given;
}

void mpy_exec_is_member(void) { how.is_member = true; }

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
    if (!path || !is_self_exe(path)) {
        char real[256];
        t->a[at] = (long)mpy_path_real(path, real, sizeof real);
        return mpy_path_shown(out, mpy_sys6(t->nr, t->a[0], t->a[1], t->a[2], t->a[3], 0, 0), room);
    }
    while (n < room && MPY_TRAP->exe[n]) { out[n] = MPY_TRAP->exe[n]; n++; }
    return n;
}

/* Invariant 4 */
static long exec_program(const char *path, char *const *argv, char *const *envp, uint64_t mask) {
    const mpy_ksigaction_t ignore = {.handler = (uint64_t)SIG_IGN};
    mpy_ksigaction_t before;
    uint64_t full = ~0ul;
    mpy_sys(SYS_rt_sigaction, MPY_SIGNAL_RESERVED, &ignore, &before, 8);
    mpy_sys(SYS_rt_sigprocmask, SIG_SETMASK, &mask, 0, 8);
    long r = mpy_sys(SYS_execve, path, argv, envp);
    mpy_sys(SYS_rt_sigprocmask, SIG_SETMASK, &full, 0, 8);
    mpy_sys(SYS_rt_sigaction, MPY_SIGNAL_RESERVED, &before, 0, 8);
    return r;
}

static int ends_with(const char *path, const char *name) {
    const char *at = path;
    for (const char *p = path; *p; p++)
        if (*p == '/') at = p + 1;
    while (*at && *at == *name) at++, name++;
    return *at == *name;
}

static int is_interpreted(long fd, const Elf64_Ehdr *e) {
    Elf64_Phdr p;
    for (int i = 0; i < e->e_phnum; i++)
        if (mpy_sys(SYS_pread64, fd, &p, sizeof p, e->e_phoff + (uint64_t)i * sizeof p) == sizeof p &&
            p.p_type == PT_INTERP)
            return 1;
    return 0;
}

/* Invariant 3: a dynamically linked program for this machine, or a script. */
static int can_be_member(const char *path) {
    Elf64_Ehdr e = {0};
    struct stat st;
    long fd = mpy_sys(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) return 0;
    long got = mpy_sys(SYS_fstat, fd, &st) ? 0 : mpy_sys(SYS_pread64, fd, &e, sizeof e, 0);
    int script = got > 2 && e.e_ident[0] == '#' && e.e_ident[1] == '!';
    int ours = got == sizeof e && e.e_ident[0] == 0x7f && e.e_ident[1] == 'E' && e.e_ident[2] == 'L' &&
               e.e_ident[3] == 'F' && e.e_ident[EI_CLASS] == ELFCLASS64 && e.e_machine == EM_X86_64 &&
               e.e_phentsize == sizeof(Elf64_Phdr) && is_interpreted(fd, &e);
    mpy_sys(SYS_close, fd);
    return (script || ours) && !(st.st_mode & (S_ISUID | S_ISGID)) && !ends_with(path, "manapy-launch") &&
           !ends_with(path, "manapy-restart");
}

static long give_options(const char **next, const char *path, int to_tree) {
    long n = 0;
    next[n++] = how.launcher;
    next[n++] = "--exec", next[n++] = path;
    next[n++] = "--rejoin", next[n++] = how.rejoin;
    next[n++] = to_tree ? "--tree" : "--door", next[n++] = to_tree ? how.tree : how.door;
    if (MPY_UPPER->mpi_initialized || MPY_TRAP->below_mpi) next[n++] = "--below-mpi";
    if (how.mpi) next[n++] = "--mpi", next[n++] = how.mpi;
    next[n++] = "--shift", next[n++] = options->shift;
    next[n++] = "--on-failover", next[n++] = options->on_failover;
    next[n++] = "--compress", next[n++] = options->compress;
    next[n++] = "--callback-timeout", next[n++] = options->callback_timeout;
    if (options->ignore_child) next[n++] = "--ignore-child", next[n++] = options->ignore_child;
    if (options->drop_sockets) next[n++] = "--drop-sockets";
    if (options->checkpoints.local) next[n++] = "--local", next[n++] = options->checkpoints.local;
    if (!options->trace) next[n++] = "--no-trace";
    next[n++] = "--";
    return n;
}

static void keep(int close_on_exec, int to_tree) {
    for (int i = 0; i < 3 - to_tree; i++)
        if (how.kept[i] >= 0) mpy_sys(SYS_fcntl, how.kept[i], F_SETFD, close_on_exec);
}

long mpy_trap_execve(mpy_trap_t *t) {
    const char *path = (const char *)t->a[0];
    char *const *argv = (char *const *)t->a[1];
    char *const *envp = (char *const *)t->a[2];
    uint64_t mask = *(uint64_t *)&t->uc->uc_sigmask;
    int own = mpy_sys(SYS_getpid) == mpy_id_real(MPY_TRAP->pid);
    /* for the kernel, this name is manapy-launch's; an address that is none is for the kernel to find */
    if (mpy_sys(SYS_access, path, 0) == 0 && is_self_exe(path)) path = MPY_TRAP->exe;
    if (!how.launcher || (own && MPY_UPPER->mpi_initialized)) return exec_program(path, argv, envp, mask);

    long r = mpy_sys(SYS_access, path, 1 /* X_OK */); /* errors as natively, while there is someone to tell */
    if (r) return r;
    const int to_tree = !own || how.is_member; /* the first process remains the first one */
    if (to_tree && (mpy_matches_any(options->ignore_child, path) || !can_be_member(path)))
        return exec_program(path, argv, envp, mask);
    const char *few[ON_STACK], **next = few;
    long argc = 0, map = 0;
    while (argv && argv[argc]) argc++;
    uint64_t bytes = (uint64_t)(argc + OPTIONS) * sizeof(char *);
    if (argc + OPTIONS > ON_STACK) { /* may be more than fits on an alternate stack */
        map = mpy_sys6(SYS_mmap, 0, (long)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mpy_sys_failed(map)) return map;
        next = (const char **)map;
    }
    long n = give_options(next, path, to_tree);
    for (long i = 0; i < argc; i++) next[n++] = argv[i];
    next[n] = 0;
    keep(0, to_tree);
    r = exec_program(how.launcher, (char *const *)next, envp, mask);
    keep(FD_CLOEXEC, to_tree);
    /* The child may have another root directory or user, or its arguments fill the room that there is. */
    if (to_tree) r = exec_program(path, argv, envp, mask);
    if (map) mpy_sys(SYS_munmap, map, bytes);
    return r;
}

/* ---- execveat(2), fexecve(3) ---- */

/* "/proc/self/fd/N", and "/NAME" if there is a name. */
static void path_below(char *to, const char *end, long fd, const char *name) {
    char digits[12];
    int n = 0;
    for (const char *p = "/proc/self/fd/"; *p;) *to++ = *p++;
    do digits[n++] = (char)('0' + fd % 10); while ((fd /= 10) > 0);
    while (n > 0) *to++ = digits[--n];
    if (*name) *to++ = '/';
    while (*name && to < end) *to++ = *name++;
    *to = 0;
}

static int is_same_file(const char *a, const char *b) {
    struct stat x, y;
    return mpy_sys(SYS_stat, a, &x) == 0 && mpy_sys(SYS_stat, b, &y) == 0 && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

/* The new program may be started by manapy-launch, where a descriptor that closes on exec is closed. So it needs a
 * name. What has none (a memfd) becomes a program without manapy. `room`: two pages. */
static long exec_open(const mpy_trap_t *t, char *room) {
    const char *name = (const char *)t->a[1];
    char *const path = room, *const real = room + MPY_PAGE;
    path_below(path, path + MPY_PAGE - 1, t->a[0], name);
    long got = mpy_sys(SYS_readlink, path, real, MPY_PAGE - 1);
    if (*name && got >= 0 && t->a[4] & AT_SYMLINK_NOFOLLOW) return -40; /* ELOOP */
    if (*name) { /* the link is of the folder */
        path_below(path, path + MPY_PAGE - 1, t->a[0], "");
        got = mpy_sys(SYS_readlink, path, real, MPY_PAGE - 1);
        path_below(path, path + MPY_PAGE - 1, t->a[0], name);
        if (got > 0 && got < (long)MPY_PAGE - 1) real[got++] = '/';
        while (*name && got > 0 && got < (long)MPY_PAGE - 1) real[got++] = *name++;
    }
    real[got > 0 ? got : 0] = 0;
    if (!is_same_file(path, real))
        return exec_program(path, (char *const *)t->a[2], (char *const *)t->a[3], *(uint64_t *)&t->uc->uc_sigmask);
    mpy_trap_t named = {SYS_execve, {(long)real, t->a[2], t->a[3]}, t->uc};
    return mpy_trap_execve(&named);
}

long mpy_trap_execveat(mpy_trap_t *t) {
    const char *name = (const char *)t->a[1];
    char first;
    if (mpy_sys(SYS_faccessat, AT_FDCWD, name, 0) == -14) return -14; /* EFAULT: for the kernel to find */
    first = *name;
    if (!first && !(t->a[4] & AT_EMPTY_PATH)) return -2; /* ENOENT */
    if (first && (first == '/' || (int)t->a[0] == AT_FDCWD)) {
        mpy_trap_t same = {SYS_execve, {t->a[1], t->a[2], t->a[3]}, t->uc};
        return mpy_trap_execve(&same);
    }
    if ((int)t->a[0] < 0) return -9; /* EBADF */
    long room = mpy_sys6(SYS_mmap, 0, 2 * MPY_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mpy_sys_failed(room)) return room;
    long r = exec_open(t, (char *)room);
    mpy_sys(SYS_munmap, room, 2 * MPY_PAGE);
    return r;
}

/* stack.c - the program's initial stack: strings, argv, environment and auxiliary vector, as exec would leave them.
 *
 * Half: lower, before the program starts.
 *
 * Invariants
 *  1. Everything that the auxiliary vector points to lies in the arena (AT_RANDOM, AT_EXECFN, AT_PLATFORM, the vDSO).
 *  2. The stack doesn't grow on page faults like the kernel's. It has its full size (RLIMIT_STACK, 8 MiB to 16 GiB)
 *     from the start, with a guard page below. Untouched pages use no memory. A limit that is raised later changes
 *     nothing.
 */
#include "stack.h"
#include "base/reason.h"
#include "isolate/arena.h"
#include <elf.h>
#include <linux/prctl.h>
#include <manapy/proc_stat.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

char **mpy_initial_environ;

typedef struct { char *low; } strings_t; /* grows downwards */
static char *push_bytes(strings_t *s, const void *bytes, size_t n) {
    s->low -= n;
    memcpy(s->low, bytes, n);
    return s->low;
}
static char *push(strings_t *s, const char *text) { return push_bytes(s, text, strlen(text) + 1); }

enum { STACK_LEAST = 8 << 20 };
static const uint64_t stack_most = 16ul << 30;

static uint64_t stack_bytes(void) {
    struct rlimit r;
    if (getrlimit(RLIMIT_STACK, &r) || r.rlim_cur < STACK_LEAST) return STACK_LEAST;
    return r.rlim_cur < stack_most ? (r.rlim_cur + 4095) & ~4095ul : stack_most;
}

/* A limit on address space, or a kernel that commits no more memory than there is, may allow only a part. */
static uint64_t map_stack(uint64_t *bytes, int prot) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE | MAP_STACK;
    for (*bytes = stack_bytes();; *bytes = *bytes / 2 & ~4095ul) {
        uint64_t lo = mpy_arena_take(*bytes + 4096);
        if (lo && mmap((void *)lo, *bytes + 4096, prot, flags, -1, 0) != MAP_FAILED) return lo;
        if (lo) mpy_arena_give(lo, *bytes + 4096);
        if (*bytes / 2 < STACK_LEAST) return 0;
    }
}

static const Elf64_auxv_t *kernel_auxv(void) {
    /* the vector lies behind the environment; setenv may have moved `environ` itself */
    char **e = mpy_initial_environ;
    while (*e) e++;
    return (const Elf64_auxv_t *)(e + 1);
}

uint64_t mpy_stack_build(char *const *argv, char *const *envp, const mpy_elf_t *program, const mpy_elf_t *linker,
                         const char *exec_name, uint64_t vdso, char *error, size_t n) {
    const int prot = PROT_READ | PROT_WRITE | (program->exec_stack ? PROT_EXEC : 0);
    uint64_t bytes, lo = map_stack(&bytes, prot);
    if (!lo) {
        mpy_reason(error, n, "no memory for a stack of %lu bytes", (unsigned long)bytes);
        return 0;
    }
    mprotect((void *)lo, 4096, PROT_NONE);
    MPY_TRAP->stack_lo = lo;
    MPY_TRAP->stack_hi = lo + 4096 + bytes;

    size_t argc = 0, envc = 0;
    while (argv[argc]) argc++;
    while (envp[envc]) envc++;
    strings_t s = {(char *)MPY_TRAP->stack_hi - 16};
    char *exec_fn = push(&s, exec_name);
    char *platform = push(&s, "x86_64");
    char *random = push_bytes(&s, (void *)getauxval(AT_RANDOM), 16);
    char *arg_at[argc + 1], *env_at[envc + 1];
    for (size_t i = envc; i-- > 0;) env_at[i] = push(&s, envp[i]);
    for (size_t i = argc; i-- > 0;) arg_at[i] = push(&s, argv[i]);

    MPY_TRAP->arg_lo = (uint64_t)s.low;
    MPY_TRAP->arg_hi = envc ? (uint64_t)env_at[0] : (uint64_t)random;
    MPY_TRAP->env_hi = (uint64_t)random;

    Elf64_auxv_t aux[64];
    size_t na = 0;
    for (const Elf64_auxv_t *a = kernel_auxv(); a->a_type != AT_NULL && na < 60; a++) {
        Elf64_auxv_t v = *a;
        switch (v.a_type) {
        case AT_PHDR: v.a_un.a_val = program->phdr; break;
        case AT_PHNUM: v.a_un.a_val = program->phnum; break;
        case AT_BASE: v.a_un.a_val = linker ? linker->base : 0; break;
        case AT_ENTRY: v.a_un.a_val = program->entry; break;
        case AT_EXECFN: v.a_un.a_val = (uint64_t)exec_fn; break;
        case AT_PLATFORM: v.a_un.a_val = (uint64_t)platform; break;
        case AT_RANDOM: v.a_un.a_val = (uint64_t)random; break;
        case AT_SYSINFO_EHDR: if (!vdso) continue; v.a_un.a_val = vdso; break;
        case 27: case 28: continue; /* AT_RSEQ_*: manapy refuses the registration */
        default: break;
        }
        aux[na++] = v;
    }
    aux[na++] = (Elf64_auxv_t){MPY_AT_BOUNDARY, {MPY_LOWER_ADDR}};
    aux[na++] = (Elf64_auxv_t){AT_NULL, {0}};

    uint64_t words = 1 + argc + 1 + envc + 1 + 2 * na;
    uint64_t sp = ((uint64_t)s.low & ~15ul) - ((words * 8 + 15) & ~15ul);
    uint64_t *w = (uint64_t *)sp;
    *w++ = argc;
    for (size_t i = 0; i < argc; i++) *w++ = (uint64_t)arg_at[i];
    *w++ = 0;
    for (size_t i = 0; i < envc; i++) *w++ = (uint64_t)env_at[i];
    *w++ = 0;
    memcpy(w, aux, na * sizeof aux[0]);
    return sp;
}

/* Make `ps` and /proc/PID/cmdline show the program, not manapy-launch. Best effort: needs CONFIG_CHECKPOINT_RESTORE. */
void mpy_stack_show_arguments(void) {
    char stat[1024], *fields = mpy_proc_stat_fields(getpid(), stat);
    unsigned long v[60] = {0};
    int k = 2; /* proc(5) counts from 1 */
    for (char *word = fields ? strtok(fields, " ") : NULL; word && k < 59; word = strtok(NULL, " "))
        v[++k] = strtoul(word, NULL, 10);
    if (k < 51) return;
    struct prctl_mm_map map = {.start_code = v[26],
                               .end_code = v[27],
                               .start_stack = v[28],
                               .start_data = v[45],
                               .end_data = v[46],
                               .start_brk = v[47],
                               .brk = (uint64_t)sbrk(0),
                               .arg_start = MPY_TRAP->arg_lo,
                               .arg_end = MPY_TRAP->arg_hi,
                               .env_start = MPY_TRAP->arg_hi,
                               .env_end = MPY_TRAP->env_hi,
                               .exe_fd = (unsigned)-1};
    prctl(PR_SET_MM, PR_SET_MM_MAP, &map, sizeof map, 0);
}

/* launch.c - manapy-launch: becomes the lower half of one rank and starts the program above it.
 *
 * Half: lower; runs once, on the process's own stack, until it jumps into the program and never returns.
 *
 * Invariants
 *  1. Nothing that the program could notice is changed before the jump: descriptors 0-2, working directory, signal mask
 *     and actions.
 *  2. The order matters: blocks, arena, program, stack; then traps; the filter last, right before the jump.
 */
#include "elfmap.h"
#include "image/maps.h"
#include "isolate/arena.h"
#include "isolate/jump.h"
#include "isolate/trap/trap.h"
#include "isolate/trap/vdso.h"
#include "join/chain.h"
#include "lower.h"
#include "options/options.h"
#include "preload.h"
#include "process/fds/fds.h"
#include "program.h"
#include "stack.h"
#include "tree/tree.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static void load(const mpy_program_t *program, char **env, uint64_t *entry, uint64_t *sp) {
    char error[1024];
    mpy_elf_t exe, linker;
    if (mpy_elf_map(program->path, &exe, error, sizeof error)) mpy_fail(126, "%s", error);
    if (exe.interp[0] && mpy_elf_map(exe.interp, &linker, error, sizeof error)) mpy_fail(126, "%s", error);
    MPY_TRAP->low_exec = exe.low;
    if (!realpath(program->path, MPY_TRAP->exe)) snprintf(MPY_TRAP->exe, sizeof MPY_TRAP->exe, "%s", program->path);
    uint64_t heap = 64ul << 30;
    MPY_TRAP->brk_lo = MPY_TRAP->brk_now = mpy_arena_take(heap);
    MPY_TRAP->brk_max = MPY_TRAP->brk_lo + heap;
    /* The runtime of AddressSanitizer ends a program in which another library was loaded before it. */
    int preload = exe.interp[0] && !mpy_elf_needs(&exe, "libasan.so") && !mpy_elf_needs(&exe, "libclang_rt.asan");
    *sp = mpy_stack_build(program->argv, mpy_program_environ(env, mpy_upper_dir(), preload), &exe,
                          exe.interp[0] ? &linker : NULL, program->path, mpy_vdso_install(), error, sizeof error);
    if (!*sp) mpy_fail(1, "%s", error);
    *entry = exe.interp[0] ? linker.entry : exe.entry;
}

/* A copy of the environment as it was given: our own setenv calls replace entries in the array that main gets. */
static char **copy_environment(char **env) {
    size_t n = 0;
    while (env[n]) n++;
    char **copy = malloc((n + 1) * sizeof *copy);
    if (!copy) mpy_fail(1, "out of memory");
    return memcpy(copy, env, (n + 1) * sizeof *copy);
}

/* A child of a rank that has no way to the job (another user, another root directory) is an ordinary process. A
 * checkpoint names it. */
static _Noreturn void leave_the_rank(const mpy_options_t *options, char **argv, char **env) {
    execve(options->exec_path, argv, env);
    mpy_fail(126, "%s: %s", options->exec_path, strerror(errno));
}

int main(int argc, char **argv, char **envp) {
    mpy_preload_leave(argv);
    char error[1024], **program_env = copy_environment(envp);
    mpy_initial_environ = envp;
    mpy_options_t options;
    int first = mpy_options_parse(argc, argv, &options);
    mpy_program_t program;
    int code = mpy_program_find(options.exec_path, argv + first, &program, error, sizeof error);
    if (code) mpy_fail(code, "%s", error);

    if (options.door && !mpy_tree_found_again(options.door, error, sizeof error)) mpy_fail(2, "%s", error);
    mpy_fds_note_inherited();
    if (options.tree && !mpy_tree_adopt(options.tree, error, sizeof error)) mpy_fail(2, "%s", error);
    if (options.rejoin && !mpy_lower_rejoin(error, sizeof error)) {
        if (options.tree) leave_the_rank(&options, argv + first, program_env);
        mpy_fail(1, "%s", error);
    }
    mpy_blocks_map();
    const char *checkpoint = mpy_lower_join(argv + first, NULL, false, 0, 0);
    if (checkpoint) mpy_continue(checkpoint);
    mpy_blocks_map_saved();
    if (mpy_arena_init()) mpy_fail(1, "address %#lx, which manapy needs, is in use", (unsigned long)MPY_HEAP_LO);
    MPY_TRAP->pid = MPY_TRAP->real_pid = getpid();
    MPY_TRAP->below_mpi = options.below_mpi;
    MPY_UPPER->clock.protocol = MPY_LOWER->protocol;
    uint64_t entry, sp;
    load(&program, program_env, &entry, &sp);
    const char *slash = strrchr(program.path, '/');
    prctl(PR_SET_NAME, slash ? slash + 1 : program.path, 0, 0, 0);
    mpy_stack_show_arguments();

    mpy_trap_install();
    if (mpy_chain_active()) mpy_signals_shield();
    mpy_lower_start(program.path);
    static mpy_low_calls_t low;
    if (mpy_maps_low_calls(&low, error, sizeof error)) mpy_fail(1, "%s", error);
    int r = mpy_trap_filter(&low, MPY_TRAP_ALWAYS);
    if (r) mpy_fail(1, "the kernel refuses the seccomp filter (%s); see `manapy doctor`", strerror(-r));
    mpy_jump(entry, sp);
}

/* stack.h - see stack.c. */
#ifndef MANAPY_STACK_H
#define MANAPY_STACK_H
#include "elfmap.h"

extern char **mpy_initial_environ; /* environ at the start of main */

/* Build the program's initial stack; returns the stack pointer, or 0 with one line in `error`. */
uint64_t mpy_stack_build(char *const *argv, char *const *envp, const mpy_elf_t *program, const mpy_elf_t *linker,
                         const char *exec_name, uint64_t vdso, char *error, size_t n);
void mpy_stack_show_arguments(void); /* in /proc/self/cmdline; call it again after a restart */
#endif

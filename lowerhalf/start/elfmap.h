/* elfmap.h - see elfmap.c. */
#ifndef MANAPY_ELFMAP_H
#define MANAPY_ELFMAP_H
#include <stddef.h>
#include <stdint.h>

typedef struct mpy_elf {
    uint64_t base;  /* load bias */
    uint64_t entry, phdr;
    uint32_t phnum;
    int exec_stack;    /* PT_GNU_STACK asks for code on the stack (nested functions of C and Fortran as callbacks) */
    int low;           /* ET_EXEC: mapped below 4 GiB, at the address where it was linked */
    char interp[4096]; /* PT_INTERP, or "" for a static program */
} mpy_elf_t;

/* Map an executable or a dynamic linker into the arena. Returns 0, or -1 with one line in `error`. */
int mpy_elf_map(const char *path, mpy_elf_t *out, char *error, size_t n);
/* Is `program` linked to a library whose name begins with `library`? It must be mapped, and its dynamic linker must not
 * have run. */
int mpy_elf_needs(const mpy_elf_t *program, const char *library);
#endif

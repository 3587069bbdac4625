/* program.h - see program.c. */
#ifndef MANAPY_PROGRAM_H
#define MANAPY_PROGRAM_H
#include <stddef.h>

typedef struct mpy_program {
    char *path;  /* the ELF file to load */
    char **argv; /* as the program will see them */
} mpy_program_t;

/* Find what `argv[0]` names (PATH, #! lines). Returns 0, or the shell's exit code (127 not found, 126 not executable)
 * with one line in `error`. `path`: use this file for argv[0] instead of searching (may be NULL). */
int mpy_program_find(const char *path, char **argv, mpy_program_t *out, char *error, size_t n);

/* The program's environment: ours, plus what lets the program find the wrapper library in `upper_dir`. preload: the
 * program also loads DMTCP's functions from there. */
char **mpy_program_environ(char **env, const char *upper_dir, int preload);
#endif

/* preload.h - see preload.c. */
#ifndef MANAPY_PRELOAD_H
#define MANAPY_PRELOAD_H
/* Returns if no library of LD_PRELOAD has brought an MPI into this process. Otherwise starts this command again without
 * LD_PRELOAD. */
void mpy_preload_leave(char **argv);

/* The list for the program: NAME=LIST of the environment, without the NAME=. NULL if `entry` is something else. */
const char *mpy_preload_of_program(const char *entry);
#endif

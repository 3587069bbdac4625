/* foreign.h - see foreign.c. */
#ifndef MANAPY_FOREIGN_H
#define MANAPY_FOREIGN_H

/* The upper half maps a file, perhaps with code in it. Ends the job with one line if it is an MPI library other than
 * manapy's. */
void mpy_foreign_check(int fd);

#endif

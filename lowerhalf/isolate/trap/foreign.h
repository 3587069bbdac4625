/* foreign.h - see foreign.c. */
#ifndef MANAPY_FOREIGN_H
#define MANAPY_FOREIGN_H

/* The upper half maps a file that may contain code. Ends the job with one line if the file is an MPI library other than
 * manapy's. */
void mpy_foreign_check(int fd);

#endif

/* leftovers.h - see leftovers.c. */
#ifndef MANAPY_LEFTOVERS_H
#define MANAPY_LEFTOVERS_H

/* Removes from this host the shared memory of an earlier job whose key-value space had this name. Call it before any
 * rank of the job can have initialized MPI. */
void mpy_leftovers_remove(const char *kvsname);

#endif

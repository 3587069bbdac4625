/* leftovers.h - see leftovers.c. */
#ifndef MANAPY_LEFTOVERS_H
#define MANAPY_LEFTOVERS_H

/* Remove from this host the shared memory of an earlier job whose key-value space had this name. Before any rank of the
 * job may have initialized MPI. */
void mpy_leftovers_remove(const char *kvsname);

#endif

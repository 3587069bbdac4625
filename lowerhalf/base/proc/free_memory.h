/* free_memory.h - see free_memory.c. */
#ifndef MANAPY_PROC_FREE_MEMORY_H
#define MANAPY_PROC_FREE_MEMORY_H

/* Why the ranks of this host can't have a second copy of their memory, or NULL. Ranks of one host are much alike: all
 * count as large as this one. `ranks`: their number. */
const char *mpy_memory_lacking(int ranks);
#endif

/* pmi_again.h - see pmi_again.c. */
#ifndef MANAPY_PMI_AGAIN_H
#define MANAPY_PMI_AGAIN_H

/* The process manager at `fd` has received our cmd=init. From now on the MPI library's own cmd=init is answered
 * here. */
void mpy_pmi_greet_again(int fd);

#endif

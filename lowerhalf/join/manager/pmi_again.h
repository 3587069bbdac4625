/* pmi_again.h - see pmi_again.c. */
#ifndef MANAPY_PMI_AGAIN_H
#define MANAPY_PMI_AGAIN_H

/* The process manager at `fd` has had its cmd=init from us; the MPI library's own is answered in its place. */
void mpy_pmi_greet_again(int fd);

#endif

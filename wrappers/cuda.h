/* cuda.h - see cuda.c; for callbacks.c. */
#ifndef MANAPY_CUDA_H
#define MANAPY_CUDA_H

#include <stddef.h>

/* Takes what is on the GPUs into the program's memory, and closes the devices. Does nothing in a program without CUDA.
 * On failure, everything is as before: returns -1, and fills `text` with the end of a sentence. */
int mpy_cuda_leave(char *text, size_t n);

/* The opposite. If that is not possible, ends the job. */
void mpy_cuda_return(int restarted);

#endif

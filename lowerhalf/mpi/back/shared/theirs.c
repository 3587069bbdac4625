/* theirs.c - the functions of the library, and which of our functions replace them. See translate.h. */
#include "back_interface.h"

void *mpy_theirs[MPY_FN_COUNT];

void mpy_fill(void **functions, const mpy_ours_t *ours, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (mpy_theirs[ours[i].needs] != NULL) functions[ours[i].slot] = ours[i].function;
}

/* second.h - a second copy of this library in one process. */
#ifndef MANAPY_SECOND_H
#define MANAPY_SECOND_H

#include "runtime.h"

/* In the constructor of a second copy: leads all calls of its functions to the first copy. `own` and `first` are the
 * first bytes of the two. False: this can't be done, and nothing has changed. */
MPY_HIDDEN bool mpy_hand_on(const void *own, const void *first);

#endif

/* drain.h - emptying the network before a checkpoint, and what follows a restart. See drain.c. */
#ifndef MANAPY_DRAIN_H
#define MANAPY_DRAIN_H

#include "core/runtime.h"

/* In a hook. Also completes nonblocking collectives and other requests. Fails on all ranks or on none. */
MPY_HIDDEN int mpy_p2p_drain(char *error, uint64_t n);
/* In a drain hook, in the lower half: waits until all ranks have arrived. Not 0: it failed, or the coordinator is
 * lost. */
MPY_HIDDEN int mpy_drain_barrier(void);
/* Last in a drain hook, on all ranks: the lower half looks at TCP connections between them. */
MPY_HIDDEN int mpy_meet(char *error, uint64_t n);
/* Posts unmatched receives again, in their old order. */
MPY_HIDDEN int mpy_request_rebuild(char *error, uint64_t n);

#endif

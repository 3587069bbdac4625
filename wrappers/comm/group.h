/* group.h - groups. See group.c. */
#ifndef MANAPY_GROUP_H
#define MANAPY_GROUP_H

#include "core/objects.h"

typedef struct mpy_group {
    mpy_object_t obj;
    int size;
    int32_t *world;
    int session; /* handle of the session it comes from; 0 in the world model */
    bool foreign; /* some members are outside the job: MPY_FOREIGN */
} mpy_group_t;
/* `session`: the handle of the session of the object that the group comes from, or 0 */
MPY_HIDDEN int mpy_group_adopt(int real, int session);
MPY_HIDDEN mpy_group_t *mpy_group(int handle);
/* Sessions of objects; 0 also for a bad handle. */
MPY_HIDDEN int mpy_group_session(int handle);
static inline int mpy_comm_session(int handle) {
    const mpy_comm_t *c = mpy_comm(handle);
    return c != NULL ? c->session : 0;
}
/* World ranks of a real group of `size` members, in its order. Sets *foreign if some are MPY_FOREIGN. In the lower
 * half; mpy_alloc. */
MPY_HIDDEN int32_t *mpy_group_world(int real, int size, bool *foreign);
MPY_HIDDEN const mpy_group_t *mpy_group_with_us(int handle); /* also NULL if this process isn't a member */

/* In a hook, in the lower half: the real group of the world. */
MPY_HIDDEN int mpy_world_group(void);
MPY_HIDDEN int mpy_group_rebuild(char *error, uint64_t n);

#endif

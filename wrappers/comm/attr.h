/* attr.h - attributes. See attr.c. */
#ifndef MANAPY_ATTR_H
#define MANAPY_ATTR_H

#include "core/objects.h"

/* How callbacks of another language are called: the Fortran library gives keyvals made there two functions of its own
 * (MPII_Keyval_set_proxy). */
typedef int mpy_attr_copy_proxy_t(MPI_Comm_copy_attr_function *function, int handle, int keyval, void *extra, int type,
                                  void *value, void **copy, int *flag);
typedef int mpy_attr_delete_proxy_t(MPI_Comm_delete_attr_function *function, int handle, int keyval, int type,
                                    void *value, void *extra);
typedef struct mpy_keyval {
    mpy_object_t obj;
    MPI_Comm_copy_attr_function *copy;
    MPI_Comm_delete_attr_function *remove;
    void *extra;
    mpy_attr_copy_proxy_t *copy_proxy; /* NULL: functions of C */
    mpy_attr_delete_proxy_t *remove_proxy;
} mpy_keyval_t;
/* Call the callbacks, on the upper TLS with in_lower = 0. Return the error of a callback that fails. As in MPICH,
 * deleting then continues and leaves an empty list; copying stops and deletes the copies. */
MPY_HIDDEN int mpy_attrs_copy(int from_handle, mpy_attr_t *const *from, mpy_attr_t **to);
MPY_HIDDEN int mpy_attrs_delete(int handle, mpy_attr_t **attrs);
MPY_HIDDEN void mpy_attr_read_predefined(void); /* in the lower half, after the real MPI_Init */
MPY_HIDDEN int mpy_real_tag_bound(void);        /* in the lower half: of the library that is there now */
MPY_HIDDEN void mpy_attr_read_last_code(void);  /* in the lower half: MPI_LASTUSEDCODE has changed */

#endif

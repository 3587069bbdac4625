/* datatype.h - datatypes as recipes. See datatype.c. */
#ifndef MANAPY_DATATYPE_H
#define MANAPY_DATATYPE_H

#include "core/objects.h"

typedef struct mpy_datatype {
    mpy_object_t obj;
    mpy_link_t all;
    /* references that the program holds; freed when 0, but kept while obj.refs > 0; with mpy_objects_lock */
    int32_t handles;
    int32_t lent; /* references that functions of the program have for a while; they keep the handle, too */
    bool committed;
    bool big;          /* created with the 64-bit form */
    MPI_Count size;    /* in bytes; negative: unknown */
    bool permanent;    /* a Fortran 90 type: can't be freed */
    int combiner;      /* standard ABI value, as are the predefined types and constants below */
    int nints, naints, ncounts, ntypes;
    int *ints;         /* as MPI_Type_get_contents returns them */
    MPI_Aint *aints;
    MPI_Count *counts; /* of the 64-bit form */
    int *types;        /* predefined: standard ABI value; derived: 0 */
    struct mpy_datatype **bases;
    mpy_attr_t *attrs;
    char *name;
} mpy_datatype_t;
MPY_HIDDEN mpy_datatype_t *mpy_datatype(int handle);
MPY_HIDDEN bool mpy_datatype_predefined(int handle);
MPY_HIDDEN int mpy_datatype_virtual(int real); /* for user operations: the program's handle of a real type */
MPY_HIDDEN void mpy_datatype_destroy(mpy_datatype_t *d);
/* References with a handle: for the program, which must free it; for a function of the program, until it is taken back.
 * If the program has freed all its own references, the type gets a handle again. In the lower half. */
MPY_HIDDEN int mpy_datatype_give(mpy_datatype_t *d);
MPY_HIDDEN int mpy_datatype_lend(mpy_datatype_t *d);
MPY_HIDDEN void mpy_datatype_take_back(mpy_datatype_t *d);
MPY_HIDDEN mpy_attr_t **mpy_datatype_attrs(int handle); /* also for predefined types; NULL if it is not a type */
MPY_HIDDEN int mpy_datatype_construct(mpy_datatype_t *d); /* makes the real type of a recipe; in the lower half */
MPY_HIDDEN mpy_datatype_t *mpy_datatype_blank(int combiner, bool big, int nints, int naints, int ncounts, int ntypes);
MPY_HIDDEN void mpy_datatype_base(mpy_datatype_t *d, int i, int handle);
MPY_HIDDEN mpy_datatype_t *mpy_datatype_find_permanent(const mpy_datatype_t *like);
MPY_HIDDEN int mpy_datatype_add(mpy_datatype_t *d); /* gives the program a handle */

MPY_HIDDEN int mpy_datatype_rebuild(char *error, uint64_t n);

#endif

/* predefined.c - the predefined handles and functions, which are numbers in the standard ABI. */
#include "standard.h"

const int standard_handles[PREDEFINED_END] = {
#define FRONT_OBJECT(NUMBER, KIND, CORE, FORTRAN) [NUMBER] = CORE,
#include "front_objects.h"
#undef FRONT_OBJECT
};

static int copy_value(front_handle_t h, int keyval, void *extra, void *in, void *out, int *flag) {
    (void)h, (void)keyval, (void)extra;
    *(void **)out = in;
    *flag = 1;
    return MPI_SUCCESS;
}

/* MPI_X_DUP_FN of all kinds of objects. MPI_X_NULL_COPY_FN and MPI_X_NULL_DELETE_FN are NULL, as in the core. */
mpy_opaque_function *front_copy_function(mpy_opaque_function *copy) {
    enum { DUP_FN = 1 };
    return (uintptr_t)copy == DUP_FN ? (mpy_opaque_function *)copy_value : copy;
}

/* predefined.c - the predefined handles and functions, which are numbers in the standard ABI. */
#include "standard.h"

const int standard_handles[PREDEFINED_END] = {
#define FRONT_OBJECT(NUMBER, KIND, CORE, FORTRAN) [NUMBER] = CORE,
#include "front_objects.h"
#undef FRONT_OBJECT
};

MPI_Fint front_predefined_number(front_handle_t h) { return h < PREDEFINED_END ? (MPI_Fint)h : -1; }

front_handle_t front_predefined(front_kind_t kind, MPI_Fint number) {
    (void)kind;
    return number >= 0 && number < PREDEFINED_END ? (front_handle_t)number : 0;
}

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

/* attributes.c - attributes and keyvals of the program in Fortran. A value is an integer of the length of an address;
 * in the functions of MPI 1 it is an INTEGER. The core keeps with each value which of the two it is, or that it is a
 * pointer of C (wrappers/comm/attr.c).
 */
#include "fortran.h"

/* ---- functions of the program: proxies, as in front/shared/callbacks.c ---- */

/* MPI_Aint, or INTEGER in the functions of MPI 1. */
#define KEYVAL_PROXIES(NAME, KIND, INTEGER) \
    static int copy_##NAME(MPI_Comm_copy_attr_function *function, int object, int keyval, void *extra, int type, \
                           void *value, void **copy, int *flag) { \
        typedef void copy_function_t(MPI_Fint *, int *, INTEGER *, INTEGER *, INTEGER *, int *, int *); \
        (void)type; \
        MPI_Fint h = front_fortran(FRONT_##KIND, front_handle(FRONT_##KIND, object)); \
        INTEGER own_extra = (INTEGER)(intptr_t)extra, in = (INTEGER)(intptr_t)value, out = 0; \
        int rc = MPI_SUCCESS; \
        ((copy_function_t *)(front_function_t)function)(&h, &keyval, &own_extra, &in, &out, flag, &rc); \
        *copy = (void *)(intptr_t)out; \
        return core_error(rc); \
    } \
    static int delete_##NAME(MPI_Comm_delete_attr_function *function, int object, int keyval, int type, void *value, \
                             void *extra) { \
        typedef void delete_function_t(MPI_Fint *, int *, INTEGER *, INTEGER *, int *); \
        (void)type; \
        MPI_Fint h = front_fortran(FRONT_##KIND, front_handle(FRONT_##KIND, object)); \
        INTEGER own_extra = (INTEGER)(intptr_t)extra, own = (INTEGER)(intptr_t)value; \
        int rc = MPI_SUCCESS; \
        ((delete_function_t *)(front_function_t)function)(&h, &keyval, &own, &own_extra, &rc); \
        return core_error(rc); \
    }
KEYVAL_PROXIES(COMM, COMM, MPI_Aint)
KEYVAL_PROXIES(TYPE, DATATYPE, MPI_Aint)
KEYVAL_PROXIES(WIN, WIN, MPI_Aint)
KEYVAL_PROXIES(OLD, COMM, MPI_Fint)

#define CREATE_KEYVAL(FUNCTION, NAME, INTEGER) \
    void fortran_##FUNCTION(mpy_opaque_function *copy, mpy_opaque_function *delete, MPI_Fint *keyval, INTEGER *extra, \
                            MPI_Fint *ierror) { \
        *ierror = front_##FUNCTION(copy, delete, keyval, (void *)(intptr_t)*extra); \
        if (*ierror == MPI_SUCCESS) MPII_Keyval_set_proxy(*keyval, copy_##NAME, delete_##NAME); \
    }
CREATE_KEYVAL(Comm_create_keyval, COMM, MPI_Aint)
CREATE_KEYVAL(Type_create_keyval, TYPE, MPI_Aint)
CREATE_KEYVAL(Win_create_keyval, WIN, MPI_Aint)
CREATE_KEYVAL(Keyval_create, OLD, MPI_Fint)

/* ---- the program's predefined functions ---- */

#define PREDEFINED(KIND, INTEGER) \
    EXPORTED void fortran_##KIND##dup_fn(MPI_Fint *, int *, INTEGER *, INTEGER *, INTEGER *, int *, int *); \
    EXPORTED void fortran_##KIND##null_copy_fn(MPI_Fint *, int *, INTEGER *, INTEGER *, INTEGER *, int *, int *); \
    EXPORTED void fortran_##KIND##null_delete_fn(MPI_Fint *, int *, INTEGER *, INTEGER *, int *); \
    void fortran_##KIND##dup_fn(MPI_Fint *h, int *keyval, INTEGER *extra, INTEGER *in, INTEGER *out, int *flag, \
                                int *ierror) { \
        (void)h, (void)keyval, (void)extra; \
        *out = *in; \
        *flag = 1; \
        *ierror = MPI_SUCCESS; \
    } \
    void fortran_##KIND##null_copy_fn(MPI_Fint *h, int *keyval, INTEGER *extra, INTEGER *in, INTEGER *out, int *flag, \
                                      int *ierror) { \
        (void)h, (void)keyval, (void)extra, (void)in, (void)out; \
        *flag = 0; \
        *ierror = MPI_SUCCESS; \
    } \
    void fortran_##KIND##null_delete_fn(MPI_Fint *h, int *keyval, INTEGER *value, INTEGER *extra, int *ierror) { \
        (void)h, (void)keyval, (void)value, (void)extra; \
        *ierror = MPI_SUCCESS; \
    }
PREDEFINED(comm_, MPI_Aint)
PREDEFINED(type_, MPI_Aint)
PREDEFINED(win_, MPI_Aint)
PREDEFINED(, MPI_Fint)

/* ---- values ---- */

enum { ATTR_AINT = 1, ATTR_INT = 3 }; /* mpy_attr_type_t of the core */

/* The value of a predefined attribute may differ from the core's. */
#define GET(FUNCTION, KIND, CORE, INTEGER, TYPE) \
    void fortran_##FUNCTION(MPI_Fint *object, MPI_Fint *keyval, INTEGER *value, MPI_Fint *flag, MPI_Fint *ierror) { \
        void *got = NULL; \
        *flag = 0; \
        *ierror = MPI_SUCCESS; \
        if (front_has_no_value(*keyval)) return; \
        int own = core_handle(front_of_fortran(FRONT_##KIND, *object)); \
        *ierror = front_error(MPII_##CORE##_get_attr(own, core_keyval(*keyval), &got, flag, TYPE)); \
        if (*ierror == MPI_SUCCESS && *flag) *value = (INTEGER)front_attribute(*keyval, (intptr_t)got); \
    }
GET(Comm_get_attr, COMM, Comm, MPI_Aint, ATTR_AINT)
GET(Attr_get, COMM, Comm, MPI_Fint, ATTR_INT)
GET(Win_get_attr, WIN, Win, MPI_Aint, ATTR_AINT)

void fortran_Type_get_attr(MPI_Fint *datatype, MPI_Fint *keyval, MPI_Aint *value, MPI_Fint *flag, MPI_Fint *ierror) {
    void *got = NULL;
    int own = core_handle(front_of_fortran(FRONT_DATATYPE, *datatype));
    *ierror = front_error(MPII_Type_get_attr(own, core_keyval(*keyval), &got, flag, ATTR_AINT));
    if (*ierror == MPI_SUCCESS && *flag) *value = (MPI_Aint)(intptr_t)got;
}

#define SET(FUNCTION, KIND, CORE, INTEGER, TYPE) \
    void fortran_##FUNCTION(MPI_Fint *object, MPI_Fint *keyval, INTEGER *value, MPI_Fint *ierror) { \
        int own = core_handle(front_of_fortran(FRONT_##KIND, *object)); \
        *ierror = front_error(MPII_##CORE##_set_attr(own, core_keyval(*keyval), (void *)(intptr_t)*value, TYPE)); \
    }
SET(Comm_set_attr, COMM, Comm, MPI_Aint, ATTR_AINT)
SET(Attr_put, COMM, Comm, MPI_Fint, ATTR_INT)
SET(Type_set_attr, DATATYPE, Type, MPI_Aint, ATTR_AINT)
SET(Win_set_attr, WIN, Win, MPI_Aint, ATTR_AINT)

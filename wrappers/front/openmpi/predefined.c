/* predefined.c - Open MPI's predefined functions that copy and delete attributes, and queries of Open MPI's own. */
#include "openmpi.h"

/* Of one type for all kinds of objects. */
#define PREDEFINED(KIND) \
    EXPORTED int OMPI_C_MPI_##KIND##DUP_FN(front_handle_t, int, void *, void *, void *, int *); \
    EXPORTED int OMPI_C_MPI_##KIND##NULL_COPY_FN(front_handle_t, int, void *, void *, void *, int *); \
    EXPORTED int OMPI_C_MPI_##KIND##NULL_DELETE_FN(front_handle_t, int, void *, void *); \
    int OMPI_C_MPI_##KIND##DUP_FN(front_handle_t h, int keyval, void *extra, void *in, void *out, int *flag) { \
        (void)h, (void)keyval, (void)extra; \
        *(void **)out = in; \
        *flag = 1; \
        return MPI_SUCCESS; \
    } \
    int OMPI_C_MPI_##KIND##NULL_COPY_FN(front_handle_t h, int keyval, void *extra, void *in, void *out, int *flag) { \
        (void)h, (void)keyval, (void)extra, (void)in, (void)out; \
        *flag = 0; \
        return MPI_SUCCESS; \
    } \
    int OMPI_C_MPI_##KIND##NULL_DELETE_FN(front_handle_t h, int keyval, void *value, void *extra) { \
        (void)h, (void)keyval, (void)value, (void)extra; \
        return MPI_SUCCESS; \
    }
PREDEFINED()
PREDEFINED(COMM_)
PREDEFINED(TYPE_)
PREDEFINED(WIN_)

EXPORTED int MPIX_Query_cuda_support(void);
EXPORTED int MPIX_Query_rocm_support(void);
int MPIX_Query_cuda_support(void) { return 0; }
int MPIX_Query_rocm_support(void) { return 0; }

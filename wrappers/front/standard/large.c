/* large.c - calls with counts of type MPI_Count whose arguments are functions or arrays of constants. */
#include "standard.h"

typedef void user_function_t(void *, void *, MPI_Count *, front_handle_t *);

static void op_proxy(const void *in, void *inout, MPI_Count count, MPI_Datatype datatype, void *function) {
    front_handle_t type = front_handle(FRONT_DATATYPE, datatype);
    ((user_function_t *)function)((void *)in, inout, &count, &type);
}

int front_Op_create_c(mpy_opaque_function *function, int commute, front_handle_t *op) {
    int core = 0;
    int rc = MPY_CORE(Op_create_c)((MPI_User_function_c *)function, commute, op != NULL ? &core : NULL);
    return front_op_created(rc, core, (front_function_t)op_proxy, op);
}

int front_Type_create_darray_c(int size, int rank, int ndims, const MPI_Count gsizes[], const int distribs[],
                               const int dargs[], const int psizes[], int order, front_handle_t oldtype,
                               front_handle_t *newtype) {
    int core = 0;
    front_distribution_t d;
    if (!front_distribution_open(&d, ndims, distribs, dargs)) return FRONT_ERR_NO_MEM;
    int rc = MPY_CORE(Type_create_darray_c)(size, rank, ndims, gsizes, d.distribs, d.dargs, psizes, core_order(order),
                                            core_handle(oldtype), newtype != NULL ? &core : NULL);
    return front_distribution_close(&d, rc, core, newtype);
}

int front_Type_get_contents_c(front_handle_t datatype, MPI_Count max_integers, MPI_Count max_addresses,
                              MPI_Count max_large_counts, MPI_Count max_datatypes, int integers[],
                              MPI_Aint addresses[], MPI_Count large_counts[], front_handle_t datatypes[]) {
    front_contents_t c;
    if (front_contents_open(&c, max_datatypes) == NULL) return FRONT_ERR_NO_MEM;
    int rc = MPY_CORE(Type_get_contents_c)(core_handle(datatype), max_integers, max_addresses, max_large_counts,
                                           max_datatypes, integers, addresses, large_counts,
                                           datatypes != NULL ? c.core : NULL);
    return front_contents_close(&c, rc, datatype, integers, datatypes);
}

/* events.c - events of MPI_T, which can only be queried. */
#include "standard.h"

#include <stdlib.h>

int front_T_event_get_info(int event_index, char *name, int *name_len, int *verbosity, front_handle_t datatypes[],
                           MPI_Aint displacements[], int *num_elements, void *enumtype, front_handle_t *info,
                           char *desc, int *desc_len, int *bind) {
    int room = datatypes != NULL && num_elements != NULL && *num_elements > 0 ? *num_elements : 0, core_info = 0;
    int *core = calloc((size_t)room + 1, sizeof *core);
    if (core == NULL) return FRONT_T_ERR_MEMORY;
    int rc = MPY_CORE(T_event_get_info)(event_index, name, name_len, verbosity, datatypes != NULL ? core : NULL,
                                        displacements, num_elements, enumtype, info != NULL ? &core_info : NULL, desc,
                                        desc_len, bind);
    if (rc == MPI_SUCCESS) {
        for (int i = 0; i < room && i < *num_elements; i++) datatypes[i] = front_handle(FRONT_DATATYPE, core[i]);
        if (info != NULL) *info = front_handle(FRONT_INFO, core_info);
        if (verbosity != NULL) *verbosity = front_t_verbosity(*verbosity);
        if (bind != NULL) *bind = front_t_bind(*bind);
    }
    free(core);
    return front_error(rc);
}

/* handles.c - how predefined handles of the core become handles of the program, and handles become numbers. */
#include "front_interface.h"

#include <stdlib.h>

/* Handles that are addresses: the loader fills them in. */
static const struct {
    front_handle_t handle;
    front_kind_t kind;
    int core;
} predefined[] = {
#define FRONT_OBJECT(HANDLE, KIND, CORE, FORTRAN) {HANDLE_OF(HANDLE), KIND, CORE},
#include "front_objects.h"
#undef FRONT_OBJECT
};
enum { COUNT = sizeof predefined / sizeof *predefined };

front_handle_t front_handle_slow(front_kind_t kind, int core) {
    for (int i = 0; i < COUNT; i++)
        if (predefined[i].kind == kind && predefined[i].core == core && core != 0) return predefined[i].handle;
    return HANDLE_CREATED | (unsigned)core; /* created, or one that the interface doesn't have (MPIX_BFLOAT16) */
}

/* As a number, a predefined handle is the interface's, and any other one is the core's. */
MPI_Fint front_fortran(front_kind_t kind, front_handle_t h) {
    if (kind == FRONT_FILE) return front_file_number(MPY_CORE(File_c2f)(core_file(h)));
    return h >> 32 == HANDLE_CREATED >> 32 ? (int)h : front_predefined_number(h);
}

front_handle_t front_of_fortran(front_kind_t kind, MPI_Fint number) {
    if (kind == FRONT_FILE) return front_file(MPY_CORE(File_f2c)(core_file_number(number)));
    front_handle_t h = front_predefined(kind, number);
    if (h != 0) return h;
    return number == -1 ? 0 : front_handle(kind, number);
}

int *core_handles(const front_handle_t *handles, int64_t n, int local[LOCAL_ITEMS]) {
    if (handles == NULL) return NULL;
    int *core = n <= LOCAL_ITEMS ? local : malloc((size_t)n * sizeof *core);
    if (core == NULL) abort();
    for (int64_t i = 0; i < n; i++) core[i] = core_handle(handles[i]);
    return core;
}

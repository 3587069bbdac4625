/* objects.c - the predefined objects whose addresses are Open MPI's handles, and how handles of the core become handles
 * of the program. See openmpi.h.
 */
#include "openmpi.h"

#include <stdlib.h>

/* One definition for each object of the table of constants. */
#define FRONT_OBJECT(SYMBOL, KIND, CORE, FORTRAN) \
    extern EXPORTED front_object_t SYMBOL; \
    front_object_t SYMBOL = {CORE, FORTRAN};
#include "front_objects.h"
#undef FRONT_OBJECT

/* The loader fills in the addresses, of the program's own objects where it has some. */
static const struct {
    front_object_t *object;
    front_kind_t kind;
    int core;
} objects[] = {
#define FRONT_OBJECT(SYMBOL, KIND, CORE, FORTRAN) {&SYMBOL, KIND, CORE},
#include "front_objects.h"
#undef FRONT_OBJECT
};
enum { OBJECTS = sizeof objects / sizeof *objects, FORTRAN_NUMBERS = 128 };

front_handle_t front_handle_slow(front_kind_t kind, int core) {
    for (int i = 0; i < OBJECTS; i++)
        if (objects[i].kind == kind && objects[i].core == core && core != 0) return (front_handle_t)objects[i].object;
    return HANDLE_CREATED | (unsigned)core; /* created, or one that Open MPI doesn't have (MPIX_BFLOAT16) */
}

/* In Fortran, a predefined handle is Open MPI's number, and any other one is the core's. Files have numbers of their own
 * in the core: from 1, and 0 for the null handle. */
MPI_Fint front_fortran(front_kind_t kind, front_handle_t h) {
    if (kind == FRONT_FILE) return MPY_CORE(File_c2f)(core_file(h));
    if (h >> 32 == HANDLE_CREATED >> 32) return (int)h;
    if (h < FIRST_PAGE) return -1; /* as Open MPI does for what is no handle */
    const front_object_t *object = (const front_object_t *)h;
    return object->fortran >= 0 ? object->fortran : object->core;
}

static front_object_t *const by_number[][FORTRAN_NUMBERS] = {
#define FORTRAN_NUMBER(SYMBOL, KIND, FORTRAN) [KIND][FORTRAN] = &SYMBOL,
#include "fortran_numbers.h"
#undef FORTRAN_NUMBER
};

front_handle_t front_of_fortran(front_kind_t kind, MPI_Fint number) {
    if (kind == FRONT_FILE) return front_file(MPY_CORE(File_f2c)(number));
    if ((unsigned)number < FORTRAN_NUMBERS && by_number[kind][number] != NULL)
        return (front_handle_t)by_number[kind][number];
    return number == -1 ? 0 : front_handle(kind, number);
}

int *core_handles(const front_handle_t *handles, int64_t n, int local[LOCAL_ITEMS]) {
    if (handles == NULL) return NULL;
    int *core = n <= LOCAL_ITEMS ? local : malloc((size_t)n * sizeof *core);
    if (core == NULL) abort();
    for (int64_t i = 0; i < n; i++) core[i] = core_handle(handles[i]);
    return core;
}

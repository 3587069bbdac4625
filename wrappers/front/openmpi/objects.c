/* objects.c - the predefined objects whose addresses are Open MPI's handles. See openmpi.h. */
#include "openmpi.h"

#define FRONT_OBJECT(SYMBOL, KIND, CORE, FORTRAN) front_object_t SYMBOL = {CORE, FORTRAN};
#include "front_objects.h"
#undef FRONT_OBJECT

MPI_Fint front_predefined_number(front_handle_t h) {
    if (h < FIRST_PAGE) return -1; /* as Open MPI does for what is no handle */
    const front_object_t *object = (const front_object_t *)h;
    return object->fortran >= 0 ? object->fortran : object->core;
}

enum { FORTRAN_NUMBERS = 128 };

/* The loader fills in the addresses, of the program's own objects where it has some. */
static front_object_t *const by_number[FRONT_FILE + 1][FORTRAN_NUMBERS] = {
#define FORTRAN_NUMBER(SYMBOL, KIND, FORTRAN) [KIND][FORTRAN] = &SYMBOL,
#include "fortran_numbers.h"
#undef FORTRAN_NUMBER
};

front_handle_t front_predefined(front_kind_t kind, MPI_Fint number) {
    return (unsigned)number < FORTRAN_NUMBERS ? (front_handle_t)by_number[kind][number] : 0;
}

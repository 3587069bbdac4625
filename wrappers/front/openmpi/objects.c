/* objects.c - the predefined objects whose addresses are Open MPI's handles. See openmpi.h. */
#include "openmpi.h"

#define FRONT_OBJECT(SYMBOL, KIND, CORE, FORTRAN) front_object_t SYMBOL = {CORE, FORTRAN, {0}};
#include "front_objects.h"

/* surface_fold.c with vectors too long for gathering the contributions (fold.c). */
#define ELEMENTS 16500
#include "surface_fold.c"

/* surface_fold.c with vectors so long that contributions aren't gathered (fold.c). */
#define ELEMENTS 16500
#include "surface_fold.c"

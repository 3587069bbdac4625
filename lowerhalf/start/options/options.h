/* options.h - see options.c. */
#ifndef MANAPY_OPTIONS_H
#define MANAPY_OPTIONS_H
#include "base/rank.h"

/* Read options; returns the index of the program in argv (of the checkpoint, for manapy-restart). Exits on bad usage
 * and on bad files. */
int mpy_options_parse(int argc, char **argv, mpy_options_t *out);
#endif

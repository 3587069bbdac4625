/* board.h - see board.c. Functions return false with one line in `error`. */
#ifndef MANAPY_BOARD_H
#define MANAPY_BOARD_H

#include <stdbool.h>
#include <stddef.h>

#include "pmi.h"

/* This rank puts a text that isn't empty. All ranks can get it after the next barrier. */
bool mpy_board_put(mpy_pmi_t *pmi, const char *name, const char *text, char *error, size_t n);
/* The text that rank `from` has put under this name. */
bool mpy_board_get(mpy_pmi_t *pmi, int from, const char *name, char *text, size_t size, char *error, size_t n);

#endif

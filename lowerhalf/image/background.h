/* background.h - see background.c. The control plane's worker thread calls these functions. */
#ifndef MANAPY_BACKGROUND_H
#define MANAPY_BACKGROUND_H
#include "control/engine.h"

/* Takes the image of the halted program. A process of its own writes it, beside the program, unless there is a reason
 * against it: then the image is written at once, and `why_not` has the reason, in a few words. Returns 0, or -1 with
 * one line in `error`. */
int mpy_background_capture(const mpy_image_order_t *order, char *why_not, size_t m, char *error, size_t n);
/* Waits until the image is on disk. Ends early once the checkpoint is cancelled. Returns 0, or -1 with one line in
 * `error`; then no file remains. Must follow a successful capture. */
int mpy_background_wait(mpy_image_result_t *result, char *error, size_t n);
#endif

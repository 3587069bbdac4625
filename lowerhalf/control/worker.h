/* worker.h - see worker.c. The control thread calls these functions, except mpy_worker_start, which the main thread
 * calls. */
#ifndef MANAPY_WORKER_H
#define MANAPY_WORKER_H

#include <stdbool.h>

#include "engine.h"

typedef enum {
    MPY_STEP_NONE = 0,
    MPY_STEP_CHECK,
    MPY_STEP_CALL,
    MPY_STEP_STOP,
    MPY_STEP_DRAIN,
    MPY_STEP_WRITE,
    MPY_STEP_CAPTURE,
    MPY_STEP_RESUME,
    MPY_STEP_PERSIST
} mpy_step_t;

typedef struct mpy_step_result {
    mpy_step_t step;
    int rc;
    char error[1024];
    mpy_image_result_t image; /* of WRITE and PERSIST */
    char why_not[128];        /* of CAPTURE */
} mpy_step_result_t;

bool mpy_worker_start(const mpy_engine_ops_t *ops, int event_fd, char *error, unsigned long n);
bool mpy_worker_busy(void);
/* Must not be called while busy. `number` is grace_ms or exit_after; `order` is that of WRITE and CAPTURE, else NULL.
 * event_fd is written when the step ends. */
void mpy_worker_run(mpy_step_t step, int number, const mpy_image_order_t *order);
/* Takes the result of a step that has ended. Each result is returned once. */
bool mpy_worker_take(mpy_step_result_t *out);

#endif

/* hooks.h - what the lower half calls at a checkpoint and after a restart. See hooks.c. */
#ifndef MANAPY_HOOKS_H
#define MANAPY_HOOKS_H

#include "core/runtime.h"

extern MPY_HIDDEN const mpy_hooks_t mpy_hooks;

#endif

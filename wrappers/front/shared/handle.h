/* handle.h - the handles of all fronts; for the headers of the fronts, which translate.h needs. */
#ifndef MANAPY_HANDLE_H
#define MANAPY_HANDLE_H

#include <stddef.h>
#include <stdint.h>

#include "front/front.h"

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#define EXPORTED __attribute__((visibility("default")))

typedef uintptr_t front_handle_t;
#define HANDLE_CREATED (1ul << 32) /* invariant 1 of translate.h */

#endif

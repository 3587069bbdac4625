/* preload.c - puts the library in front of libibverbs: by LD_PRELOAD for programs that link it, by dlsym (preload.S)
 * for programs that dlopen it.
 *
 * A library with libibverbs's soname could do both, too, but it would have to forward libibverbs's private symbols to
 * the provider libraries, version by version.
 */
#include "common/real.h"

#include <string.h>

/* What the program gets for a function of libibverbs that it looks up itself. */
static void *in_front_of(const char *name, void *found) {
    if (!found || strncmp(name, "ibv_", 4) != 0)
        return found;
    const shift_real_t *real = shift_real();
#define X(verb)                                                                                                        \
    if (found == (void *)real->verb) return (void *)ibv_##verb;
    SHIFT_INTERPOSED(X)
#undef X
    return found;
}

__attribute__((visibility("hidden"))) void *shift_dlsym(void *handle, const char *name) {
    return in_front_of(name, shift_libc_dlsym(handle, name));
}

__attribute__((visibility("hidden"))) void *shift_dlvsym(void *handle, const char *name, const char *version) {
    if (!shift_next_dlvsym)
        shift_find_libc();
    return in_front_of(name, shift_next_dlvsym(handle, name, version));
}

/* ids.c - see ids.h. On either half's TLS: no libc. */
#include "ids.h"

mpy_idpair_t mpy_id_pair(uint32_t i) {
    mpy_idpair_t pair;
    __atomic_load(&MPY_TRAP->ids[i], &pair, __ATOMIC_RELAXED);
    return pair;
}

int32_t mpy_id_real(int32_t shown) {
    for (uint32_t i = 0; i < MPY_TRAP->nids; i++) {
        mpy_idpair_t pair = mpy_id_pair(i);
        if (pair.shown == shown) return pair.real;
    }
    return shown;
}

int32_t mpy_id_shown(int32_t real) {
    for (uint32_t i = 0; i < MPY_TRAP->nids; i++) {
        mpy_idpair_t pair = mpy_id_pair(i);
        if (pair.real == real) return pair.shown;
    }
    return real;
}

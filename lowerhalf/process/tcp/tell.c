/* tell.c - ranks exchange information about the ends of TCP connections (tcp.h). Lower half; libc allowed. */
#define _GNU_SOURCE
#include "tcp.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <manapy/boundary.h>

void *mpy_tcp_alloc(size_t count, size_t size) {
    void *p = calloc(count + 1, size);
    if (!p)
        MPY_LOWER->svc->die("no memory for the data of the program's TCP connections", 1);
    return p;
}

void mpy_tcp_pause(void) {
    nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
}

mpy_tcp_end_t *mpy_tcp_find(mpy_tcp_end_t *ends, int n, int number) {
    for (mpy_tcp_end_t *end = ends; end < ends + n; end++)
        if (end->number == number)
            return end;
    return NULL;
}

const char *mpy_tcp_text(const mpy_tcp_end_t *end) {
    static char text[64];
    if (!end->is_lent)
        snprintf(text, sizeof text, "descriptor %d", end->number);
    else if (end->pid)
        snprintf(text, sizeof text, "process %d: descriptor %d", end->pid, end->pids_number);
    else
        snprintf(text, sizeof text, "another process of the rank: descriptor %d", end->pids_number);
    return text;
}

int mpy_tcp_tell(const mpy_exchange_t *x, mpy_tcp_end_t *ends, int n, bool (*what)(const mpy_tcp_end_t *)) {
    int32_t *to = mpy_tcp_alloc((size_t)n, sizeof *to);
    size_t *to_at = mpy_tcp_alloc((size_t)x->size, sizeof *to_at);
    size_t *from_at = mpy_tcp_alloc((size_t)x->size, sizeof *from_at);
    uint8_t *from = NULL;
    int count = 0;
    for (int rank = 0; rank < x->size; rank++) {
        for (const mpy_tcp_end_t *end = ends; end < ends + n; end++)
            if (end->peer_rank == rank && what(end))
                to[count++] = end->peer_number;
        to_at[rank + 1] = (size_t)count * sizeof *to;
    }
    int bad = x->each((const uint8_t *)to, to_at, &from, from_at);
    for (mpy_tcp_end_t *end = ends; end < ends + n; end++)
        end->is_told = false;
    const int32_t *numbers = (const int32_t *)from;
    for (size_t i = 0; !bad && i < from_at[x->size] / sizeof *numbers; i++) {
        mpy_tcp_end_t *end = mpy_tcp_find(ends, n, numbers[i]);
        if (end)
            end->is_told = true;
    }
    free(to);
    free(to_at);
    free(from_at);
    free(from);
    return bad ? -1 : 0;
}

/* rkeys.c - the keys that the peer's memory has on each path, from the key-value store. With the device's lock held,
 * except for the requests.
 */
#include "common/report.h"
#include "journal/journal.h"
#include "links/links.h"

#include <stdlib.h>
#include <string.h>

enum { MISSED_MS = 200 /* between requests for a key that isn't there */ };

const uint32_t *shift_link_rkey(shift_link_t *l, uint32_t rkey) {
    const uint32_t *known = shift_map_get(&l->rkeys, (uint64_t)rkey + 1);
    if (known)
        return known;
    uint64_t now = shift_now();
    if (now - l->missed > MISSED_MS * 1000000u) { /* ask now, but not again and again */
        l->next_rkeys = 0;
        l->missed = now;
    }
    return NULL;
}

static void learn(shift_link_t *l, uint32_t *keys) {
    uint32_t *old = shift_map_get(&l->rkeys, (uint64_t)keys[0] + 1);
    if (old) { /* the number belonged to a region that no longer exists */
        memcpy(old, keys, SHIFT_PATHS * sizeof *keys);
        free(keys);
    } else {
        shift_map_put(&l->rkeys, (uint64_t)keys[0] + 1, keys);
    }
}

/* Regions are numbered in order of registration. Requests the next ones until one does not exist (yet), twice as many
 * each time. */
void shift_rkeys_learn(shift_link_t *l) {
    shift_device_t *d = l->device;
    shift_kv_found_t asked[SHIFT_KV_BATCH];
    uint32_t n = l->rkeys_more + 1, k = 0;
    for (uint32_t i = 0; i < n; i++)
        shift_mr_key(asked[i].key, l->peer, l->rkeys_known + i);
    pthread_mutex_unlock(&d->lock);
    int r = shift_kv_find(d->kv, asked, (int)n);
    pthread_mutex_lock(&d->lock);
    for (; r == 0 && k < n && asked[k].size == SHIFT_PATHS * sizeof(uint32_t); k++) {
        uint32_t *keys = calloc(SHIFT_PATHS, sizeof *keys);
        if (!keys)
            break;
        memcpy(keys, asked[k].value, SHIFT_PATHS * sizeof *keys);
        l->rkeys_known++;
        if (keys[0])
            learn(l, keys);
        else
            free(keys);
    }
    bool all = k == n;
    l->rkeys_more = all ? (2 * n < SHIFT_KV_BATCH ? 2 * n : SHIFT_KV_BATCH) - 1 : 0;
    l->next_rkeys = all ? 0 : shift_now() + 1000000000u;
}

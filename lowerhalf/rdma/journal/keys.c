/* keys.c - names of our entries in the key-value store, which peers can find, and keeping the entries up to date
 * (shadow.c puts them there).
 *
 * A thread of the program that destroys an object only notes that its entry must be deleted; the worker deletes it.
 * Invariant: withdrawals are carried out in their order, each before a newer value is put under its key. The worker
 * also puts the keys, and makes the withdrawals first. Keys that the worker has noted with the client go to the agent
 * many at a time, once a round.
 */
#include "base/hex.h"
#include "common/report.h"
#include "journal/journal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct shift_withdrawal {
    struct shift_withdrawal *next;
    bool region;
    char key[64];
} withdrawal_t;

enum { CONNECT_EVERY_NS = 2000000000, FLUSH_AGAIN_NS = 100000000 };

void shift_mr_key(char *key, uint64_t device, uint32_t index) {
    snprintf(key, 64, "mr/%016llx/%u", (unsigned long long)device, index);
}

/* Named by the address of the default queue pair: ours as the peer addresses it, or the peer's. */
bool shift_qp_key(char *key, const shift_qp_t *q, bool peer) {
    const struct ibv_ah_attr *ah = &q->attr.ah_attr;
    uint32_t qpn = peer ? q->attr.dest_qp_num : q->qp->qp_num;
    union ibv_gid gid = ah->grh.dgid;
    if (!ah->is_global) {
        struct ibv_port_attr port;
        if (!peer && shift_query_port(q->qp->context, ah->port_num, &port) != 0)
            return false;
        snprintf(key, 64, "qp/lid%04x/%06x", peer ? ah->dlid : port.lid, qpn);
        return true;
    }
    if (!peer && !q->has_gid)
        return false;
    if (!peer)
        gid = q->gid.gid;
    char hex[33];
    mpy_hex(gid.raw, sizeof gid.raw, hex);
    snprintf(key, 64, "qp/%s/%06x", hex, qpn);
    return true;
}

void shift_keys_withdraw(shift_device_t *d, const char *key, bool region) {
    withdrawal_t *w = calloc(1, sizeof *w);
    if (!w)
        return; /* the entry stays, outdated: peers see by its contents that it isn't meant for them */
    w->region = region;
    snprintf(w->key, sizeof w->key, "%s", key);
    *(d->withdrawn ? &d->withdrawn_last->next : &d->withdrawn) = w;
    d->withdrawn_last = w;
}

/* The device is being closed: the agent drops what its client has put. */
void shift_keys_free(shift_device_t *d) {
    while (d->withdrawn) {
        withdrawal_t *w = d->withdrawn;
        d->withdrawn = w->next;
        free(w);
    }
}

/* Sets d->unsaid to the number of keys left. */
static void flush(shift_device_t *d) {
    uint64_t now = shift_now();
    if (now < d->next_flush)
        return;
    pthread_mutex_unlock(&d->lock);
    int left = shift_kv_flush(d->kv);
    pthread_mutex_lock(&d->lock);
    d->unsaid = left;
    d->next_flush = left < 0 ? shift_now() + FLUSH_AGAIN_NS : 0;
    if (left < 0 && d->work)
        shift_report("the key-value agent does not answer (%s): new connections are not protected until it does",
                     strerror(-left));
}

void shift_keys_step(shift_device_t *d) {
    static const uint32_t gone[SHIFT_PATHS];
    while (d->withdrawn) {
        withdrawal_t *w = d->withdrawn;
        d->withdrawn = w->next;
        shift_kv_note(d->kv, w->key, gone, w->region ? sizeof gone : 0);
        free(w);
    }
    flush(d);
    if (shift_kv_fd(d->kv) < 0 && shift_now() >= d->next_connect) {
        pthread_mutex_unlock(&d->lock);
        shift_kv_connect(d->kv);
        pthread_mutex_lock(&d->lock);
        d->next_connect = shift_now() + CONNECT_EVERY_NS;
    }
}

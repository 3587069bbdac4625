/* events.c - events of the queue pairs: always for the agent, and on standard error with MANAPY_SHIFT_VERBOSE. */
#include "common/report.h"
#include "journal/journal.h"
#include "objects/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TOLD = 32 }; /* largest number of events in one message to the agent */

static bool verbose(void) {
    static int v = -1;
    if (v < 0)
        v = getenv("MANAPY_SHIFT_VERBOSE") != NULL;
    return v;
}

/* Durations of the steps of the switch that has just ended, in order, in ns. Empty if there was none. */
static void tell_phases(const shift_times_t *t, char *json, size_t room) {
    uint64_t both_told = t->answered > t->told ? t->answered : t->told;
    *json = 0;
    if (t->replayed)
        snprintf(
            json, room,
            ",\"begun\":%llu,\"phases\":{\"fence\":%llu,\"drain\":%llu,\"copy\":%llu,\"answer\":%llu,\"replay\":%llu}",
            (unsigned long long)t->begun, (unsigned long long)(t->fenced - t->begun),
            (unsigned long long)(t->drained - t->fenced), (unsigned long long)(t->told - t->drained),
            (unsigned long long)(both_told - t->told), (unsigned long long)(t->replayed - both_told));
}

/* Counts of sends; null if nobody has counted them. */
static void tell_counts(const shift_counts_t *n, char *json, size_t room) {
    if (!n->known)
        snprintf(json, room, "\"posted\":null,\"completed\":null,\"bytes\":null");
    else
        snprintf(json, room, "\"posted\":%llu,\"completed\":%llu,\"bytes\":%llu", (unsigned long long)n->posted,
                 (unsigned long long)n->completed, (unsigned long long)n->bytes);
}

/* Only records the event: the agent may be slow, and a thread of the program may be waiting for the lock. If too many
 * are waiting, the oldest are dropped. */
void shift_tell(shift_qp_t *q, const char *event) {
    shift_device_t *d = q->o.device;
    char json[sizeof d->events[0].json], phases[256], counts[96];
    tell_phases(&q->times, phases, sizeof phases);
    shift_counts_t n = shift_count(q);
    tell_counts(&n, counts, sizeof counts);
    snprintf(
        json, sizeof json,
        "{\"pid\":%d,\"qp\":%u,\"event\":\"%s\",\"device\":\"%s\",\"default\":\"%s\",\"sq\":\"%s\",\"rq\":\"%s\",%s,"
        "\"fallbacks\":%u,\"returns\":%u%s}",
        (int)getpid(), q->qp->qp_num, event, d->path[q->path].name, d->path[0].name, shift_sq_name(q->states.sq),
        shift_rq_name(q->states.rq), counts, q->switches, q->returns, phases);
    if (verbose())
        fprintf(stderr, "manapy shift: %.6f %s\n", (double)shift_now() * 1e-9, json);
    memcpy(d->events[d->event_next++ % (sizeof d->events / sizeof d->events[0])].json, json, sizeof json);
    if (d->event_next - d->event_first > sizeof d->events / sizeof d->events[0])
        d->event_first++;
    shift_record(q, &n);
    shift_wake(d);
}

void shift_tell_flowing(const shift_qp_t *q) {
    if (verbose())
        fprintf(stderr,
                "manapy shift: %.6f {\"pid\":%d,\"qp\":%u,\"event\":\"flowing\",\"device\":\"%s\",\"after\":%llu}\n",
                (double)q->times.flowing * 1e-9, (int)getpid(), q->qp->qp_num, q->o.device->path[q->path].name,
                (unsigned long long)(q->times.flowing - q->times.begun));
}

void shift_tell_agent(shift_device_t *d) {
    char json[TOLD * sizeof d->events[0].json];
    while (d->kv && d->event_first != d->event_next) {
        size_t n = 0;
        /* commas and brackets overwrite the terminators */
        for (int i = 0; i < TOLD && d->event_first != d->event_next; i++)
            n += (size_t)snprintf(json + n, sizeof json - n, "%c%s", i ? ',' : '[',
                                  d->events[d->event_first++ % (sizeof d->events / sizeof d->events[0])].json);
        snprintf(json + n, sizeof json - n, "]");
        pthread_mutex_unlock(&d->lock);
        shift_kv_event(d->kv, json);
        pthread_mutex_lock(&d->lock);
    }
}

/* states.c - see states.h. */
#include "objects/states.h"

#include <stdio.h>
#include <stdlib.h>

static const char *const sq_names[] = {"default", "fallback", "wait-signaled", "wait-sinked", "released"};
static const char *const rq_names[] = {"default", "fallback", "released"};
static const char *const event_names[] = {"fail", "recovered", "signaled", "returned", "give-up"};

const char *shift_sq_name(shift_sq_state_t s) { return sq_names[s]; }
const char *shift_rq_name(shift_rq_state_t s) { return rq_names[s]; }

/* -1: illegal */
static int next_sq(shift_sq_state_t s, shift_event_t e) {
    switch (e) {
    case SHIFT_FAIL:
        return s == SHIFT_SQ_RELEASED ? -1 : SHIFT_SQ_FALLBACK;
    case SHIFT_RECOVERED:
        return s == SHIFT_SQ_FALLBACK ? SHIFT_SQ_WAIT_SIGNALED : -1;
    case SHIFT_SIGNALED:
        return s == SHIFT_SQ_WAIT_SIGNALED ? SHIFT_SQ_WAIT_SINKED : -1;
    case SHIFT_RETURNED:
        return s == SHIFT_SQ_WAIT_SINKED ? SHIFT_SQ_DEFAULT : -1;
    case SHIFT_GIVE_UP:
        return SHIFT_SQ_RELEASED;
    }
    return -1;
}

static int next_rq(shift_rq_state_t s, shift_event_t e) {
    switch (e) {
    case SHIFT_FAIL:
        return s == SHIFT_RQ_RELEASED ? -1 : SHIFT_RQ_FALLBACK;
    case SHIFT_RECOVERED:
    case SHIFT_SIGNALED:
        return s == SHIFT_RQ_FALLBACK ? SHIFT_RQ_FALLBACK : -1;
    case SHIFT_RETURNED:
        return s == SHIFT_RQ_FALLBACK ? SHIFT_RQ_DEFAULT : -1;
    case SHIFT_GIVE_UP:
        return SHIFT_RQ_RELEASED;
    }
    return -1;
}

void shift_transition(shift_states_t *s, shift_event_t event) {
    int sq = next_sq(s->sq, event), rq = next_rq(s->rq, event);
    if (sq < 0 || rq < 0) {
        fprintf(stderr, "manapy shift: illegal transition: event %s in states %s/%s\n", event_names[event],
                sq_names[s->sq], rq_names[s->rq]);
        abort();
    }
    s->sq = (shift_sq_state_t)sq;
    s->rq = (shift_rq_state_t)rq;
}

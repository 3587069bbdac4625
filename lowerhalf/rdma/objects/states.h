/* states.h - the states of a protected queue pair and the only function that changes them (SHIFT paper, section 4.2).
 *
 *   send queue    DEFAULT ──FAIL──> FALLBACK ──RECOVERED──> WAIT_SIGNALED ──SIGNALED──> WAIT_SINKED
 *                    ^                 ^                          │                      │      │
 *                    │                 └── FAIL (the way back, or the path in use, was lost)    │
 *                    └──RETURNED────────────────────────────────────────────────────────────────┘
 *   receive queue DEFAULT ──FAIL──> FALLBACK ──RETURNED──> DEFAULT
 *
 * FAIL also stands for a switch that was requested (`manapy rdma move`); from here on it is the same. RELEASED, which
 * GIVE_UP reaches from every state, is not one of the paper's states: the queue pair belongs to the provider again, and
 * the program sees what happens to it.
 */
#ifndef MANAPY_RDMA_STATES_H
#define MANAPY_RDMA_STATES_H

typedef enum shift_sq_state {
    SHIFT_SQ_DEFAULT,
    SHIFT_SQ_FALLBACK,
    SHIFT_SQ_WAIT_SIGNALED,
    SHIFT_SQ_WAIT_SINKED,
    SHIFT_SQ_RELEASED
} shift_sq_state_t;
typedef enum shift_rq_state { SHIFT_RQ_DEFAULT, SHIFT_RQ_FALLBACK, SHIFT_RQ_RELEASED } shift_rq_state_t;

typedef enum shift_event {
    SHIFT_FAIL,      /* traffic leaves the path in use for a backup */
    SHIFT_RECOVERED, /* the default path works again, on both sides */
    SHIFT_SIGNALED,  /* the last request posted to the backup is a signaled one, or there is none */
    SHIFT_RETURNED,  /* both directions are back on the default path */
    SHIFT_GIVE_UP,   /* no path is left, or the program itself has ended the connection */
} shift_event_t;

typedef struct shift_states {
    shift_sq_state_t sq;
    shift_rq_state_t rq;
} shift_states_t;

/* On a transition that isn't in the picture above: aborts with both states and the event in the message. */
void shift_transition(shift_states_t *s, shift_event_t event);

const char *shift_sq_name(shift_sq_state_t s);
const char *shift_rq_name(shift_rq_state_t s);

#endif

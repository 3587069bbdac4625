/* way_back.c - moves traffic back to the default path, or to another path on command.
 *
 * The way back is a switch like any other (switch.c). It begins when both sides' legs on the default path are ready
 * again and their send queues have emptied (SHIFT paper, section 4.2.3), so that nothing must be replayed. A peer that
 * waits for us meanwhile would wait for ever. So emptying has a time limit; after it the replay does its work.
 *
 * A marker, an empty write, shows that a queue is empty. A queue pair that refuses writes would refuse it; and its legs
 * must refuse what it refuses. Then only the journal tells.
 */
#include "common/report.h"
#include "failover/switch.h"
#include "objects/legs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SINK_MS = 100 };

/* Makes lost legs ready again as soon as the link's control queue pair works on their path. A leg that was connected
 * early gets the program's attributes. In the default state nothing has been sent on it, so the peer doesn't notice. */
void shift_mend_legs(shift_qp_t *q) {
    for (int p = 0; p < q->o.device->paths; p++) {
        shift_leg_t *leg = &q->legs[p];
        if (p != q->path && leg->fenced && q->link->on[p].up)
            shift_leg_connect(q, p, leg->lost_in);
        else if (p && q->direct && leg->early && q->state == IBV_QPS_RTS) {
            leg->early = false;
            if (shift_leg_connect(q, p, leg->generation) != 0) {
                leg->fenced = true; /* another try later */
                leg->ready = false;
                leg->lost_in = leg->generation;
            }
        }
    }
}

/* Posts an empty signaled write of our own: when it completes, everything before it has completed. */
static void post_marker(shift_qp_t *q) {
    if (!q->peer_takes_writes) {
        q->marker_posted = true;
        return;
    }
    struct ibv_send_wr wr = {
        .wr_id = (uintptr_t)&q->marker_done, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
    shift_leg_t *leg = &q->legs[q->path];
    if (shift_leg_send(q, q->path, &wr) == 0) {
        leg->next_psn = (leg->next_psn + 1) & SHIFT_PSN_MASK;
        q->marker_posted = true;
    }
}

static void go_back(shift_qp_t *q) {
    shift_new_epoch(q);
    q->target = 0;
    shift_fence(q);
}

void shift_way_back(shift_qp_t *q) {
    switch (q->states.sq) {
    case SHIFT_SQ_FALLBACK:
        if (q->path == 0 || q->moved || !shift_leg_usable(q, 0) || q->posted_sends < q->sends.next ||
            (!q->peer_sunk && !shift_turn(q)))
            break;
        shift_take_turn(q);
        shift_transition(&q->states, SHIFT_RECOVERED);
            /* fall through */
    case SHIFT_SQ_WAIT_SIGNALED:
        if (!q->marker_posted)
            /* the paper waits for the program's next signaled request; the program might never post one, and the peer
             * would wait, too */
            post_marker(q);
        if (!q->marker_posted)
            break;
        shift_transition(&q->states, SHIFT_SIGNALED);
        q->since = shift_now();
        /* fall through */
    case SHIFT_SQ_WAIT_SINKED:
        if (!q->peer_takes_writes)
            q->marker_done = q->sends.first == q->posted_sends;
        if (q->marker_done && !q->sunk_told) {
            q->sunk_told = true;
            shift_link_send(q->link, &(shift_message_t){.type = SHIFT_SUNK,
                                                        .epoch = q->epoch,
                                                        .from_qpn = q->qp->qp_num,
                                                        .to_qpn = q->legs[0].peer_qpn});
        }
        if ((q->sunk_told && q->peer_sunk) || shift_now() - q->since > SINK_MS * 1000000u)
            go_back(q);
        break;
    default:
        break;
    }
}

/* `which`: number of a queue pair, or "*". Moving to the default RNIC is the way back, which is taken as soon as
 * possible. */
static void move(shift_device_t *d, const char *which, const char *device) {
    int to = -1;
    for (int p = 0; p < d->paths; p++)
        if (strcmp(d->path[p].name, device) == 0)
            to = p;
    if (to < 0) {
        shift_report("asked to move to %s, which is not a backup of %s", device, d->path[0].name);
        return;
    }
    for (shift_object_t *o = d->objects; o; o = o->next) {
        shift_qp_t *q = (shift_qp_t *)o;
        if (o->kind != SHIFT_QP || q->plain || !q->linked || q->path == to ||
            (strcmp(which, "*") != 0 && strtoul(which, NULL, 0) != q->qp->qp_num))
            continue;
        if (to == 0) {
            q->moved = false;
        } else if (q->phase == SHIFT_STEADY && shift_leg_usable(q, to)) {
            q->moved = true;
            shift_fail(q, NULL);
            q->target = to;
        } else {
            shift_report("a connection of %s can't move to %s now", d->path[0].name, device);
        }
    }
}

/* Commands of the agent. */
void shift_take_commands(shift_device_t *d) {
    char line[256], which[32], device[64];
    while (shift_kv_fd(d->kv) >= 0 && shift_kv_command(d->kv, line, sizeof line) > 0) {
        if (sscanf(line, "MOVE %31s %63s", which, device) == 2)
            move(d, which, device);
        else
            shift_report("the agent has sent an unknown request: %s", line);
    }
}

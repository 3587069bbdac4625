/* failover.h - what worker/ and verbs/ may call of this layer. The files of the layer use it, too, and switch.h. With
 * the device's lock held, unless a line says otherwise. */
#ifndef MANAPY_RDMA_FAILOVER_H
#define MANAPY_RDMA_FAILOVER_H

#include "links/links.h"
#include "objects/objects.h"

/* begin.c */
void shift_fail(shift_qp_t *q, const struct ibv_wc *wc); /* the leg in use is broken */
bool shift_transport_error(const shift_qp_t *q, const struct ibv_wc *wc);
bool shift_under_way(const shift_qp_t *q);
void shift_count_turns(shift_device_t *d);        /* by the worker, before each round */
void shift_last_reached(shift_qp_t *q, int path); /* LAST_WQE_REACHED is here */

/* switch.c */
void shift_switch_step(shift_qp_t *q); /* by the worker */

/* peer.c, messages.c */
void shift_linked(shift_qp_t *q); /* by the worker: the connection is protected from now on */
void shift_message_in(shift_link_t *l, const shift_message_t *m); /* links.c calls it */

/* way_back.c */
void shift_take_commands(shift_device_t *d); /* of the agent: by the worker */

/* release.c: why it is lost; NULL: the program itself ended the connection */
void shift_release(shift_qp_t *q, const char *why);

/* connect.c */
struct ibv_qp_attr shift_leg_attributes(const shift_qp_t *q, int path, uint32_t generation); /* in RTS */
/* 0 or an errno. Also without the lock, if the object is busy. */
int shift_leg_bring_up(shift_qp_t *q, int path, struct ibv_qp_attr *a);
/* It is up: tells the peer. */
void shift_leg_make_ready(shift_qp_t *q, int path, uint32_t generation, const struct ibv_qp_attr *a);
int shift_leg_connect(shift_qp_t *q, int path, uint32_t generation); /* all three. 0 or an errno */
uint32_t shift_leg_psn(uint32_t first, uint32_t generation); /* the first packet's in a generation */
bool shift_leg_usable(const shift_qp_t *q, int path);

/* gather.c */
void shift_gather(shift_cq_t *c);   /* all completions that are there, into c->ready */
/* The same in the default state, when the program may not have polled for long. False: not now, somebody polls. */
bool shift_catch_up(shift_cq_t *c);
/* The entries of a journal that a good completion retires. With the CQ's lock, not the device's. */
void shift_retire(shift_qp_t *q, const struct ibv_wc *wc);
void shift_retire_done(shift_qp_t *q);
/* Completions that a straight poll found, some with an error. Without the device's lock. False: they stay the
 * program's. */
bool shift_stash(shift_cq_t *c, int n, const struct ibv_wc *wc);
bool shift_stash_locked(shift_cq_t *c, uint32_t n, const struct ibv_wc *wc); /* c->lock held */

/* pump.c: onto the leg in use */
void shift_pump_sends(shift_qp_t *q);
void shift_pump_recvs(shift_qp_t *q);

/* readback.c: rewind.h for a queue pair whose leg 0 has failed */
void shift_rewind_attach(shift_qp_t *q); /* just made; q->rewinds, if its completion queues allow it, too */
void shift_rewind_detach(shift_qp_t *q);
void shift_note_error(shift_qp_t *q, const shift_cq_t *c, const struct ibv_wc *wc);
void shift_tell_errors(shift_qp_t *q);      /* the program gets them */
const char *shift_read_back(shift_qp_t *q); /* into the journals, when the leg is drained. NULL, or why not */

/* watch.c: what has stopped without an error */
void shift_watch_step(shift_device_t *d);                 /* by the worker */
void shift_watch_asked(shift_qp_t *q, uint32_t epoch);    /* by the peer, whether it can receive */
void shift_watch_answered(shift_qp_t *q, uint32_t epoch); /* by the peer: it can */

#endif

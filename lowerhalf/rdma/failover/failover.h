/* failover.h - the functions of this layer that worker/ and verbs/ may call. The files of the layer use it, too, and
 * switch.h. With the device's lock held, unless a line says otherwise. */
#ifndef MANAPY_RDMA_FAILOVER_H
#define MANAPY_RDMA_FAILOVER_H

#include "links/links.h"
#include "objects/objects.h"

/* begin.c */
void shift_fail(shift_qp_t *q, const struct ibv_wc *wc); /* the leg in use is broken */
bool shift_transport_error(const shift_qp_t *q, const struct ibv_wc *wc);
bool shift_under_way(const shift_qp_t *q);
void shift_count_turns(shift_device_t *d);        /* called by the worker before each round */
void shift_last_reached(shift_qp_t *q, int path); /* LAST_WQE_REACHED has arrived */

/* switch.c */
void shift_switch_step(shift_qp_t *q); /* called by the worker */

/* peer.c, messages.c */
void shift_linked(shift_qp_t *q); /* called by the worker: from now on the connection is protected */
void shift_message_in(shift_link_t *l, const shift_message_t *m); /* links.c calls it */

/* way_back.c */
void shift_take_commands(shift_device_t *d); /* commands of the agent; called by the worker */

/* release.c. why: the reason why the connection is lost; NULL: the program itself ended it */
void shift_release(shift_qp_t *q, const char *why);

/* connect.c */
struct ibv_qp_attr shift_leg_attributes(const shift_qp_t *q, int path, uint32_t generation); /* of a leg in RTS */
/* 0 or an errno. May be called without the lock if the object is busy. */
int shift_leg_bring_up(shift_qp_t *q, int path, struct ibv_qp_attr *a);
/* The leg is connected: tells the peer. */
void shift_leg_make_ready(shift_qp_t *q, int path, uint32_t generation, const struct ibv_qp_attr *a);
int shift_leg_connect(shift_qp_t *q, int path, uint32_t generation); /* all three steps. 0 or an errno */
uint32_t shift_leg_psn(uint32_t first, uint32_t generation); /* number of the first packet in a generation */
bool shift_leg_usable(const shift_qp_t *q, int path);

/* gather.c */
void shift_gather(shift_cq_t *c);   /* moves all completions that have arrived into c->ready */
/* The same in the default state, if the program may not have polled for long. False: not now, because a thread
 * polls. */
bool shift_catch_up(shift_cq_t *c);
/* Remove the entries of a journal that a good completion retires. With the CQ's lock, not the device's. */
void shift_retire(shift_qp_t *q, const struct ibv_wc *wc);
void shift_retire_done(shift_qp_t *q);
/* Keeps completions that a straight poll found, some of them with an error. Without the device's lock. False: they stay
 * the program's. */
bool shift_stash(shift_cq_t *c, int n, const struct ibv_wc *wc);
bool shift_stash_locked(shift_cq_t *c, uint32_t n, const struct ibv_wc *wc); /* c->lock held */

/* repost.c: post on the leg in use */
void shift_repost_sends(shift_qp_t *q);
void shift_repost_recvs(shift_qp_t *q);

/* readback.c: rewind.h for a queue pair whose leg 0 has failed */
/* when it was just created; also sets q->rewinds if its completion queues allow it */
void shift_rewind_attach(shift_qp_t *q);
void shift_rewind_detach(shift_qp_t *q);
void shift_note_error(shift_qp_t *q, const shift_cq_t *c, const struct ibv_wc *wc);
void shift_tell_errors(shift_qp_t *q);      /* passes them to the program */
/* into the journals, when the leg is drained. Returns NULL, or the reason for failure */
const char *shift_read_back(shift_qp_t *q);

/* watch.c: finds queue pairs that have stopped without an error */
void shift_watch_step(shift_device_t *d);                 /* called by the worker */
void shift_watch_asked(shift_qp_t *q, uint32_t epoch);    /* the peer asks whether this side can receive */
void shift_watch_answered(shift_qp_t *q, uint32_t epoch); /* the peer answers that it can receive */

#endif

/* switch_frame.h - see switch_frame.c. For drivers of the interposer's own code over the null provider. */
#ifndef SWITCH_FRAME_H
#define SWITCH_FRAME_H

#include "links/links.h"
#include "nullverbs.h"

enum { PATIENCE_S = 60 };

/* the null provider's verbs and functions */
extern shift_real_t real;
extern bool (*deliver)(struct ibv_qp *, struct ibv_qp *, bool);
extern void (*fail)(struct ibv_qp *, enum ibv_wc_status);
extern void (*fail_receive)(struct ibv_qp *, enum ibv_wc_status);
extern void (*refuse)(const char *, int, unsigned);
extern void (*async)(struct ibv_context *, const struct ibv_async_event *);
extern struct ibv_qp *(*next_qp)(const struct ibv_qp *);
extern void (*set_gid)(int);
void find_library(const char *path);

extern unsigned finds; /* queries of the key-value store; with the device's lock, or about so many */

/* The link connects this process with itself, on all paths at all times, unless it is not `connected`. The peer's only
 * remote key that it knows is 1, with these keys on the paths. */
extern shift_link_t ourselves;
extern uint32_t rkeys[SHIFT_PATHS];
extern unsigned downs[SHIFT_PATHS]; /* how often each path was said to be lost */

shift_qp_t *shift_of(struct ibv_qp *qp);
/* Both steps, with IBV_ACCESS_REMOTE_WRITE: to RTR, and to RTS. */
void connect_qp(struct ibv_qp *q, const struct ibv_qp *peer, enum ibv_mtu mtu);
void receive_only(struct ibv_qp *q, const struct ibv_qp *peer, enum ibv_mtu mtu, unsigned access);
void send_too(struct ibv_qp *q);
/* Is it in the default state, with a backup that is ready on both sides? With the device's lock. */
bool protected_now(struct ibv_qp *qp);

#endif

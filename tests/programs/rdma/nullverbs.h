/* nullverbs.h - a libibverbs.so.1 without RNICs, and the functions by which a test or benchmark controls it.
 *
 * It is built from nullverbs.c with the real library's soname and symbol versions, and found by LD_LIBRARY_PATH. The
 * program is linked with it, and any interposer may stand between them. It has NULLVERBS_DEVICES (2) devices, null0
 * null1 ..., each with one port and one GID, at index 0. Nothing is ever sent. Posted requests stay outstanding until
 * nullverbs_complete, _receive or _fail ends them. With NULLVERBS_INSTANT in the environment, or in contexts opened
 * after nullverbs_instant(true), every request succeeds at once and nothing is kept. Then the data verbs cost a few
 * nanoseconds, and are for one thread.
 *
 * With NULLVERBS_SYSFS=DIRECTORY they look like Soft-RoCE's devices, and queue pairs have its rings
 * (<rdma/rdma_user_rxe.h>). The library fills DIRECTORY. Posted requests are written to the rings, except instant ones.
 *
 * Implemented: RC queue pairs (UD ones can be made, too), with and without ibv_wr_*; completion queues, with and
 * without ibv_start_poll, but none for one thread only; shared receive queues, whose sizes are rounded up to powers of
 * two; parent domains and thread domains; memory of a file (memfd_create) instead of a dmabuf; events. Everything else
 * fails with EOPNOTSUPP, or doesn't exist.
 */
#ifndef NULLVERBS_H
#define NULLVERBS_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

void nullverbs_instant(bool on);

/* All queue pairs, including those that an interposer has made: the one after this (NULL: the first), NULL after the
 * last. */
struct ibv_qp *nullverbs_next_qp(const struct ibv_qp *after);

/* Number of memory regions, and of protection domains, that a device has, with those that an interposer has made. */
unsigned nullverbs_regions(const char *device);
unsigned nullverbs_domains(const char *device);

/* Outstanding work requests, oldest first; copies, with their scatter lists (for inline data, the bytes). NULL: there
 * are fewer. */
const struct ibv_send_wr *nullverbs_send(struct ibv_qp *qp, unsigned i);
const struct ibv_recv_wr *nullverbs_recv(struct ibv_qp *qp, unsigned i);
unsigned nullverbs_sends(struct ibv_qp *qp);
unsigned nullverbs_recvs(struct ibv_qp *qp);

/* The n oldest sends succeed (or all, if fewer are outstanding). Signaled ones have a completion. */
void nullverbs_complete(struct ibv_qp *qp, unsigned n);

/* A message arrives with the opcode, byte_len, imm_data and wc_flags of `message`, and completes the oldest receive.
 * False: there is none. */
bool nullverbs_receive(struct ibv_qp *qp, const struct ibv_wc *message);

/* The peer executes the oldest send of `from` that it has not executed yet, if both are ready and there is a receive
 * for it. The peer's rq_psn counts its packets. acknowledge: then all executed ones succeed. False: nothing
 * happened. */
bool nullverbs_deliver(struct ibv_qp *from, struct ibv_qp *to, bool acknowledge);

/* The path is lost: the queue pair goes into the error state, the oldest send completes with this status, everything
 * else is flushed. */
void nullverbs_fail(struct ibv_qp *qp, enum ibv_wc_status status);

/* The same, but it is the oldest receive that completes with this status. */
void nullverbs_fail_receive(struct ibv_qp *qp, enum ibv_wc_status status);

/* From now on every port's only GID is at this index of its table; -1: it has none. This happens when an address is
 * removed and added again. */
void nullverbs_gid(int index);

/* The next `times` calls of a verb (its name without "ibv_", such as "reg_mr", "create_qp", "post_send") fail with this
 * errno. */
void nullverbs_refuse(const char *verb, int error, unsigned times);

/* Makes a queue pair that no interposer sees, as mlx5dv_create_qp does. */
struct ibv_qp *nullverbs_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init);

/* An asynchronous event, for ibv_get_async_event. */
void nullverbs_async(struct ibv_context *context, const struct ibv_async_event *event);

#ifdef __cplusplus
}
#endif

#endif

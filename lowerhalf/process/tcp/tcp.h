/* tcp.h - TCP connections between processes of the job: what is in flight at a checkpoint, and how they are recreated
 * at a restart.
 *
 * Lower half; libc allowed. Collective over the MPI processes of all ranks (exchange.h). Each acts for all processes of
 * its rank's tree.
 *
 * Invariants
 *  1. A connection is inside the job if processes of the job have both ends. The addresses tell: the local one of an
 *     end is the remote one of the other. Loopback addresses count only within one network namespace.
 *  2. A checkpoint leaves a connection as it was: data that is read from it is sent again before the program goes on.
 *  3. An end is named by its rank and its descriptor. A restart connects the ends of these names.
 *  4. No rank leaves a collective exchange alone, because the others would wait for it. If there is no memory, the job
 *     ends.
 */
#ifndef MANAPY_TCP_H
#define MANAPY_TCP_H

#include <stdbool.h>
#include <sys/socket.h>

#include "exchange.h"

typedef struct mpy_tcp_name { /* of an end, in network byte order; IPv4 as an IPv6 address (RFC 4291, 2.5.5.2) */
    uint8_t address[16], port[2];
} mpy_tcp_name_t;

/* tell.c, as mpy_tcp_find. Zeros. If there is no memory, ends the job with a line (invariant 4). */
void *mpy_tcp_alloc(size_t count, size_t size);
/* A millisecond: between two looks. */
void mpy_tcp_pause(void);

/* names.c */
mpy_tcp_name_t mpy_tcp_name(const struct sockaddr_storage *address);
/* For a socket of AF_INET or AF_INET6; 0 if the name is none of IPv4. */
socklen_t mpy_tcp_address(const mpy_tcp_name_t *name, int domain, struct sockaddr_storage *out);
bool mpy_tcp_is_loopback(const mpy_tcp_name_t *name);
uint64_t mpy_tcp_network(void); /* identifies this network namespace of this host */

typedef struct mpy_tcp_end {
    int number;                 /* the program's descriptor; of a lent end: of this process at the checkpoint */
    int fd;                     /* the same at a checkpoint; at a restart the socket that will become it */
    bool is_lent;               /* another process of the tree has it: */
    int pid, pids_number;       /* its id (0: not known), and its descriptor */
    int domain;                 /* AF_INET or AF_INET6 */
    int peer_rank, peer_number; /* peer_rank < 0: outside the job */
    int peer_domain;
    bool has_shut_down;         /* the program sends nothing more */
    uint8_t *data;              /* has arrived, but the program has not received it; or is under way */
    size_t bytes;
    /* of a checkpoint */
    mpy_tcp_name_t local, remote;
    int unacknowledged;
    bool is_taken; /* data is read from the socket, and must be sent again by the other end */
    bool is_told;  /* by the other end: see mpy_tcp_tell */
    /* to be sent before the program goes on */
    uint8_t *left;
    size_t nleft, sent;
} mpy_tcp_end_t;

/* The end with this descriptor, or NULL. */
mpy_tcp_end_t *mpy_tcp_find(mpy_tcp_end_t *ends, int n, int number);
/* Not: a lent end that has lost its connection since it was lent. */
static inline bool mpy_tcp_has_peer(const mpy_tcp_end_t *end) {
    return end->remote.port[0] != 0 || end->remote.port[1] != 0;
}
/* "descriptor 7", for a line that a person reads; until the next call. */
const char *mpy_tcp_text(const mpy_tcp_end_t *end);

enum { MPY_TCP_BROKEN = -2 };
/* At a checkpoint: finds the other ends, and reads what is in flight. `lasts`: seconds without any movement after which
 * it gives up; `cancelled`: the checkpoint has been given up elsewhere. Not 0, with the reason, if something fails on
 * this rank; ends outside the job are no failure. MPY_TCP_BROKEN: the program must not go on. */
int mpy_tcp_meet(const mpy_exchange_t *x, mpy_tcp_end_t *ends, int n, int lasts, int (*cancelled)(void), char *error,
                 size_t size);
/* The address under which other hosts reach this one. */
typedef bool mpy_tcp_host_t(struct sockaddr_storage *address, socklen_t *bytes, char *error, size_t size);
/* At a restart: makes fd of each end, and sends what was in flight. */
int mpy_tcp_rejoin(const mpy_exchange_t *x, mpy_tcp_end_t *ends, int n, mpy_tcp_host_t *host, char *error,
                   size_t size);
/* Before the program goes on, when its descriptors are in place: sends what is left, and shuts down what the program
 * has shut down. Gives up after some seconds in which nothing has moved. */
int mpy_tcp_flush(mpy_tcp_end_t *ends, int n, char *error, size_t size);
void mpy_tcp_free(mpy_tcp_end_t *ends, int n);

/* buffers.c: makes the buffer SO_RCVBUF or SO_SNDBUF at least so large, in bytes of memory, if that is allowed; whether
 * it is. And: the memory that received data uses. */
bool mpy_tcp_enlarge(int fd, int name, size_t bytes);
size_t mpy_tcp_memory_in_use(int fd);
/* tell.c: sets is_told at the peer of each end for which `what` holds, and clears it elsewhere. */
int mpy_tcp_tell(const mpy_exchange_t *x, mpy_tcp_end_t *ends, int n, bool (*what)(const mpy_tcp_end_t *));
/* refill.c, for meet.c and rejoin.c: the peer of each end that has data sends it once more. */
int mpy_tcp_give_back(const mpy_exchange_t *x, mpy_tcp_end_t *ends, int n);

#endif

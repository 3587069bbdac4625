/* One end of a pair of verbs programs: the TCP connection to the other end, the device, connected queue pairs. Any
 * error ends the program. */
#ifndef ENDPOINT_H
#define ENDPOINT_H

#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Print one line and end the program, from any thread. */
__attribute__((noreturn, format(printf, 1, 2))) static inline void fail(const char *format, ...) {
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    fflush(stdout);
    fprintf(stderr, "error: %s\n", line);
    _exit(1);
}

/* The server prints "listening" and waits for its one client. */
static inline int meet(const char *server, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (server) {
        if (inet_pton(AF_INET, server, &address.sin_addr) != 1)
            fail("not an address: %s", server);
        if (connect(fd, (struct sockaddr *)&address, sizeof address))
            fail("connect to %s, port %d: %s", server, port, strerror(errno));
    } else {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 1))
            fail("listen at port %d: %s", port, strerror(errno));
        puts("listening");
        int listener = fd;
        fd = accept(listener, NULL, NULL);
        if (fd < 0)
            fail("accept: %s", strerror(errno));
        close(listener);
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static inline void tell(int fd, const void *bytes, size_t length) {
    while (length) {
        ssize_t n = send(fd, bytes, length, MSG_NOSIGNAL);
        if (n <= 0)
            fail("the other side has gone");
        bytes = (const char *)bytes + n, length -= n;
    }
}

static inline void hear(int fd, void *bytes, size_t length) {
    while (length) {
        ssize_t n = recv(fd, bytes, length, 0);
        if (n <= 0)
            fail("the other side has gone");
        bytes = (char *)bytes + n, length -= n;
    }
}

/* Both sides send the same length. */
static inline void swap(int fd, const void *mine, void *theirs, size_t length) {
    tell(fd, mine, length);
    hear(fd, theirs, length);
}

static inline struct ibv_context *open_device(const char *name) {
    int n;
    struct ibv_device **list = ibv_get_device_list(&n);
    struct ibv_context *context = NULL;
    for (int i = 0; list && i < n; i++)
        if (!strcmp(ibv_get_device_name(list[i]), name) && !(context = ibv_open_device(list[i])))
            fail("open %s: %s", name, strerror(errno));
    if (!context)
        fail("there is no device %s", name);
    ibv_free_device_list(list);
    return context;
}

/* The address of the other side's queue pair. */
typedef struct {
    uint32_t number, psn;
    union ibv_gid gid;
    uint16_t lid;
    uint8_t mtu;
} address_t;

/* Options of the program. */
typedef struct {
    int gid_index, timeout, retry;
} link_t;

static inline void query_address(struct ibv_context *context, const link_t *link, address_t *mine) {
    struct ibv_port_attr port;
    if (ibv_query_port(context, 1, &port) || ibv_query_gid(context, 1, link->gid_index, &mine->gid))
        fail("query of port 1: %s", strerror(errno));
    mine->lid = port.lid, mine->mtu = port.active_mtu;
}

static inline void connect_pair(struct ibv_qp *qp, const link_t *link, const address_t *mine, const address_t *theirs) {
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT,
                               .port_num = 1,
                               .qp_access_flags =
                                   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = mine->mtu < theirs->mtu ? mine->mtu : theirs->mtu,
        .dest_qp_num = theirs->number,
        .rq_psn = theirs->psn,
        .max_dest_rd_atomic = 4,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1,
                    .dlid = theirs->lid,
                    .port_num = 1,
                    .grh = {.dgid = theirs->gid, .sgid_index = link->gid_index, .hop_limit = 1}},
    };
    struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS,
                              .timeout = link->timeout,
                              .retry_cnt = link->retry,
                              .rnr_retry = 7,
                              .sq_psn = mine->psn,
                              .max_rd_atomic = 4};
    int error = ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    error = error ? error
                  : ibv_modify_qp(qp, &rtr,
                                  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    error = error ? error
                  : ibv_modify_qp(qp, &rts,
                                  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                                      IBV_QP_MAX_QP_RD_ATOMIC);
    if (error)
        fail("connecting queue pair 0x%x: %s", qp->qp_num, strerror(error));
}

#endif

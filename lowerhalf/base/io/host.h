/* host.h - names and addresses of hosts. Header only; libc. */
#ifndef MANAPY_IO_HOST_H
#define MANAPY_IO_HOST_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MPY_HOST_NAME = 256 };

/* The name of this host. It is cut if it doesn't fit, and ends in zero bytes. */
static inline void mpy_hostname(char *name, size_t n) {
    memset(name, 0, n);
    gethostname(name, n - 1);
}

/* The address of this host that only itself can reach, with port 0. Returns its length. */
static inline socklen_t mpy_loopback(int domain, struct sockaddr_storage *out) {
    *out = (struct sockaddr_storage){.ss_family = (sa_family_t)domain};
    if (domain == AF_INET6) {
        ((struct sockaddr_in6 *)out)->sin6_addr = in6addr_loopback;
        return sizeof(struct sockaddr_in6);
    }
    ((struct sockaddr_in *)out)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return sizeof(struct sockaddr_in);
}

static inline bool mpy_is_loopback(const struct sockaddr *a) {
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

#endif

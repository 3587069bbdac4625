/* names.c - names of the ends of TCP connections: addresses and ports of IPv4 and IPv6 in one form.
 *
 * Lower half; libc allowed.
 */
#define _GNU_SOURCE
#include "tcp.h"

#include <manapy/fnv.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static const uint8_t v4_mapped[12] = {[10] = 0xff, [11] = 0xff};

mpy_tcp_name_t mpy_tcp_name(const struct sockaddr_storage *address) {
    mpy_tcp_name_t name = {0};
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;
    if (address->ss_family == AF_INET) {
        memcpy(name.address, v4_mapped, sizeof v4_mapped);
        memcpy(name.address + sizeof v4_mapped, &v4->sin_addr, 4);
        memcpy(name.port, &v4->sin_port, 2);
    } else {
        memcpy(name.address, &v6->sin6_addr, 16);
        memcpy(name.port, &v6->sin6_port, 2);
    }
    return name;
}

socklen_t mpy_tcp_address(const mpy_tcp_name_t *name, int domain, struct sockaddr_storage *out) {
    struct sockaddr_in *v4 = (struct sockaddr_in *)out;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
    *out = (struct sockaddr_storage){.ss_family = (sa_family_t)domain};
    if (domain == AF_INET) {
        memcpy(&v4->sin_addr, name->address + sizeof v4_mapped, 4);
        memcpy(&v4->sin_port, name->port, 2);
        return memcmp(name->address, v4_mapped, sizeof v4_mapped) ? 0 : sizeof *v4;
    }
    memcpy(&v6->sin6_addr, name->address, 16);
    memcpy(&v6->sin6_port, name->port, 2);
    return sizeof *v6;
}

bool mpy_tcp_is_loopback(const mpy_tcp_name_t *name) {
    static const uint8_t v6[16] = {[15] = 1};
    return !memcmp(name->address, v6, sizeof v6) ||
           (!memcmp(name->address, v4_mapped, sizeof v4_mapped) && name->address[sizeof v4_mapped] == 127);
}

uint64_t mpy_tcp_network(void) {
    struct stat st = {0};
    char boot[40] = "";
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f && !fgets(boot, sizeof boot, f))
        boot[0] = 0;
    if (f)
        fclose(f);
    stat("/proc/self/ns/net", &st);
    return mpy_fnv1a_more(mpy_fnv1a(boot, strlen(boot)), &st.st_ino, sizeof st.st_ino);
}

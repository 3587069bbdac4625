/* node.c - the agent of a node (manapy/ckpt/node): it connects the ranks of a host that isn't rank 0's to the
 * coordinator. Lower half; libc; still one thread.
 *
 * Invariants
 *  1. A node has one agent: the rank that can bind the socket's name starts it. The name belongs to the network of this
 *     host, needs no file, and is free again when the agent ends.
 *  2. The name can't be guessed without the job's secret, and is another one for each run of a job.
 *  3. As with the coordinator, no rank waits for the agent's interpreter (rendezvous.c).
 */
#define _GNU_SOURCE
#include "node.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/hex.h"
#include "base/io/host.h"
#include "base/reason.h"
#include "base/sha256.h"
#include "command.h"
#include "isolate/fdguard.h"
#include "wire/wire.h"

/* Does this host have the address? Then the process may bind it. */
static bool is_here(const char *host) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST}, *list = NULL;
    if (getaddrinfo(host, "0", &hints, &list) != 0) return true; /* not a number: connect to it directly */
    int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool here = fd < 0 || bind(fd, list->ai_addr, list->ai_addrlen) == 0;
    if (fd >= 0) close(fd);
    freeaddrinfo(list);
    return here;
}

bool mpy_node_needs_agent(const mpy_job_t *job) { return job->local_size < job->size && !is_here(job->host); }

void mpy_node_name(const mpy_job_t *job, char name[MPY_NODE_NAME]) {
    char text[320];
    uint8_t digest[MPY_SHA256_BYTES];
    mpy_hmac_t mac;
    int length = snprintf(text, sizeof text, "node %s %d", job->host, job->port);
    mpy_hmac_init(&mac, job->secret, sizeof job->secret);
    mpy_hmac_update(&mac, text, (size_t)length);
    mpy_hmac_final(&mac, digest);
    strcpy(name, "manapy-");
    mpy_hex(digest, 16, name + strlen(name));
    name[strlen("manapy-") + 32] = '\0';
}

static bool start_agent(const mpy_job_t *job, int listener, char *error, size_t n) {
    char path[PATH_MAX], log_path[PATH_MAX], port[16], host[MPY_HOST_NAME];
    if (!mpy_command_path(path, error, n)) return false;
    mpy_hostname(host, sizeof host);
    snprintf(log_path, sizeof log_path, "%s/node-%s.log", job->dir, host);
    snprintf(port, sizeof port, "%d", job->port);
    const char *argv[] = {path, "_node", "--dir", job->dir, "--fd", "3", "--host", job->host, "--port", port, NULL};
    return mpy_command_detach((char *const *)argv, log_path, &listener, 1, error, n);
}

bool mpy_node_join(mpy_job_t *job, char *error, size_t n) {
    job->through_agent = mpy_node_needs_agent(job);
    if (!job->through_agent) return true;
    char name[MPY_NODE_NAME];
    mpy_node_name(job, name);
    int listener = mpy_wire_listen_local(name);
    if (listener < 0 && errno == EADDRINUSE) return true; /* another rank has been faster */
    if (listener < 0) return mpy_refuse(error, n, "cannot open the socket of this node's agent: %s", strerror(errno));
    bool ok = start_agent(job, listener, error, n);
    mpy_fd_close(listener);
    return ok;
}

/* kv.h - the client of the host's key-value agent (manapy/rdma), through which both ends of a connection learn each
 * other's backup attributes.
 *
 * Only the background thread of an RNIC calls this, never a thread of the program. Every call ends within its timeout.
 * An agent that does not run, or ends, is an error of the call, not of the traffic: the next call connects again.
 * Protocol: one line per request and per answer over a UNIX-domain stream socket (kv_protocol.h). Keys are printable
 * ASCII without blanks, values are bytes (hexadecimal on the wire).
 *
 * If the agent ends and another one is started, keys that were put are put again, even if the call that put them has
 * failed. So a key sooner or later has the value of the last call of shift_kv_put or shift_kv_note for it. It
 * disappears when the process ends or with shift_kv_close; also 30 s after the connection was lost, if nobody calls
 * shift_kv_connect. After a timeout calls fail at once (-ETIMEDOUT), without waiting, for a second or until the agent
 * sends something. One thread at a time may use a handle. In a forked child every call fails (-ECHILD).
 */
#ifndef MANAPY_RDMA_KV_H
#define MANAPY_RDMA_KV_H

#include <stddef.h>
#include <stdint.h>

enum {
    SHIFT_KV_KEY_MAX = 255, /* characters */
    SHIFT_KV_VALUE = 256,   /* bytes of the longest value */
    SHIFT_KV_BATCH = 64,    /* keys in one request */
};

/* A query and its answer. */
typedef struct shift_kv_found {
    char key[SHIFT_KV_KEY_MAX + 1];
    uint8_t value[SHIFT_KV_VALUE];
    uint32_t size; /* 0: the key does not exist (yet) */
} shift_kv_found_t;

typedef struct shift_kv shift_kv_t;

/* The agent's socket and the job's secret come from MANAPY_SHIFT_AGENT (path of the socket; the file PATH.secret beside
 * it, 0600, holds the secret) and MANAPY_SHIFT_JOB (name; different jobs never share keys). Returns NULL with errno if
 * MANAPY_SHIFT_AGENT is unset (ENOENT) or there is no memory. Does not connect yet. */
shift_kv_t *shift_kv_open(void);
void shift_kv_close(shift_kv_t *kv);

/* Longest time of a call in ms; initially 2000. */
void shift_kv_set_timeout(shift_kv_t *kv, int ms);

/* Call it every few seconds while shift_kv_fd() is -1: connects, and puts again what the agent has lost. Returns 0 or
 * -errno. */
int shift_kv_connect(shift_kv_t *kv);

/* Returns 0, or -errno: -ECONNREFUSED (no agent), -ECONNRESET (the agent has just ended), -ETIMEDOUT, -EACCES (the
 * secret was refused, or the agent serves another job), -EHOSTUNREACH (the agent can't reach its store), -EINVAL,
 * -EMSGSIZE. shift_kv_reason() describes the last error in one line. */
int shift_kv_put(shift_kv_t *kv, const char *key, const void *value, size_t n);
/* The same for many keys. note only records the key (0, -EINVAL, -EMSGSIZE or -ENOMEM), and never waits. Each flush
 * then sends up to SHIFT_KV_BATCH of the recorded keys to the agent. It returns the number of keys left, or -errno. */
/* n = 0: delete it, if this handle has put it */
int shift_kv_note(shift_kv_t *kv, const char *key, const void *value, size_t n);
int shift_kv_flush(shift_kv_t *kv);
/* Queries up to SHIFT_KV_BATCH keys at once. Returns 0 or -errno. */
int shift_kv_find(shift_kv_t *kv, shift_kv_found_t *asked, int n);
/* Returns the length of the value, 0 if there is none (yet), or -errno. */
int shift_kv_get(shift_kv_t *kv, const char *key, void *value, size_t room);

const char *shift_kv_reason(const shift_kv_t *kv);

/* Reports an event to the agent (one line of JSON, an object or a list of them, no newline). Returns 0 or -errno. */
int shift_kv_event(shift_kv_t *kv, const char *json);

/* The connection's descriptor for poll, or -1 while unconnected. If it is readable outside a call, the agent has sent a
 * command or has ended: call shift_kv_command until it returns 0 or less. Do this after other calls, too, because they
 * may have read a command. */
int shift_kv_fd(shift_kv_t *kv);
/* Reads the next command line of the agent ("MOVE <qp number or *> <device>") into line. Returns its length, 0 if there
 * is none, or -errno. Never waits. */
int shift_kv_command(shift_kv_t *kv, char *line, size_t room);

#endif

/* kv.h - the client of the host's key-value agent (`manapy rdma agent`), through which both ends of a connection learn
 * each other's backup attributes.
 *
 * Only the background thread of an RNIC calls this, never a thread of the program; every call ends within its timeout.
 * An agent that is not there, or dies, is an error of the call, not of the traffic: the next call connects again.
 * Protocol: one line per request and per answer over a UNIX-domain stream socket (kv_protocol.h); keys are printable
 * ASCII without blanks, values are bytes (hexadecimal on the wire).
 *
 * What was put is put again after the agent has died and another one was started, also if the call that put it has
 * failed: a key is what the last call of shift_kv_put or shift_kv_note has said of it, sooner or later. It vanishes
 * with the process or shift_kv_close, or 30 s after the connection was lost if nobody calls shift_kv_connect. After a
 * timeout calls fail at once (-ETIMEDOUT), without waiting, for a second or until the agent shows signs of life. One
 * thread at a time may use a handle. In a forked child every call fails (-ECHILD).
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

/* A question and its answer. */
typedef struct shift_kv_found {
    char key[SHIFT_KV_KEY_MAX + 1];
    uint8_t value[SHIFT_KV_VALUE];
    uint32_t size; /* 0: there is none (yet) */
} shift_kv_found_t;

typedef struct shift_kv shift_kv_t;

/* The agent's socket and the job's secret come from MANAPY_SHIFT_AGENT (path of the socket; the file PATH.secret beside
 * it, 0600, holds the secret) and MANAPY_SHIFT_JOB (name; keys of different jobs never meet). NULL with errno when
 * MANAPY_SHIFT_AGENT is unset (ENOENT) or memory is short. Does not connect yet. */
shift_kv_t *shift_kv_open(void);
void shift_kv_close(shift_kv_t *kv);

/* Longest time of a call in ms; 2000 at first. */
void shift_kv_set_timeout(shift_kv_t *kv, int ms);

/* To be called every few seconds while shift_kv_fd() is -1: connects, and puts again what the agent lost. 0 or -errno.
 */
int shift_kv_connect(shift_kv_t *kv);

/* 0, or -errno: -ECONNREFUSED (no agent), -ECONNRESET (it has just died), -ETIMEDOUT, -EACCES (the secret was refused,
 * or it serves another job), -EHOSTUNREACH (the agent can't reach its store), -EINVAL, -EMSGSIZE. shift_kv_reason() has
 * a line for a person on the last one. */
int shift_kv_put(shift_kv_t *kv, const char *key, const void *value, size_t n);
/* The same for many keys: these only note it (0, -EINVAL, -EMSGSIZE or -ENOMEM), and never wait; then each flush brings
 * up to SHIFT_KV_BATCH of what was noted to the agent. How many are left, or -errno. */
/* n = 0: delete it, if this handle has put it */
int shift_kv_note(shift_kv_t *kv, const char *key, const void *value, size_t n);
int shift_kv_flush(shift_kv_t *kv);
/* Asks for up to SHIFT_KV_BATCH keys at once. 0 or -errno. */
int shift_kv_find(shift_kv_t *kv, shift_kv_found_t *asked, int n);
/* Length of the value, 0 when there is none (yet), or -errno. */
int shift_kv_get(shift_kv_t *kv, const char *key, void *value, size_t room);

const char *shift_kv_reason(const shift_kv_t *kv);

/* Tell the agent that something happened (one line of JSON, an object or a list of them, no newline); 0 or -errno. */
int shift_kv_event(shift_kv_t *kv, const char *json);

/* The connection's descriptor for poll, -1 while unconnected; a readable descriptor outside a call means a command of
 * the agent's, or its end: call shift_kv_command until it returns 0 or less. Also after other calls, which may have
 * read a command by the way. */
int shift_kv_fd(shift_kv_t *kv);
/* Next command line of the agent ("MOVE <qp number or *> <device>"), into line: its length, 0 when none is there, or
 * -errno. Never waits. */
int shift_kv_command(shift_kv_t *kv, char *line, size_t room);

#endif

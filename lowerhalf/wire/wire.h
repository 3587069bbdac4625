/* wire.h - see wire.c. */
#ifndef MANAPY_WIRE_H
#define MANAPY_WIRE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <manapy/control.h>

/* A string that grows. `data` is always terminated; it is NULL if nothing was ever added. */
typedef struct mpy_text {
    char *data;
    size_t length, capacity;
} mpy_text_t;

void mpy_text_clear(mpy_text_t *t);
void mpy_text_free(mpy_text_t *t);
void mpy_text_add(mpy_text_t *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void mpy_text_add_bytes(mpy_text_t *t, const char *s, size_t n);
void mpy_text_add_encoded(mpy_text_t *t, const char *s); /* as a field of a protocol line */
void mpy_text_add_json(mpy_text_t *t, const char *s);    /* as a JSON string with its quotes */
void mpy_text_add_hex(mpy_text_t *t, const void *data, size_t n);

/* Decodes a field in place; false if it isn't well-formed. */
bool mpy_wire_decode(char *field);
bool mpy_hex_decode(const char *hex, void *out, size_t n); /* exactly 2n digits */

typedef struct mpy_wire {
    int fd;
    char *buffer;
    size_t capacity, start, end;
    bool closed;   /* end of file, error, a line longer than MPY_LINE_MAX, or a line with a wrong seal */
    bool mute;     /* nothing can be sent any more. What has arrived is still read; then it is closed */
    bool sealed;   /* since the handshake, but over a network only: every line carries its seal (control.h) */
    bool tampered; /* closed because of a wrong seal */
    uint8_t key[MPY_SECRET_BYTES]; /* of this connection */
    uint64_t sent, received;       /* number of sealed lines */
    mpy_text_t out;                /* lines with their seals */
} mpy_wire_t;

void mpy_wire_open(mpy_wire_t *w, int fd);
void mpy_wire_close(mpy_wire_t *w);
/* Reads what has arrived. Waits up to timeout_ms (-1: no limit) until something arrives. */
void mpy_wire_fill(mpy_wire_t *w, int timeout_ms);
/* Next complete line without its newline and its seal, or NULL. Valid until the next fill. */
char *mpy_wire_line(mpy_wire_t *w);
/* The same, but waits for the line. */
char *mpy_wire_wait_line(mpy_wire_t *w, int timeout_ms);
/* Sends lines, separated by newlines. Adds the last newline, and the seals. False if they cannot be sent. */
bool mpy_wire_send(mpy_wire_t *w, const char *lines, size_t length);

/* The client's half of the handshake of control.h. After it lines over a network are sealed. */
bool mpy_wire_authenticate(mpy_wire_t *w, const char *role, const uint8_t secret[MPY_SECRET_BYTES], int timeout_ms,
                           char *error, size_t n);
/* Connects to a numeric or resolvable address. The descriptor belongs to the lower half. -1 with errno. */
int mpy_wire_connect(const char *host, int port, int timeout_ms);
/* The same for a Unix socket with a name in the abstract name space. */
int mpy_wire_connect_local(const char *name);
/* Opens such a socket for connections. -1 with errno; EADDRINUSE: another process has the name. */
int mpy_wire_listen_local(const char *name);
/* Reads DIR/secret, if no other user can have written it. False: errno, or 0 if what is there is no secret. */
bool mpy_secret_read(const char *dir, uint8_t secret[MPY_SECRET_BYTES], char *error, size_t n);

/* Splits off the next blank-separated field of *line. NULL at the end. */
char *mpy_field(char **line);
/* The next field as a decimal number; 0 if there is none. */
uint64_t mpy_field_number(char **line);

#endif

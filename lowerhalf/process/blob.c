/* blob.c - see blob.h. */
#include "blob.h"

#include <stdlib.h>
#include <string.h>

void mpy_blob_init(mpy_blob_t *b) {
    *b = (mpy_blob_t){0};
}

void mpy_blob_free(mpy_blob_t *b) {
    free(b->data);
    *b = (mpy_blob_t){0};
}

void *mpy_blob_extend(mpy_blob_t *b, size_t n) {
    if (b->failed)
        return NULL;
    if (n > b->room - b->bytes) {
        size_t room = b->room ? b->room : 4096;
        while (room - b->bytes < n) {
            if (room > SIZE_MAX / 2) {
                b->failed = 1;
                return NULL;
            }
            room *= 2;
        }
        uint8_t *data = realloc(b->data, room);
        if (!data) {
            b->failed = 1;
            return NULL;
        }
        b->data = data;
        b->room = room;
    }
    void *p = b->data + b->bytes;
    b->bytes += n;
    return p;
}

int mpy_blob_reserve(mpy_blob_t *b, size_t n) {
    if (b->failed)
        return -1;
    if (mpy_blob_extend(b, n)) {
        b->bytes -= n;
        return 0;
    }
    b->failed = 0;
    return -1;
}

static void put(mpy_blob_t *b, const void *p, size_t n) {
    void *to = mpy_blob_extend(b, n);
    if (to && n)
        memcpy(to, p, n);
}

void mpy_blob_put_u32(mpy_blob_t *b, uint32_t v) {
    put(b, &v, sizeof v);
}

void mpy_blob_put_u64(mpy_blob_t *b, uint64_t v) {
    put(b, &v, sizeof v);
}

void mpy_blob_put_i64(mpy_blob_t *b, int64_t v) {
    put(b, &v, sizeof v);
}

void mpy_blob_put_bytes(mpy_blob_t *b, const void *p, size_t n) {
    mpy_blob_put_u64(b, n);
    put(b, p, n);
}

void mpy_blob_put_string(mpy_blob_t *b, const char *s) {
    mpy_blob_put_bytes(b, s, strlen(s) + 1);
}

void mpy_blob_set_u32(mpy_blob_t *b, size_t at, uint32_t v) {
    if (!b->failed && at + sizeof v <= b->bytes)
        memcpy(b->data + at, &v, sizeof v);
}

void mpy_reader_init(mpy_reader_t *r, const void *data, size_t bytes) {
    *r = (mpy_reader_t){.data = data, .bytes = bytes};
}

static const uint8_t *take(mpy_reader_t *r, size_t n) {
    if (r->failed || n > r->bytes - r->at) {
        r->failed = 1;
        return NULL;
    }
    const uint8_t *p = r->data + r->at;
    r->at += n;
    return p;
}

uint32_t mpy_reader_u32(mpy_reader_t *r) {
    uint32_t v = 0;
    const uint8_t *p = take(r, sizeof v);
    if (p)
        memcpy(&v, p, sizeof v);
    return v;
}

uint64_t mpy_reader_u64(mpy_reader_t *r) {
    uint64_t v = 0;
    const uint8_t *p = take(r, sizeof v);
    if (p)
        memcpy(&v, p, sizeof v);
    return v;
}

int64_t mpy_reader_i64(mpy_reader_t *r) {
    return (int64_t)mpy_reader_u64(r);
}

const void *mpy_reader_bytes(mpy_reader_t *r, size_t *n) {
    uint64_t bytes = mpy_reader_u64(r);
    const void *p = take(r, bytes);
    *n = p ? bytes : 0;
    return p;
}

const char *mpy_reader_string(mpy_reader_t *r) {
    size_t n;
    const char *s = mpy_reader_bytes(r, &n);
    if (!s || !n || memchr(s, 0, n) != s + n - 1) {
        r->failed = 1;
        return "";
    }
    return s;
}

mpy_reader_t mpy_reader_sub(mpy_reader_t *r) {
    mpy_reader_t sub;
    size_t n;
    const void *p = mpy_reader_bytes(r, &n);
    mpy_reader_init(&sub, p, n);
    sub.failed = !p;
    return sub;
}

uint32_t mpy_reader_count(mpy_reader_t *r, size_t least) {
    uint32_t n = mpy_reader_u32(r);
    if (r->failed || n > (r->bytes - r->at) / least) {
        r->failed = 1;
        return 0;
    }
    return n;
}

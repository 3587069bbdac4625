/* The kind and the bytes of a message. Both sides compute them from its number alone; see stamps.c. Does not use
 * verbs. */
#ifndef STAMP_H
#define STAMP_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { MAX_PIECES = 4, PIECE_GAP = 16, FLAG_SIZE = 8 };
enum { SCRUBBED = 0xee };

/* SEND; SEND with immediate data; WRITEs and a WRITE with immediate data; WRITEs and a flag after them; READ of data
 * that the peer has stamped. */
typedef enum { KIND_SEND, KIND_IMM, KIND_WRITE, KIND_FLAG, KIND_READ, KINDS } kind_t;

static const char *const kind_names[KINDS] = {"send", "imm", "write", "flag", "read"};

typedef struct {
    kind_t kind;
    uint32_t length;
    uint32_t pieces;               /* of the scatter list, at least 1 */
    uint32_t piece[MAX_PIECES];    /* their lengths */
    uint32_t parts;                /* work requests that carry data: consecutive pieces; more than 1 only for writes */
    uint32_t part[MAX_PIECES + 1]; /* first piece of each, and `pieces` */
    uint32_t inline_bit;           /* inline data where it is short enough */
    uint32_t empty_end_bit;        /* the immediate data come with no data of their own */
    uint64_t stamp;                /* the source of the bytes */
} message_t;

/* The kinds to choose from, the size of the longest message, the seed. */
typedef struct {
    kind_t kinds[KINDS];
    uint32_t n_kinds, size, max_pieces;
    uint64_t seed;
} plan_t;

static inline uint64_t dice(uint64_t x) { /* splitmix64's finalizer */
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

static inline uint64_t stamp_of(const plan_t *plan, int side, int pair, uint64_t number) {
    return dice(dice(plan->seed * 2 + side) + ((uint64_t)pair << 40) + number);
}

static inline kind_t kind_of(const plan_t *plan, int side, int pair, uint64_t number) {
    return plan->kinds[stamp_of(plan, side, pair, number) % plan->n_kinds];
}

/* Cuts a length into pieces of at least one byte. */
static inline uint32_t cut(uint64_t random, uint32_t length, uint32_t max_pieces, uint32_t *piece) {
    uint32_t pieces = 1 + random % max_pieces, left = length;
    if (length < 4 * MAX_PIECES)
        pieces = 1;
    for (uint32_t i = 0; i + 1 < pieces; i++, left -= piece[i - 1])
        piece[i] = 1 + dice(random + i) % (left - (pieces - i - 1));
    piece[pieces - 1] = left;
    return pieces;
}

static inline message_t message_of(const plan_t *plan, int side, int pair, uint64_t number) {
    message_t m = {.stamp = stamp_of(plan, side, pair, number), .kind = kind_of(plan, side, pair, number)};
    uint64_t random = dice(m.stamp);
    uint32_t bits = 0;
    while ((1u << bits) < plan->size)
        bits++;
    /* short ones are as frequent as long ones */
    m.length = 1 + (uint32_t)(random >> 8) % (1u << (random % (bits + 1)));
    if (m.length > plan->size)
        m.length = plan->size;
    random = dice(random);
    m.pieces = cut(random, m.length, plan->max_pieces, m.piece);
    m.parts = 1;
    if (m.kind == KIND_WRITE || m.kind == KIND_FLAG)
        for (uint32_t i = 1; i < m.pieces; i++)
            if (random >> (32 + i) & 1)
                m.part[m.parts++] = i;
    m.part[m.parts] = m.pieces;
    m.inline_bit = random >> 40 & 1, m.empty_end_bit = random >> 41 & 1;
    return m;
}

/* never 0 */
static inline uint8_t stamp_byte(uint64_t stamp, uint64_t offset) {
    return (uint8_t)((dice(stamp + offset / 8) >> (offset % 8 * 8)) | 1);
}

static inline void stamp_bytes(uint8_t *to, uint64_t stamp, uint64_t offset, uint64_t length) {
    while (length) {
        uint64_t in_word = offset % 8, n = 8 - in_word < length ? 8 - in_word : length,
                 word = dice(stamp + offset / 8) | 0x0101010101010101;
        memcpy(to, (uint8_t *)&word + in_word, n);
        to += n, offset += n, length -= n;
    }
}

/* Offset of the first byte that is not the stamp's; -1 if all are. */
static inline int64_t stamp_check(const uint8_t *bytes, uint64_t stamp, uint64_t offset, uint64_t length) {
    for (uint64_t at = 0; at < length;) {
        uint64_t in_word = (offset + at) % 8, n = 8 - in_word < length - at ? 8 - in_word : length - at;
        uint64_t word = dice(stamp + (offset + at) / 8) | 0x0101010101010101;
        if (memcmp(bytes + at, (uint8_t *)&word + in_word, n)) {
            while (bytes[at] == stamp_byte(stamp, offset + at))
                at++;
            return (int64_t)at;
        }
        at += n;
    }
    return -1;
}

/* Offset of the first byte that is not 0; -1 if all are. */
static inline int64_t zero_check(const uint8_t *bytes, uint64_t length) {
    if (!length || (!bytes[0] && !memcmp(bytes, bytes + 1, length - 1)))
        return -1;
    uint64_t at = 0;
    while (!bytes[at])
        at++;
    return (int64_t)at;
}

#endif

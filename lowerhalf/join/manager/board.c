/* board.c - texts that ranks show each other, through the process manager's key-value space. Lower half; libc; still
 * one thread.
 *
 * Values there are short words. So a text is put as hexadecimal digits, in parts: manapy-NAME-0, manapy-NAME-1 ...
 *
 * Invariants
 *  1. The number of parts precedes the first part.
 *  2. No name is put twice: some process managers refuse that.
 */
#include "board.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/reason.h"
#include "wire/wire.h"

enum { PARTS_MAX = 8, NAME_MAX_BYTES = 64, VALUE_MAX_BYTES = 1024 };

static void key_of(char key[NAME_MAX_BYTES], const char *name, size_t part) {
    snprintf(key, NAME_MAX_BYTES, "manapy-%s-%zu", name, part);
}

bool mpy_board_put(mpy_pmi_t *pmi, const char *name, const char *text, char *error, size_t n) {
    mpy_text_t hex = {0};
    mpy_text_add_hex(&hex, text, strlen(text));
    size_t part = pmi->value_max - 4, parts = (hex.length + part - 1) / part;
    bool ok = parts <= PARTS_MAX;
    if (!ok) mpy_reason(error, n, "a path is too long for the process manager: %s", text);
    for (size_t i = 0; ok && i < parts; i++) {
        char key[NAME_MAX_BYTES], value[VALUE_MAX_BYTES];
        int head = i == 0 ? snprintf(value, sizeof value, "%zu:", parts) : 0;
        snprintf(value + head, sizeof value - (size_t)head, "%.*s", (int)part, hex.data + i * part);
        key_of(key, name, i);
        ok = mpy_pmi_put(pmi, key, value, error, n);
    }
    mpy_text_free(&hex);
    return ok;
}

bool mpy_board_get(mpy_pmi_t *pmi, int from, const char *name, char *text, size_t size, char *error, size_t n) {
    mpy_text_t hex = {0};
    size_t parts = 1;
    bool ok = true;
    mpy_text_clear(&hex);
    for (size_t i = 0; ok && i < parts; i++) {
        char key[NAME_MAX_BYTES], value[VALUE_MAX_BYTES], *digits = value;
        key_of(key, name, i);
        ok = mpy_pmi_get(pmi, from, key, value, sizeof value, error, n);
        if (ok && i == 0) parts = strtoul(value, &digits, 10), digits++;
        if (ok) mpy_text_add(&hex, "%s", digits);
    }
    if (ok && (hex.length / 2 >= size || !mpy_hex_decode(hex.data, text, hex.length / 2))) {
        mpy_reason(error, n, "the data that rank %d has published is unreadable", from);
        ok = false;
    }
    if (ok) text[hex.length / 2] = '\0';
    mpy_text_free(&hex);
    return ok;
}

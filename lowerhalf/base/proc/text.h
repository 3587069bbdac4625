/* text.h - reads small files of /proc and of cgroups (proc(5)), and numbers in them. Header only; libc. */
#ifndef MANAPY_PROC_TEXT_H
#define MANAPY_PROC_TEXT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The content of a file, for free(3), or NULL. Two zero bytes follow it. Its length goes to *bytes, which may be
 * NULL. */
static inline char *mpy_proc_text(const char *path, size_t *bytes) {
    size_t room = 4096, length = 0, got = 0;
    FILE *file = fopen(path, "re");
    char *text = file ? malloc(room) : NULL;
    while (text && (got = fread(text + length, 1, room - 2 - length, file)) > 0) {
        length += got;
        if (length < room - 2) continue;
        char *more = realloc(text, room *= 2);
        if (!more) free(text);
        text = more;
    }
    if (file) fclose(file);
    if (text) text[length] = text[length + 1] = 0;
    if (bytes) *bytes = text ? length : 0;
    return text;
}

/* The number behind a name at the beginning of a line, such as "Umask:". An empty name: the first number of the text.
 * False: there is none; *value keeps its value. */
static inline bool mpy_text_number(const char *text, const char *name, int base, uint64_t *value) {
    const size_t length = strlen(name);
    for (const char *line = text; line; line = strchr(line, '\n'), line += line != NULL) {
        char *end = NULL;
        uint64_t number = strncmp(line, name, length) ? 0 : strtoull(line + length, &end, base);
        if (!end || end == line + length) continue;
        *value = number;
        return true;
    }
    return false;
}

/* The same in a file. */
static inline bool mpy_proc_number(const char *path, const char *name, int base, uint64_t *value) {
    char *text = mpy_proc_text(path, NULL);
    bool found = text && mpy_text_number(text, name, base, value);
    free(text);
    return found;
}

#endif

/* numbers.h - numbers in files of /proc and of cgroups (proc(5)). Header only; libc. */
#ifndef MANAPY_PROC_NUMBERS_H
#define MANAPY_PROC_NUMBERS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads the number behind a name at the beginning of a line, such as "Umask:" in /proc/self/status. An empty name: the
 * first number of the file. False: there is none; *value keeps its value. */
static inline bool mpy_proc_number(const char *path, const char *name, int base, uint64_t *value) {
    char line[256], *end;
    bool found = false;
    FILE *file = fopen(path, "re");
    while (file && !found && fgets(line, sizeof line, file)) {
        if (strncmp(line, name, strlen(name))) continue;
        const char *text = line + strlen(name);
        uint64_t number = strtoull(text, &end, base);
        found = end != text;
        if (found) *value = number;
    }
    if (file) fclose(file);
    return found;
}

#endif

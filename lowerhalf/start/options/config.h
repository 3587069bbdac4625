/* config.h - see config.c. */
#ifndef MANAPY_CONFIG_H
#define MANAPY_CONFIG_H
#include <stdbool.h>
#include <stddef.h>

typedef struct mpy_config_entry {
    const char *key, *text; /* `text` is never freed */
    bool is_truth;          /* true or false, without quotation marks */
    const char *file;       /* the same pointer for all entries of a file */
    bool is_jobs;           /* of the job's file */
} mpy_config_entry_t;

typedef bool mpy_config_take_t(const mpy_config_entry_t *entry, char *error, size_t n);

/* Give `take` each entry of a table (`[launch]`), from the site's file to the job's: a later one replaces an earlier
 * one. False with one line in `error`, also if `take` returns false. */
bool mpy_config_read(const char *table, mpy_config_take_t *take, char *error, size_t n);
#endif

/* maps.h - see maps.c. */
#ifndef MANAPY_MAPS_H
#define MANAPY_MAPS_H
#include "isolate/trap/trap.h"
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct mpy_map {
    uint64_t lo, hi, offset;
    uint64_t device, inode;
    uint32_t prot;
    int shared;
    int deleted;     /* the file has been unlinked */
    uint32_t advice; /* MPY_REGION_* of manapy/image.h, after mpy_maps_advice */
    char *path;      /* "" for anonymous memory */
} mpy_map_t;

/* Reads the upper half's mappings, ascending. Returns their number, or -1 with one line in `error`. */
long mpy_maps_read(mpy_map_t **out, char *error, size_t n);
/* Adds the program's advice about them. The kernel walks through every page, so it takes long, unless the advice is
 * known. It may be called in a process that was forked afterwards. Returns -1 with errno if they can't be read. */
int mpy_maps_advice(mpy_map_t *maps, long count);
int mpy_maps_advice_is_known(void);
/* While the program runs: learns its advice. It is known until the program changes its mappings, or gives advice. */
void mpy_maps_learn_advice(void);
/* Is it of huge pages (hugetlbfs) without a file? */
static inline int mpy_map_is_anonymous_huge(const mpy_map_t *m) {
    return m->deleted && !strcmp(m->path, "/anon_hugepage");
}
/* Is it private memory of huge pages (hugetlbfs), or may it be? */
int mpy_map_is_private_huge(const mpy_map_t *m);
void mpy_maps_free(mpy_map_t *maps, long count);
/* Returns -1 with one line in `error` if something that mpy_maps_read has just found can't be saved (for example device
 * memory). */
int mpy_maps_judge(const mpy_map_t *maps, long count, char *error, size_t n);
/* The same for the mappings of now. */
int mpy_maps_check(char *error, size_t n);

/* The system calls in code that is mapped now below 4 GiB. */
int mpy_maps_low_calls(mpy_low_calls_t *out, char *error, size_t n);
#endif

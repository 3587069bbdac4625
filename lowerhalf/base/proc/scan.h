/* scan.h - PAGEMAP_SCAN of /proc/PID/pagemap: an ioctl(2) that finds pages by what they are (Linux 6.7; elsewhere it
 * fails). From linux/fs.h, because the headers of the system may be older. */
#ifndef MANAPY_SCAN_H
#define MANAPY_SCAN_H

#include <stdint.h>
#include <sys/ioctl.h>

typedef struct mpy_scanned { uint64_t start, end, categories; } mpy_scanned_t; /* struct page_region */

typedef struct mpy_scan { /* struct pm_scan_arg */
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
    uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
} mpy_scan_t;

#define MPY_SCAN _IOWR('f', 16, mpy_scan_t)
enum { MPY_SCAN_WP_MATCHING = 1 }; /* flags */
enum { MPY_SCAN_WATCHED = 1, MPY_SCAN_WRITTEN = 2, MPY_SCAN_PRESENT = 8, MPY_SCAN_SWAPPED = 16 }; /* categories */

#endif

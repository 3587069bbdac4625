/* advice.h - see advice.c. */
#ifndef MANAPY_ADVICE_H
#define MANAPY_ADVICE_H
#include <manapy/image.h>

uint32_t mpy_advice_flags(const char *vmflags);     /* MPY_REGION_* from a line of /proc/PID/smaps */
void mpy_advice_policy(mpy_image_region_t *r);      /* fills in the NUMA policy of the memory at r->lo */
/* Call it when the region is mapped but has no pages yet: applies advice that decides how and where pages are
 * allocated. */
void mpy_advice_place(const mpy_image_region_t *r);
void mpy_advice_apply(const mpy_image_region_t *r); /* all other advice; the content must be in place */
void mpy_advice_future(void);                       /* mlockall for memory that the program will map later */
#endif

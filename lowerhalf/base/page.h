/* page.h - the page of x86-64. Header only; no libc. */
#ifndef MANAPY_PAGE_H
#define MANAPY_PAGE_H

#define MPY_PAGE 4096ul
#define MPY_PAGE_DOWN(x) ((x) & ~(MPY_PAGE - 1))
#define MPY_PAGE_UP(x) MPY_PAGE_DOWN((x) + MPY_PAGE - 1)

#endif

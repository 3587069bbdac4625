/* vdso.h - see vdso.c. */
#ifndef MANAPY_VDSO_H
#define MANAPY_VDSO_H
#include <stdint.h>
uint64_t mpy_vdso_install(void); /* builds the proxy; returns its address for AT_SYSINFO_EHDR */
void mpy_vdso_refill(void);      /* makes it use this process's kernel vDSO (again) */
#endif

/* vdso.h - see vdso.c. */
#ifndef MANAPY_VDSO_H
#define MANAPY_VDSO_H
#include <stdint.h>
uint64_t mpy_vdso_install(void); /* build the proxy; returns its address for AT_SYSINFO_EHDR */
void mpy_vdso_refill(void);      /* (again) point it at this process's kernel vDSO */
#endif

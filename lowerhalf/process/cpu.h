/* cpu.h - properties of the CPU that the program may have detected and may rely on (function variants that libc,
 * OpenBLAS or numpy selected; the layout of extended state in signal frames). Lower half; libc allowed.
 *
 * Words of the record (image.h, cpu_features):
 *   0  CPUID 1        ecx | edx << 32
 *   1  CPUID 7.0      ebx | ecx << 32
 *   2  CPUID 7.0 edx  | 7.1 eax << 32
 *   3  CPUID 0xd.1 eax| 7.1 edx << 32
 *   4  CPUID 0x80000001 ecx | edx << 32
 *   5  XCR0: extended state that the kernel has enabled
 *   6  offsets in the XSAVE area of AVX, opmask, ZMM_Hi256, Hi16_ZMM   (16 bits each; 0: absent)
 *   7  the same for PKRU, AMX tile configuration, AMX tiles
 */
#ifndef MANAPY_STATE_CPU_H
#define MANAPY_STATE_CPU_H

#include <stddef.h>
#include <stdint.h>
#include <ucontext.h>

void mpy_cpu_features(uint64_t features[8]);
/* Bytes of the XSAVE area for the state that is enabled. */
uint64_t mpy_cpu_xsave_bytes(void);
/* Returns 0 if this CPU has all that `saved` has. Otherwise returns -1; the message names the first missing
 * features. */
int mpy_cpu_check(const uint64_t saved[8], uint64_t saved_xsave_bytes, char *err, size_t n);
/* The comparison itself, for any two records. */
int mpy_cpu_compare(const uint64_t saved[8], uint64_t saved_xsave_bytes, const uint64_t here[8],
                    uint64_t here_xsave_bytes, char *err, size_t n);

/* A new thread is about to return through a signal frame of an old one. The process has the same permissions to use
 * extended state (process.c). Calls nothing and needs no TLS. */
void mpy_cpu_expect_frame(const ucontext_t *frame);

#endif

/* cpu.c - see cpu.h. Only features that user code can see and use are compared: the table below names them; bits for
 * the operating system, for virtualisation, and those that describe one core are not in it. Names as in /proc/cpuinfo.
 */
#include "cpu.h"
#include "base/reason.h"

#include <cpuid.h>
#include <string.h>

#define HIGH(bit) (32 + (bit))
#define NAMED_MISSING 4

static const struct {
    uint8_t word, bit;
    char name[20];
} known[] = {
    {0, 0, "sse3"},
    {0, 1, "pclmulqdq"},
    {0, 9, "ssse3"},
    {0, 12, "fma"},
    {0, 13, "cx16"},
    {0, 19, "sse4_1"},
    {0, 20, "sse4_2"},
    {0, 22, "movbe"},
    {0, 23, "popcnt"},
    {0, 25, "aes"},
    {0, 26, "xsave"},
    {0, 27, "osxsave"},
    {0, 28, "avx"},
    {0, 29, "f16c"},
    {0, 30, "rdrand"},
    {0, HIGH(4), "tsc"},
    {0, HIGH(8), "cx8"},
    {0, HIGH(15), "cmov"},
    {0, HIGH(19), "clflush"},
    {0, HIGH(23), "mmx"},
    {0, HIGH(24), "fxsr"},
    {0, HIGH(25), "sse"},
    {0, HIGH(26), "sse2"},
    {1, 0, "fsgsbase"},
    {1, 3, "bmi1"},
    {1, 5, "avx2"},
    {1, 8, "bmi2"},
    {1, 9, "erms"},
    {1, 11, "rtm"},
    {1, 14, "mpx"},
    {1, 16, "avx512f"},
    {1, 17, "avx512dq"},
    {1, 18, "rdseed"},
    {1, 19, "adx"},
    {1, 21, "avx512ifma"},
    {1, 23, "clflushopt"},
    {1, 24, "clwb"},
    {1, 26, "avx512pf"},
    {1, 27, "avx512er"},
    {1, 28, "avx512cd"},
    {1, 29, "sha_ni"},
    {1, 30, "avx512bw"},
    {1, 31, "avx512vl"},
    {1, HIGH(1), "avx512vbmi"},
    {1, HIGH(4), "ospke"},
    {1, HIGH(5), "waitpkg"},
    {1, HIGH(6), "avx512_vbmi2"},
    {1, HIGH(8), "gfni"},
    {1, HIGH(9), "vaes"},
    {1, HIGH(10), "vpclmulqdq"},
    {1, HIGH(11), "avx512_vnni"},
    {1, HIGH(12), "avx512_bitalg"},
    {1, HIGH(14), "avx512_vpopcntdq"},
    {1, HIGH(22), "rdpid"},
    {1, HIGH(25), "cldemote"},
    {1, HIGH(27), "movdiri"},
    {1, HIGH(28), "movdir64b"},
    {2, 2, "avx512_4vnniw"},
    {2, 3, "avx512_4fmaps"},
    {2, 4, "fsrm"},
    {2, 8, "avx512_vp2intersect"},
    {2, 14, "serialize"},
    {2, 16, "tsxldtrk"},
    {2, 22, "amx_bf16"},
    {2, 23, "avx512_fp16"},
    {2, 24, "amx_tile"},
    {2, 25, "amx_int8"},
    {2, HIGH(0), "sha512"},
    {2, HIGH(1), "sm3"},
    {2, HIGH(2), "sm4"},
    {2, HIGH(4), "avx_vnni"},
    {2, HIGH(5), "avx512_bf16"},
    {2, HIGH(7), "cmpccxadd"},
    {2, HIGH(21), "amx_fp16"},
    {2, HIGH(23), "avx_ifma"},
    {3, 0, "xsaveopt"},
    {3, 1, "xsavec"},
    {3, 2, "xgetbv1"},
    {3, HIGH(4), "avx_vnni_int8"},
    {3, HIGH(5), "avx_ne_convert"},
    {3, HIGH(10), "avx_vnni_int16"},
    {3, HIGH(19), "avx10"},
    {3, HIGH(21), "apx"},
    {4, 0, "lahf_lm"},
    {4, 5, "abm"},
    {4, 6, "sse4a"},
    {4, 7, "misalignsse"},
    {4, 8, "3dnowprefetch"},
    {4, 11, "xop"},
    {4, 16, "fma4"},
    {4, 21, "tbm"},
    {4, 29, "mwaitx"},
    {4, HIGH(11), "syscall"},
    {4, HIGH(22), "mmxext"},
    {4, HIGH(27), "rdtscp"},
    {4, HIGH(29), "lm"},
    {4, HIGH(30), "3dnowext"},
    {4, HIGH(31), "3dnow"},
};

typedef struct leaf {
    unsigned eax, ebx, ecx, edx;
} leaf_t;

static leaf_t leaf(unsigned number, unsigned sub) {
    leaf_t l = {0};
    if (!__get_cpuid_count(number, sub, &l.eax, &l.ebx, &l.ecx, &l.edx))
        return (leaf_t){0};
    return l;
}

static uint64_t pair(unsigned low, unsigned high) {
    return low | (uint64_t)high << 32;
}

static uint64_t xcr0(void) {
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return pair(low, high);
}

void mpy_cpu_features(uint64_t features[8]) {
    static const uint8_t components[2][4] = {{2, 5, 6, 7}, {9, 17, 18, 0}};
    leaf_t one = leaf(1, 0), seven = leaf(7, 0), seven1 = seven.eax >= 1 ? leaf(7, 1) : (leaf_t){0},
           extended = leaf(0x80000001, 0);
    memset(features, 0, 8 * sizeof *features);
    features[0] = pair(one.ecx, one.edx);
    features[1] = pair(seven.ebx, seven.ecx);
    features[2] = pair(seven.edx, seven1.eax);
    features[4] = pair(extended.ecx, extended.edx);
    if (!(one.ecx & 1u << 27)) /* without OSXSAVE there is no extended state */
        return;
    features[3] = pair(leaf(0xd, 1).eax, seven1.edx);
    features[5] = xcr0();
    for (int word = 0; word < 2; word++)
        for (int i = 0; i < 4; i++) {
            unsigned component = components[word][i];
            if (component && features[5] >> component & 1)
                features[6 + word] |= (uint64_t)(leaf(0xd, component).ebx & 0xffff) << 16 * i;
        }
}

uint64_t mpy_cpu_xsave_bytes(void) {
    return leaf(1, 0).ecx & 1u << 27 ? leaf(0xd, 0).ebx : 512;
}

int mpy_cpu_compare(const uint64_t saved[8], uint64_t saved_xsave_bytes, const uint64_t here[8],
                    uint64_t here_xsave_bytes, char *err, size_t n) {
    char list[160] = "";
    int missing = 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (!(saved[known[i].word] & ~here[known[i].word] & 1ul << known[i].bit))
            continue;
        if (missing < NAMED_MISSING)
            snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", missing ? ", " : "", known[i].name);
        missing++;
    }
    if (missing > NAMED_MISSING)
        snprintf(list + strlen(list), sizeof list - strlen(list), " and %d more", missing - NAMED_MISSING);
    if (missing)
        return mpy_reason(err, n, "this CPU lacks %s, which the checkpoint's host has", list);
    if (saved[5] & ~here[5])
        return mpy_reason(
            err, n,
            "the kernel does not enable all extended CPU state of the checkpoint's host (XCR0 %#lx there, %#lx here)",
            saved[5], here[5]);
    for (int word = 6; word < 8; word++)
        for (int shift = 0; shift < 64; shift += 16) {
            unsigned there = saved[word] >> shift & 0xffff;
            if (there && there != (here[word] >> shift & 0xffff))
                return mpy_reason(
                    err, n, "this CPU lays out its extended state (XSAVE) differently from the checkpoint's host");
        }
    if (saved_xsave_bytes > here_xsave_bytes)
        return mpy_reason(err, n, "this CPU's extended state (XSAVE) has %lu bytes, that of the checkpoint's host %lu",
                          here_xsave_bytes, saved_xsave_bytes);
    return 0;
}

int mpy_cpu_check(const uint64_t saved[8], uint64_t saved_xsave_bytes, char *err, size_t n) {
    uint64_t here[8];
    mpy_cpu_features(here);
    return mpy_cpu_compare(saved, saved_xsave_bytes, here, mpy_cpu_xsave_bytes(), err, n);
}

/* ---- tiles of AMX ---- */

/* Of a signal frame (Linux, asm/sigcontext.h, struct _fpx_sw_bytes): at 464 in the area that FXSAVE leaves to us. */
typedef struct software {
    uint32_t magic, extended_bytes;
    uint64_t components; /* of the extended state that the frame has room for */
} software_t;
enum { SOFTWARE_AT = 464, SOFTWARE_MAGIC = 0x46505853, TILE_DATA = 18 };

/* The kernel gives a thread room for tiles when it first uses one. Without it rt_sigreturn takes no frame that has
 * tiles, and drops all vector registers in it. */
void mpy_cpu_expect_frame(const ucontext_t *frame) {
    static const struct {
        uint8_t palette, start, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } one_tile __attribute__((aligned(64))) = {.palette = 1, .row_bytes = {64}, .rows = {16}};
    const char *area = (const char *)frame->uc_mcontext.fpregs;
    if (!area)
        return;
    const software_t *software = (const software_t *)(area + SOFTWARE_AT);
    if (software->magic == SOFTWARE_MAGIC && software->components >> TILE_DATA & 1)
        __asm__ volatile("ldtilecfg %0\n\ttilezero %%tmm0\n\ttilerelease" : : "m"(one_tile));
}

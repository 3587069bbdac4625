/* state_registers.c - registers of a computing thread, floating-point modes, contexts, clock reads. */
#include "../checkpointed.h"

#include <dlfcn.h>
#include <fenv.h>
#include <pthread.h>
#include <setjmp.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <xmmintrin.h>

#define ARCH_REQ_XCOMP_PERM 0x1023 /* asm/prctl.h since Linux 5.16 */
#define TILE_DATA 18               /* component of the extended state */

static volatile int stop;

/* ---- every vector register holds a pattern in a loop that only checks them ---- */

static volatile long loops, corrupt;

__attribute__((target("avx512f"))) static void hold_avx512(void) {
    double pattern[32][8];
    for (int r = 0; r < 32; r++) for (int i = 0; i < 8; i++) pattern[r][i] = r * 100 + i;
#define LOAD(r) "vmovupd " #r "*64(%[p]), %%zmm" #r "\n\t"
#define TEST(r) "vcmpneqpd " #r "*64(%[p]), %%zmm" #r ", %%k1\n\tkorw %%k1, %%k2, %%k2\n\t"
#define ALL(X)                                                                                                         \
    X(0)                                                                                                               \
    X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16) X(17) X(18) X(19) X(20)     \
        X(21) X(22) X(23) X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31)
    while (!stop) {
        unsigned bad;
        __asm__ volatile("kxorw %%k2, %%k2, %%k2\n\t" ALL(LOAD) "mov $200000, %%rcx\n1:\n\t" ALL(
                             TEST) "dec %%rcx\n\tjnz 1b\n\tkmovw %%k2, %[bad]\n\t"
                         : [bad] "=r"(bad)
                         : [p] "r"(pattern)
                         : "rcx", "memory", "k1", "k2", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
                           "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17",
                           "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27",
                           "xmm28", "xmm29", "xmm30", "xmm31");
        corrupt += bad != 0;
        loops++;
    }
}
#undef LOAD
#undef TEST

__attribute__((target("avx"))) static void hold_avx(void) {
    double pattern[16][4];
    for (int r = 0; r < 16; r++) for (int i = 0; i < 4; i++) pattern[r][i] = r * 100 + i;
#define LOAD(r) "vmovupd " #r "*32(%[p]), %%ymm" #r "\n\t"
#define TEST(r) "vcmpneqpd " #r "*32(%[p]), %%ymm" #r ", %%ymm15\n\tvmovmskpd %%ymm15, %%eax\n\tor %%eax, %[bad]\n\t"
    while (!stop) {
        unsigned bad = 0;
        __asm__ volatile(
            LOAD(0) LOAD(1) LOAD(2) LOAD(3) LOAD(4) LOAD(5) LOAD(6) LOAD(7) "mov $200000, %%rcx\n1:\n\t" TEST(0) TEST(1)
                TEST(2) TEST(3) TEST(4) TEST(5) TEST(6) TEST(7) "dec %%rcx\n\tjnz 1b\n\t"
            : [bad] "+r"(bad)
            : [p] "r"(pattern)
            : "rax", "rcx", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm15");
        corrupt += bad != 0;
        loops++;
    }
}

static void *hold(void *a) {
    if (__builtin_cpu_supports("avx512f")) hold_avx512();
    else if (__builtin_cpu_supports("avx")) hold_avx();
    return a;
}

/* ---- a tile of AMX, which a program may use after it has asked the kernel ---- */

static volatile long tile_loops, wrong_tiles;
static volatile int tiles, tiles_end;
static pthread_t tile_holder;

static void *hold_tile(void *a) {
    static const struct {
        unsigned char palette, start, reserved[14];
        unsigned short row_bytes[16];
        unsigned char rows[16];
    } config __attribute__((aligned(64))) = {.palette = 1, .row_bytes = {64}, .rows = {16}};
    static unsigned char in[16][64], out[16][64];
    for (int i = 0; i < 16 * 64; i++) in[i / 64][i % 64] = (unsigned char)(i * 7 + i / 64);
    __asm__ volatile("ldtilecfg (%0)\n\ttileloadd (%1,%2,1), %%tmm0" : : "r"(&config), "r"(in), "r"(64l) : "memory");
    while (!tiles_end) {
        memset(out, 0, sizeof out);
        __asm__ volatile("tilestored %%tmm0, (%0,%1,1)" : : "r"(out), "r"(64l) : "memory");
        wrong_tiles += memcmp(in, out, sizeof in) != 0;
        tile_loops++;
    }
    __asm__ volatile("tilerelease");
    return a;
}

static void tiles_set_up(void) {
    tiles = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
    if (!tiles) return;
    pthread_create(&tile_holder, NULL, hold_tile, NULL);
    while (!tile_loops) pause_ms(1);
}

static void tiles_check(void) {
    if (!tiles) return;
    long before = tile_loops;
    WAIT_UNTIL(tile_loops > before + 1);
    tiles_end = 1;
    pthread_join(tile_holder, NULL);
    CHECK(wrong_tiles == 0);
    tiles_end = 0;
    pthread_create(&tile_holder, NULL, hold_tile, NULL); /* from now on, too */
    WAIT_UNTIL(tile_loops > before + 100);
    tiles_end = 1;
    pthread_join(tile_holder, NULL);
    CHECK(wrong_tiles == 0);
    tiles_end = 0;
}

static pthread_t holder;
static void vectors_set_up(void) {
    pthread_create(&holder, NULL, hold, NULL);
    if (__builtin_cpu_supports("avx"))
        while (!loops) pause_ms(1);
}
static void vectors_check(void) {
    long before = loops;
    if (__builtin_cpu_supports("avx")) WAIT_UNTIL(loops > before + 1);
    stop = 1;
    pthread_join(holder, NULL);
    CHECK(corrupt == 0);
}

/* ---- rounding, masks, flags ---- */

static pthread_t rounding;
static volatile int rounding_go, rounding_ready;
static unsigned mxcsr_before;
static void *rounds_up(void *a) {
    fesetround(FE_UPWARD);
    _mm_setcsr(_mm_getcsr() | 0x8040); /* flush to zero, denormals are zero */
    feraiseexcept(FE_INEXACT | FE_OVERFLOW);
    mxcsr_before = _mm_getcsr();
    rounding_ready = 1;
    while (!rounding_go) for (volatile int i = 0; i < 1000; i++) {}
    CHECK(_mm_getcsr() == mxcsr_before);
    CHECK(fegetround() == FE_UPWARD);
    volatile long double one = 1, three = 3;
    CHECK(one / three * three > 1);
    CHECK(fetestexcept(FE_OVERFLOW) == FE_OVERFLOW);
    return a;
}
static void rounding_set_up(void) {
    pthread_create(&rounding, NULL, rounds_up, NULL);
    while (!rounding_ready) pause_ms(1);
    fesetround(FE_DOWNWARD);
}
static void rounding_check(void) {
    CHECK(fegetround() == FE_DOWNWARD);
    fesetround(FE_TONEAREST);
    rounding_go = 1;
    pthread_join(rounding, NULL);
}

/* ---- long jumps and contexts made before ---- */

static jmp_buf far_back;
static ucontext_t here, coroutine;
static char coroutine_stack[65536];
static volatile int steps;
static void run_coroutine(void) { for (;;) { steps++; swapcontext(&coroutine, &here); } }
static pthread_t jumper;
static volatile int jumper_go, jumped;
static __attribute__((noinline)) void dig(int depth) {
    volatile char space[1000];
    space[depth] = 1;
    if (depth < 50) dig(depth + 1);
    else { while (!jumper_go) pause_ms(2); longjmp(far_back, 9); }
    space[0]++;
}
static void *jump(void *a) {
    int code = setjmp(far_back);
    if (code == 0) dig(0);
    jumped = code;
    return a;
}
static void contexts_set_up(void) {
    getcontext(&coroutine);
    coroutine.uc_stack.ss_sp = coroutine_stack;
    coroutine.uc_stack.ss_size = sizeof coroutine_stack;
    makecontext(&coroutine, run_coroutine, 0);
    swapcontext(&here, &coroutine);
    pthread_create(&jumper, NULL, jump, NULL);
    pause_ms(10);
}
static void contexts_check(void) {
    for (int i = 0; i < 3; i++) swapcontext(&here, &coroutine);
    CHECK(steps == 4);
    jumper_go = 1;
    pthread_join(jumper, NULL);
    CHECK(jumped == 9);
}

/* ---- clocks: monotonic, and not system calls ---- */

static double latest;
static pthread_t clock_thread;
static volatile int clock_stop, backwards;
static void *watch(void *a) {
    double last = now();
    while (!clock_stop) { double t = now(); if (t < last) backwards++; last = t; }
    return a;
}
static void clocks_set_up(void) { latest = now(); pthread_create(&clock_thread, NULL, watch, NULL); }
static void clocks_check(void) {
    CHECK(now() >= latest);
    clock_stop = 1;
    pthread_join(clock_thread, NULL);
    CHECK(backwards == 0);
    double best = 1;
    for (int r = 0; r < 20; r++) {
        double begin = now();
        for (int i = 0; i < 1000; i++) now();
        double took = (now() - begin) / 1000;
        if (took < best) best = took;
    }
    CHECK(best < 150e-9);
}

/* ---- libraries opened by the program ---- */

static void *library;
static double (*cosine)(double);
static void libraries_set_up(void) {
    library = dlopen("libm.so.6", RTLD_NOW);
    cosine = (double (*)(double))dlsym(library, "cos");
}
static void libraries_check(void) {
    CHECK(cosine(0) == 1.0);
    CHECK(dlsym(library, "sin") != NULL);
    CHECK(dlclose(library) == 0);
    CHECK(dlopen("libresolv.so.2", RTLD_NOW) != NULL);
    CHECK(dlopen("libnonexistent.so.9", RTLD_NOW) == NULL && dlerror() != NULL);
}

MAIN(STATE(vectors), STATE(tiles), STATE(rounding), STATE(contexts), STATE(clocks), STATE(libraries))

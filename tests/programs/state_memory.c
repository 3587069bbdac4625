/* state_memory.c - mappings of all kinds, their protections, and that memory can be had and given back afterwards. */
#include "checkpointed.h"

#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define PAGE 4096ul
#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)

static sigjmp_buf back;
static void on_fault(int sig) { siglongjmp(back, sig); }

/* What an access does: 0, or the signal. */
static int touch(volatile char *p, int write_it) {
    struct sigaction a = {.sa_handler = on_fault}, old_segv, old_bus;
    sigaction(SIGSEGV, &a, &old_segv);
    sigaction(SIGBUS, &a, &old_bus);
    int sig = sigsetjmp(back, 1);
    if (sig == 0) { char c = *p; if (write_it) *p = c; }
    sigaction(SIGSEGV, &old_segv, NULL);
    sigaction(SIGBUS, &old_bus, NULL);
    return sig;
}

static char *region;
static void protections_set_up(void) {
    region = mmap(NULL, 8 * PAGE, RW, ANON, -1, 0);
    for (unsigned i = 0; i < 8; i++) memset(region + i * PAGE, 'a' + (int)i, PAGE);
    mprotect(region + PAGE, PAGE, PROT_READ);
    mprotect(region + 2 * PAGE, PAGE, PROT_NONE);
    mprotect(region + 3 * PAGE, PAGE, PROT_READ | PROT_EXEC);
    munmap(region + 5 * PAGE, PAGE);
}

static void protections_check(void) {
    CHECK(touch(region, 1) == 0 && region[0] == 'a');
    CHECK(touch(region + PAGE, 0) == 0 && region[PAGE] == 'b' && touch(region + PAGE, 1) == SIGSEGV);
    CHECK(touch(region + 2 * PAGE, 0) == SIGSEGV);
    mprotect(region + 2 * PAGE, PAGE, RW);
    CHECK(region[2 * PAGE + 7] == 'c');
    CHECK(region[3 * PAGE] == 'd' && touch(region + 3 * PAGE, 1) == SIGSEGV);
    CHECK(region[4 * PAGE + 9] == 'e');
    CHECK(region[7 * PAGE + PAGE - 1] == 'h');
}

/* ---- code made at run time ---- */

static int (*answer)(void);
static void generated_code_set_up(void) {
    static const unsigned char code[] = {0xb8, 42, 0, 0, 0, 0xc3};
    void *p = mmap(NULL, PAGE, RW, ANON, -1, 0);
    memcpy(p, code, sizeof code);
    mprotect(p, PAGE, PROT_READ | PROT_EXEC);
    answer = (int (*)(void))p;
}
static void generated_code_check(void) { CHECK(answer() == 42); }

/* ---- mremap, brk, sparse and large ---- */

static char *moved, *sparse, *reserved, *break_block, *huge;
static void *break_end;
static void sizes_set_up(void) {
    moved = mmap(NULL, 2 * PAGE, RW, ANON, -1, 0);
    strcpy(moved + PAGE, "moved");
    moved = mremap(moved, 2 * PAGE, 3000 * PAGE, MREMAP_MAYMOVE);
    strcpy(moved + 2999 * PAGE, "end");
    sparse = mmap(NULL, 4ul << 30, RW, ANON | MAP_NORESERVE, -1, 0);
    for (unsigned long i = 0; i < 4; i++) sparse[i << 30] = (char)(i + 1);
    reserved = mmap(NULL, 64ul << 30, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
    mprotect(reserved + (1ul << 30), PAGE, RW);
    reserved[1ul << 30] = 'r';
    break_block = sbrk(3 * (long)PAGE);
    memset(break_block, 'k', 3 * PAGE);
    break_end = sbrk(0);
    huge = mmap(NULL, 8ul << 20, RW, ANON, -1, 0);
    madvise(huge, 8ul << 20, MADV_HUGEPAGE);
    memset(huge, 'H', 8ul << 20);
}

static void sizes_check(void) {
    CHECK(strcmp(moved + PAGE, "moved") == 0 && strcmp(moved + 2999 * PAGE, "end") == 0);
    moved = mremap(moved, 3000 * PAGE, 6000 * PAGE, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED && strcmp(moved + 2999 * PAGE, "end") == 0);
    CHECK(munmap(moved, 6000 * PAGE) == 0);
    for (unsigned long i = 0; i < 4; i++) CHECK(sparse[i << 30] == (char)(i + 1) && sparse[(i << 30) + PAGE] == 0);
    CHECK(reserved[1ul << 30] == 'r' && touch(reserved, 0) == SIGSEGV);
    CHECK(sbrk(0) >= break_end && break_block[3 * PAGE - 1] == 'k');
    char *more = sbrk((long)PAGE);
    CHECK((void *)more >= break_end); /* malloc moves it too */
    memset(more, 1, PAGE);
    for (unsigned long i = 0; i < 8ul << 20; i += PAGE) if (huge[i] != 'H') { CHECK(!"huge"); break; }
}

/* ---- files ---- */

static char *private_map, *shared_map, *read_only, *anonymous_shared, *second_view, *past_end;
static void files_set_up(void) {
    int fd = open("mapped.bin", O_RDWR | O_CREAT | O_TRUNC, 0600);
    char block[PAGE];
    for (int i = 0; i < 4; i++) { memset(block, '0' + i, PAGE); if (write(fd, block, PAGE) != PAGE) abort(); }
    private_map = mmap(NULL, 4 * PAGE, RW, MAP_PRIVATE, fd, 0);
    private_map[PAGE] = 'P';
    shared_map = mmap(NULL, 2 * PAGE, RW, MAP_SHARED, fd, 2 * PAGE);
    second_view = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 2 * PAGE);
    shared_map[0] = 'S';
    read_only = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 3 * PAGE);
    past_end = mmap(NULL, 8 * PAGE, RW, MAP_PRIVATE, fd, 0);
    anonymous_shared = mmap(NULL, 2 * PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    strcpy(anonymous_shared, "shared");
    close(fd);
}

static void files_check(void) {
    CHECK(private_map[0] == '0' && private_map[PAGE] == 'P' && private_map[PAGE + 1] == '1');
    CHECK(shared_map[0] == 'S' && second_view[0] == 'S' && shared_map[PAGE] == '3' && read_only[0] == '3');
    shared_map[1] = 'T';
    CHECK(second_view[1] == 'T');
    msync(shared_map, PAGE, MS_SYNC);
    char c[2] = "";
    int fd = open("mapped.bin", O_RDONLY);
    CHECK(pread(fd, c, 2, 2 * PAGE) == 2 && c[0] == 'S' && c[1] == 'T');
    CHECK(pread(fd, c, 1, PAGE) == 1 && c[0] == '1');
    close(fd);
    CHECK(touch(read_only, 1) == SIGSEGV);
    CHECK(touch(past_end + 4 * PAGE, 0) == SIGBUS && past_end[3 * PAGE] == '3');
    CHECK(strcmp(anonymous_shared, "shared") == 0);
    strcpy(anonymous_shared + PAGE, "more");
}

/* ---- malloc, in several arenas ---- */

enum { THREADS = 4, BLOCKS = 500 };
static struct { pthread_t t; char *block[BLOCKS]; size_t bytes[BLOCKS]; } heap[THREADS];
static volatile int allocated, release;

static size_t fill(int t, int i) { return (size_t)((i * 7919 + t * 104729) % 20000 + 1); }

static void *allocator(void *a) {
    long t = (long)a;
    for (int i = 0; i < BLOCKS; i++) {
        heap[t].bytes[i] = fill((int)t, i);
        heap[t].block[i] = malloc(heap[t].bytes[i]);
        memset(heap[t].block[i], (int)(t + i), heap[t].bytes[i]);
    }
    for (int i = 0; i < BLOCKS; i += 3) { free(heap[t].block[i]); heap[t].block[i] = NULL; }
    __atomic_add_fetch(&allocated, 1, __ATOMIC_SEQ_CST);
    while (!release) pause_ms(2);
    for (int i = 0; i < BLOCKS; i++) {
        if (!heap[t].block[i]) continue;
        for (size_t k = 0; k < heap[t].bytes[i]; k++) if (heap[t].block[i][k] != (char)(t + i)) { CHECK(!"block changed"); break; }
        heap[t].block[i] = realloc(heap[t].block[i], heap[t].bytes[i] * 2);
        free(heap[t].block[i]);
    }
    return NULL;
}

static void arenas_set_up(void) {
    for (long t = 0; t < THREADS; t++) pthread_create(&heap[t].t, NULL, allocator, (void *)t);
    while (allocated < THREADS) pause_ms(1);
}
static void arenas_check(void) {
    release = 1;
    for (int t = 0; t < THREADS; t++) pthread_join(heap[t].t, NULL);
    void *big = malloc(100 << 20);
    memset(big, 1, 100 << 20);
    free(big);
    malloc_trim(0);
}

/* ---- addresses taken stay apart from new ones ---- */

static char *kept[200];
static void collisions_set_up(void) {
    for (int i = 0; i < 200; i++) { kept[i] = mmap(NULL, PAGE * (unsigned)(1 + i % 7), RW, ANON, -1, 0); kept[i][0] = (char)i; }
    for (int i = 0; i < 200; i += 4) { munmap(kept[i], PAGE * (unsigned)(1 + i % 7)); kept[i] = NULL; }
}
static void collisions_check(void) {
    for (int i = 0; i < 400; i++) { char *p = mmap(NULL, PAGE * (unsigned)(1 + i % 5), RW, ANON, -1, 0); CHECK(p != MAP_FAILED && p[0] == 0); memset(p, 99, PAGE); }
    for (int i = 0; i < 200; i++) if (kept[i]) CHECK(kept[i][0] == (char)i);
}

MAIN(STATE(protections), STATE(generated_code), STATE(sizes), STATE(files), STATE(arenas), STATE(collisions))

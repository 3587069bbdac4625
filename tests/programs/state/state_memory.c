/* state_memory.c - mappings of all kinds and their protections; memory can still be allocated and freed afterwards. */
#include "../checkpointed.h"

#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define PAGE 4096ul
#define FOUR_GIB (1ul << 32)
#define RW (PROT_READ | PROT_WRITE)
#define ANON (MAP_PRIVATE | MAP_ANONYMOUS)

static sigjmp_buf back;
static void on_fault(int sig) { siglongjmp(back, sig); }

/* The result of an access: 0, or the signal. */
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

/* ---- addresses that the program chooses below all others (CUDA, Go, V8) ---- */

static char *window, *far, *across, *low_view, *usual_view;
static void addresses_set_up(void) {
    char *const hint = (char *)0x200000000, *const far_hint = (char *)0x10000000000;
    CHECK((window = mmap(hint, 4297064448, PROT_NONE, ANON, -1, 0)) == hint);
    CHECK(mmap(window + (6 << 20), 2 << 20, RW, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == window + (6 << 20));
    strcpy(window + (7 << 20), "in the window");
    CHECK((far = mmap(far_hint, 64 << 20, RW, ANON, -1, 0)) == far_hint);
    strcpy(far + PAGE, "far");
    char *other = mmap(far_hint, PAGE, RW, ANON, -1, 0); /* taken */
    CHECK(other != MAP_FAILED && other != far);
    other = mmap((void *)0x300000000000 /* above */, PAGE, RW, ANON, -1, 0);
    CHECK(other != MAP_FAILED && other != (void *)0x300000000000);
    across = mmap((void *)(FOUR_GIB - PAGE), 2 * PAGE, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0); /* as ASan's shadow is */
    CHECK(across == (void *)(FOUR_GIB - PAGE));
    memcpy(across + PAGE - 3, "across", 7);
    int fd = memfd_create("views", 0);
    CHECK(ftruncate(fd, (off_t)PAGE) == 0);
    low_view = mmap(far_hint + (1ul << 30), PAGE, RW, MAP_SHARED, fd, 0);
    usual_view = mmap(NULL, PAGE, RW, MAP_SHARED, fd, 0);
    CHECK(low_view == far_hint + (1ul << 30) && usual_view != MAP_FAILED);
    close(fd);
}
static void addresses_check(void) {
    CHECK(strcmp(window + (7 << 20), "in the window") == 0 && strcmp(far + PAGE, "far") == 0);
    CHECK(strcmp(across + PAGE - 3, "across") == 0);
    strcpy(low_view, "seen in both");
    CHECK(strcmp(usual_view, "seen in both") == 0);
    CHECK(touch(window, 0) == SIGSEGV && touch(window + (8 << 20), 0) == SIGSEGV);
    CHECK(munmap(window, 4297064448) == 0 && munmap(far, 64 << 20) == 0);
    CHECK(mmap(window, PAGE, RW, ANON, -1, 0) == window && *window == 0);
}

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

/* ---- huge pages that end where memory of another kind begins ---- */

enum { HUGE_BYTES = 4 << 20, BESIDE_BYTES = 64 << 10 };
static char *huge_part;
static void neighbours_set_up(void) {
    char *room = mmap(NULL, HUGE_BYTES + BESIDE_BYTES, PROT_NONE, ANON, -1, 0); /* aligned to 2 MiB */
    huge_part = mmap(room, HUGE_BYTES, RW, ANON | MAP_FIXED, -1, 0);
    madvise(huge_part, HUGE_BYTES, MADV_HUGEPAGE);
    mmap(room + HUGE_BYTES, BESIDE_BYTES, RW, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    for (unsigned long i = 0; i < HUGE_BYTES + BESIDE_BYTES; i += PAGE) room[i] = (char)(i / PAGE * 7 + 1);
}
static void neighbours_check(void) {
    for (unsigned long i = 0; i < HUGE_BYTES + BESIDE_BYTES; i += PAGE)
        if (huge_part[i] != (char)(i / PAGE * 7 + 1)) {
            printf("FAILED neighbours: page %lu\n", i / PAGE), failures++;
            break;
        }
}

/* ---- files ---- */

static char *private_map, *shared_map, *read_only, *anonymous_shared, *second_view, *second_reader, *past_end;
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
    fd = open("mapped.bin", O_RDONLY);
    second_reader = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 2 * PAGE);
    close(fd);
}

static void files_check(void) {
    CHECK(private_map[0] == '0' && private_map[PAGE] == 'P' && private_map[PAGE + 1] == '1');
    CHECK(shared_map[0] == 'S' && second_view[0] == 'S' && shared_map[PAGE] == '3' && read_only[0] == '3');
    shared_map[1] = 'T';
    CHECK(second_view[1] == 'T');
    CHECK(mprotect(second_view, PAGE, RW) == 0 && mprotect(second_reader, PAGE, RW) == -1 && errno == EACCES);
    second_view[2] = 'U';
    CHECK(shared_map[2] == 'U' && second_reader[2] == 'U');
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

/* ---- a shared file that has lost its name, and of which the kernel keeps no page in memory ---- */

enum { EVICTED_PAGES = 64 };
static char *evicted;
static void evicted_set_up(void) {
    int fd = open("evicted.bin", O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && ftruncate(fd, EVICTED_PAGES * PAGE) == 0);
    evicted = mmap(NULL, (EVICTED_PAGES + 2) * PAGE, RW, MAP_SHARED, fd, 0);
    for (unsigned i = 0; i < EVICTED_PAGES; i++)
        if (i % 8) memset(evicted + i * PAGE, 'a' + (int)(i % 8), PAGE);
    CHECK(fsync(fd) == 0 && madvise(evicted, EVICTED_PAGES * PAGE, MADV_DONTNEED) == 0);
    CHECK(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0 && unlink("evicted.bin") == 0);
    close(fd);
}
static void evicted_check(void) {
    for (unsigned i = 0; i < EVICTED_PAGES; i++) {
        const char *page = evicted + i * PAGE, byte = (char)(i % 8 ? 'a' + (int)(i % 8) : 0);
        if (page[0] != byte || page[PAGE - 1] != byte) {
            printf("FAILED evicted: page %u\n", i), failures++;
            break;
        }
    }
}

/* ---- a private view of a file that changes all the time ---- */

static volatile long *counted, *private_view, count;
static volatile int counting = 1;
static pthread_t counter;
static void *count_up(void *unused) {
    while (counting) {
        pause_ms(1);
        counted[0] = ++count;
        CHECK(private_view[0] <= count); /* nothing has been written to it, so it shows the file, or what was saved */
    }
    return unused;
}
static void private_view_set_up(void) {
    int fd = memfd_create("private", 0);
    CHECK(ftruncate(fd, (off_t)PAGE) == 0);
    counted = mmap(NULL, PAGE, RW, MAP_SHARED, fd, 0);
    private_view = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(counted != MAP_FAILED && private_view != MAP_FAILED);
    close(fd);
    CHECK(pthread_create(&counter, NULL, count_up, NULL) == 0);
}
static void private_view_check(void) {
    counting = 0;
    CHECK(pthread_join(counter, NULL) == 0);
}

/* ---- shared huge pages (if the host has any) that only a child has touched ---- */

enum { HUGE_SHARED_BYTES = 4 << 20 };
static char *huge_shared;
static void huge_shared_set_up(void) {
    huge_shared = mmap(NULL, HUGE_SHARED_BYTES, RW, MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (huge_shared == MAP_FAILED) return;
    int status = 0;
    if (fork() == 0) memset(huge_shared, 'c', HUGE_SHARED_BYTES / 2), _exit(0);
    CHECK(wait(&status) > 0 && status == 0);
}
static void huge_shared_check(void) {
    if (huge_shared == MAP_FAILED) return;
    CHECK(huge_shared[0] == 'c' && huge_shared[HUGE_SHARED_BYTES / 2 - 1] == 'c');
    CHECK(huge_shared[HUGE_SHARED_BYTES / 2] == 0);
}

/* ---- a library that was replaced: ld.so maps more than the file has, and leaves a gap that nobody may touch ---- */

static char *library;
static void replaced_set_up(void) {
    char block[PAGE];
    int fd = open("library.bin", O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (int i = 0; i < 4; i++) { memset(block, '0' + i, PAGE); if (write(fd, block, PAGE) != PAGE) abort(); }
    library = mmap(NULL, 16 * PAGE, PROT_READ, MAP_PRIVATE, fd, 0);
    CHECK(mprotect(library + 4 * PAGE, 12 * PAGE, PROT_NONE) == 0);
    mmap(library + 12 * PAGE, 4 * PAGE, RW, MAP_PRIVATE | MAP_FIXED, fd, 3 * PAGE);
    library[12 * PAGE] = 'd';
    close(fd);
    CHECK(unlink("library.bin") == 0);
}
static void replaced_check(void) {
    for (int i = 0; i < 4; i++) CHECK(library[(unsigned)i * PAGE] == '0' + i);
    CHECK(touch(library + 4 * PAGE, 0) == SIGSEGV && touch(library + 11 * PAGE, 0) == SIGSEGV);
    CHECK(library[12 * PAGE] == 'd' && library[12 * PAGE + 1] == '3');
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
        for (size_t k = 0; k < heap[t].bytes[i]; k++)
            if (heap[t].block[i][k] != (char)(t + i)) {
                CHECK(!"block changed");
                break;
            }
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

/* ---- addresses in use stay apart from new ones ---- */

static char *kept[200];
static void collisions_set_up(void) {
    for (int i = 0; i < 200; i++) {
        kept[i] = mmap(NULL, PAGE * (unsigned)(1 + i % 7), RW, ANON, -1, 0);
        kept[i][0] = (char)i;
    }
    for (int i = 0; i < 200; i += 4) { munmap(kept[i], PAGE * (unsigned)(1 + i % 7)); kept[i] = NULL; }
}
static void collisions_check(void) {
    for (int i = 0; i < 400; i++) {
        char *p = mmap(NULL, PAGE * (unsigned)(1 + i % 5), RW, ANON, -1, 0);
        CHECK(p != MAP_FAILED && p[0] == 0);
        memset(p, 99, PAGE);
    }
    for (int i = 0; i < 200; i++) if (kept[i]) CHECK(kept[i][0] == (char)i);
}

/* ---- the program's advice to the kernel about memory ---- */

static const struct { int advice; const char *flag;
} advices[] = {
    {MADV_HUGEPAGE, "hg"}, {MADV_NOHUGEPAGE, "nh"}, {MADV_DONTFORK, "dc"}, {MADV_WIPEONFORK, "wf"},
    {MADV_DONTDUMP, "dd"}, {MADV_SEQUENTIAL, "sr"}, {MADV_RANDOM, "rr"},
};
enum { ADVICES = sizeof advices / sizeof *advices, POLICIES = 3, TOLD_BYTES = 4 << 20 };
static char *told[ADVICES], *locked, *locked_on_fault, *placed[POLICIES];
static const int policies[POLICIES] = {1 /* MPOL_PREFERRED */, 2 /* MPOL_BIND */, 3 /* MPOL_INTERLEAVE */};
static unsigned long node_0 = 1;
static int has_policies;

static char *smaps;
static void read_smaps(void) {
    size_t bytes = 0, room = 64 << 20, got;
    FILE *f = fopen("/proc/self/smaps", "r");
    smaps = smaps ? smaps : mmap(NULL, room, RW, ANON | MAP_NORESERVE, -1, 0);
    while (f && bytes < room - 1 && (got = fread(smaps + bytes, 1, room - 1 - bytes, f)) > 0) bytes += got;
    smaps[bytes] = 0;
    if (f) fclose(f);
}

/* Has the mapping at p this flag there? */
static int flagged(const char *p, const char *flag) {
    char want[8];
    unsigned long lo, hi;
    snprintf(want, sizeof want, " %s ", flag);
    for (const char *line = smaps; line && *line;
         line = strstr(line, "VmFlags:"), line = line ? strchr(line, '\n') + 1 : NULL) {
        char *dash;
        lo = strtoul(line, &dash, 16);
        hi = strtoul(dash + 1, NULL, 16);
        if ((unsigned long)p < lo || (unsigned long)p >= hi) continue;
        const char *flags = strstr(line, "VmFlags:"), *end = strchr(flags, '\n'), *at = strstr(flags, want);
        return at && at < end;
    }
    return 0;
}

static char *some(void) {
    char *p = mmap(NULL, TOLD_BYTES, RW, ANON, -1, 0);
    memset(p, 't', TOLD_BYTES / 2);
    return p;
}

static void advice_set_up(void) {
    for (int i = 0; i < ADVICES; i++) CHECK(madvise(told[i] = some(), TOLD_BYTES, advices[i].advice) == 0);
    CHECK(mlock(locked = some(), 4 * PAGE) == 0 && mlock2(locked_on_fault = some(), 4 * PAGE, MLOCK_ONFAULT) == 0);
    for (int i = 0; i < POLICIES; i++)
        has_policies = syscall(SYS_mbind, placed[i] = some(), TOLD_BYTES, policies[i], &node_0, 65, 0) == 0;
}

static void advice_check(void) {
    read_smaps();
    for (int i = 0; i < ADVICES; i++)
        if (!flagged(told[i], advices[i].flag)) printf("FAILED advice: %s is gone\n", advices[i].flag), failures++;
    CHECK(flagged(locked, "lo") && !flagged(locked, "lf") && flagged(locked_on_fault, "lf") &&
          !flagged(locked + 8 * PAGE, "lo"));
    for (int i = 0; has_policies && i < POLICIES; i++) {
        int mode = -1;
        unsigned long nodes[16] = {0};
        CHECK(syscall(SYS_get_mempolicy, &mode, nodes, 8 * sizeof nodes, placed[i], 2 /* MPOL_F_ADDR */) == 0 &&
              mode == policies[i] && nodes[0] == node_0);
    }
    if (fork() == 0) _exit(told[3][0] == 0 && touch(told[2], 0) == SIGSEGV ? 7 : 1);
    int status = 0;
    CHECK(wait(&status) > 0 && WEXITSTATUS(status) == 7);
    for (int i = 0; i < ADVICES; i++) CHECK(told[i][0] == 't' && told[i][TOLD_BYTES - 1] == 0);
}

static void lock_all_set_up(void) { CHECK(mlockall(MCL_FUTURE | MCL_ONFAULT) == 0); }
static void lock_all_check(void) {
    char *before = some();
    read_smaps();
    CHECK(flagged(before, "lo"));
    CHECK(munlockall() == 0);
    char *after = some();
    read_smaps();
    CHECK(!flagged(after, "lo"));
}

static char *moved_from, *moved_to;
static void moved_set_up(void) {
    moved_to = mremap(moved_from = some(), TOLD_BYTES, TOLD_BYTES, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    CHECK(moved_to != MAP_FAILED && moved_to != moved_from && moved_to[0] == 't' && moved_from[0] == 0);
    CHECK(mremap(moved_to, TOLD_BYTES, TOLD_BYTES, MREMAP_DONTUNMAP, NULL) == MAP_FAILED && errno == EINVAL);
}
static void moved_check(void) {
    CHECK(moved_to[0] == 't' && moved_from[0] == 0);
    char *other = some();
    CHECK(other != moved_from && moved_from[1] == 0);
}

/* ---- pages that nobody may touch: they hold nothing, and what is beside them is kept ---- */

enum { GUARD_INSTALL = 102 }; /* of madvise(2), Linux 6.13; glibc 2.42 has such guards at the stacks of threads */
static char *guarded;
static void guards_set_up(void) {
    guarded = some();
    CHECK(madvise(guarded + PAGE, PAGE, GUARD_INSTALL) == 0 ? touch(guarded + PAGE, 0) == SIGSEGV : errno == EINVAL);
}
static void guards_check(void) {
    CHECK(guarded[0] == 't' && guarded[PAGE - 1] == 't' && guarded[2 * PAGE] == 't');
}

/* ---- thousands of holes are used again ---- */

enum { HOLES = 9000 };
static char *holed;
static void holes_set_up(void) {
    holed = mmap(NULL, 2 * HOLES * PAGE, RW, ANON, -1, 0);
    for (unsigned i = 0; i < HOLES; i++) {
        holed[2 * i * PAGE] = (char)i;
        munmap(holed + (2 * i + 1) * PAGE, PAGE);
    }
}
static void holes_check(void) {
    unsigned inside = 0;
    for (unsigned i = 0; i < HOLES; i++) {
        char *p = mmap(NULL, PAGE, RW, ANON, -1, 0);
        inside += p > holed && p < holed + 2 * HOLES * PAGE;
        CHECK(p != MAP_FAILED && *p == 0 && holed[2 * i * PAGE] == (char)i);
    }
    CHECK(inside > HOLES - 1000); /* others were placed into older holes */
}

/* locked memory cannot be evicted, so lock_all comes after that state */
MAIN(STATE(holes), STATE(advice), STATE(moved), STATE(evicted), STATE(huge_shared), STATE(lock_all), STATE(guards),
     STATE(protections), STATE(generated_code), STATE(addresses), STATE(sizes), STATE(neighbours), STATE(files),
     STATE(replaced), STATE(arenas), STATE(collisions), STATE(private_view))

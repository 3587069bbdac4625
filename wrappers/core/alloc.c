/* alloc.c - memory of the wrappers. Upper half, either TLS, no libc: private mmap of our own.
 *
 * Invariants
 *  1. The lock is held only with in_lower = 1 or inside a hook (invariant 1 of lock.h): a hook never finds it taken.
 *  2. Blocks are zeroed. Small ones come from power-of-two classes, cut from chunks that are never returned; large ones
 *     are mappings of their own.
 *  3. Memory as long as a message of the program comes from mpy_try_alloc. If there is none, the program's call fails
 *     (MPI_ERR_NO_MEM), or the checkpoint does. Our own bookkeeping comes from mpy_alloc: without it the job can't
 *     continue.
 */
#include "objects.h"

#include <stdarg.h>
#include <sys/mman.h>

enum { CLASS_MIN = 5, CLASS_MAX = 16, CHUNK = 1 << 20 };

typedef struct block { struct block *next; } block_t;

static uint32_t lock;
static block_t *free_blocks[CLASS_MAX + 1];
static char *chunk, *chunk_end;

/* mmap in the upper half: the lower half's trap places it in the arena. NULL if there is no memory. */
static void *map(size_t size, int more) {
    long result = mpy_sys(SYS_mmap, 0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | more, -1, 0);
    return mpy_sys_failed(result) ? NULL : (void *)result;
}

static int class_of(size_t size) {
    int c = CLASS_MIN;
    while ((size_t)1 << c < size) c++;
    return c;
}

/* With the lock: makes sure that the chunk, or a new one, has room for a block of this size. */
static bool chunk_has(size_t size) {
    if ((size_t)(chunk_end - chunk) >= size) return true;
    char *made = map(CHUNK, MAP_NORESERVE);
    if (made == NULL) return false;
    chunk = made; /* the rest of the old chunk is lost: less than one block of the largest class */
    chunk_end = chunk + CHUNK;
    return true;
}

static void *small_block(size_t size) {
    int c = class_of(size);
    mpy_lock(&lock);
    block_t *b = free_blocks[c];
    if (b != NULL) {
        free_blocks[c] = b->next;
    } else if (chunk_has((size_t)1 << c)) {
        b = (block_t *)chunk;
        chunk += (size_t)1 << c;
    }
    mpy_unlock(&lock);
    return b == NULL ? NULL : __builtin_memset(b, 0, size);
}

static void *block(size_t size, int more) {
    return size > (size_t)1 << CLASS_MAX ? map(size, more) : small_block(size);
}

void *mpy_alloc(size_t size) {
    void *p = block(size, MAP_NORESERVE);
    if (p == NULL) MPY_LOWER->svc->die("out of memory in the MPI wrappers", 1);
    return p;
}

/* Reserves the memory, on systems that do so: a lack of memory shows here and not when the memory is touched. */
void *mpy_try_alloc(size_t size) { return block(size, 0); }

void mpy_free(void *p, size_t size) {
    if (p == NULL) return;
    if (size > (size_t)1 << CLASS_MAX) {
        mpy_sys(SYS_munmap, p, size);
        return;
    }
    int c = class_of(size);
    block_t *b = p;
    mpy_lock(&lock);
    b->next = free_blocks[c];
    free_blocks[c] = b;
    mpy_unlock(&lock);
}

/* ---- text ---- */

char *mpy_text_copy(const char *s) {
    size_t n = mpy_text_length(s) + 1;
    return __builtin_memcpy(mpy_alloc(n), s, n);
}

void mpy_text_free(char *s) {
    if (s != NULL) mpy_free(s, mpy_text_length(s) + 1);
}

bool mpy_text_equal(const char *a, const char *b) {
    while (*a != 0 && *a == *b) a++, b++;
    return *a == *b;
}

void mpy_text_format(char *to, size_t n, const char *format, ...) {
    va_list ap;
    size_t at = 0;
    va_start(ap, format);
    for (const char *f = format; *f != 0; f++) {
        char digits[24];
        const char *piece;
        size_t length = 1;
        if (*f != '%') {
            piece = f;
        } else if (*++f == 's') {
            piece = va_arg(ap, const char *);
            length = mpy_text_length(piece);
        } else { /* %d */
            long value = va_arg(ap, int);
            unsigned long rest = value < 0 ? 0ul - (unsigned long)value : (unsigned long)value;
            char *end = digits + sizeof digits, *p = end;
            do *--p = (char)('0' + rest % 10);
            while ((rest /= 10) != 0);
            if (value < 0) *--p = '-';
            piece = p;
            length = (size_t)(end - p);
        }
        for (size_t i = 0; i < length && at + 1 < n; i++) to[at++] = piece[i];
    }
    va_end(ap);
    if (n > 0) to[at] = 0;
}

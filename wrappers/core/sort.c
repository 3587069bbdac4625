/* sort.c - heap sort for hooks: no memory, no libc. Upper half, either TLS. */
#include "objects.h"

static void sift_down(void **a, uint32_t root, uint32_t n, uint64_t (*key)(const void *)) {
    for (uint32_t child; (child = 2 * root + 1) < n; root = child) {
        if (child + 1 < n && key(a[child]) < key(a[child + 1])) child++;
        if (key(a[root]) >= key(a[child])) return;
        void *swap = a[root];
        a[root] = a[child];
        a[child] = swap;
    }
}

void mpy_sort(void **items, uint32_t n, uint64_t (*key)(const void *)) {
    for (uint32_t i = n / 2; i-- > 0;) sift_down(items, i, n, key);
    for (uint32_t i = n; i-- > 1;) {
        void *largest = items[0];
        items[0] = items[i];
        items[i] = largest;
        sift_down(items, 0, i, key);
    }
}

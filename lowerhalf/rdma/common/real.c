/* real.c - see real.h.
 *
 * preload.S defines dlsym and dlvsym. Any reference by name would find those. So libc's own functions are looked up in
 * its symbol table.
 */
#include "common/real.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *(*shift_next_dlsym)(void *, const char *);
void *(*shift_next_dlvsym)(void *, const char *, const char *);

static const void *dynamic(const struct link_map *m, Elf64_Sxword tag) {
    for (const Elf64_Dyn *d = m->l_ld; d->d_tag != DT_NULL; d++)
        if (d->d_tag == tag)
            return (const void *)d->d_un.d_ptr;
    return NULL;
}

/* Address of a defined symbol of an object, from its GNU hash table (System V ABI; for gnu_hash see binutils'
 * documentation of DT_GNU_HASH). */
static void *lookup(const struct link_map *m, const char *name) {
    const uint32_t *table = dynamic(m, DT_GNU_HASH);
    const Elf64_Sym *symbols = dynamic(m, DT_SYMTAB);
    const char *strings = dynamic(m, DT_STRTAB);
    if (!table || !symbols || !strings)
        return NULL;
    uint32_t hash = 5381;
    for (const char *c = name; *c; c++)
        hash = hash * 33 + (unsigned char)*c;
    uint32_t buckets = table[0], offset = table[1], bloom = table[2];
    const uint32_t *bucket = table + 4 + bloom * 2, *chain = bucket + buckets;
    uint32_t i = bucket[hash % buckets];
    if (i < offset)
        return NULL;
    for (;; i++) {
        uint32_t h = chain[i - offset];
        if ((h | 1) == (hash | 1) && strcmp(strings + symbols[i].st_name, name) == 0 &&
            symbols[i].st_shndx != SHN_UNDEF)
            return (void *)(m->l_addr + symbols[i].st_value);
        if (h & 1)
            return NULL;
    }
}

/* glibc before 2.34 has dlsym in libdl. */
void shift_find_libc(void) {
    static const char *const libraries[] = {"libc.so.6", "libdl.so.2"};
    for (unsigned i = 0; i < sizeof libraries / sizeof libraries[0] && !shift_next_dlsym; i++) {
        struct link_map *m = dlopen(libraries[i], RTLD_LAZY | RTLD_NOLOAD);
        if (!m)
            continue;
        shift_next_dlvsym = (void *(*)(void *, const char *, const char *))lookup(m, "dlvsym");
        shift_next_dlsym = (void *(*)(void *, const char *))lookup(m, "dlsym");
        dlclose(m);
    }
    if (!shift_next_dlsym || !shift_next_dlvsym) {
        fprintf(stderr, "manapy shift: no dlsym in this C library: start the program without libmanapy_shift.so\n");
        abort();
    }
}

void *shift_libc_dlsym(void *handle, const char *name) {
    if (!shift_next_dlsym)
        shift_find_libc();
    return shift_next_dlsym(handle, name);
}

static shift_real_t real;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find_real(void) {
    void *lib = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!lib) {
        fprintf(stderr, "manapy shift: a verb was called, but libibverbs.so.1 is not loaded\n");
        abort();
    }
#define X(verb) real.verb = (__typeof__(real.verb))shift_libc_dlsym(lib, "ibv_" #verb);
    SHIFT_INTERPOSED(X)
    SHIFT_CALLED(X)
#undef X
    real.query_gid_ex = (__typeof__(real.query_gid_ex))shift_libc_dlsym(lib, "_ibv_query_gid_ex");
}

const shift_real_t *shift_real(void) {
    pthread_once(&once, find_real);
    return &real;
}

int shift_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr) {
    struct verbs_context *v = verbs_get_ctx_op(context, query_port);
    memset(attr, 0, sizeof *attr);
    return v ? v->query_port(context, port, attr, sizeof *attr) : ENOTSUP;
}

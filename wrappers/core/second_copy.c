/* second_copy.c - a second copy of this library in one process (another file, loaded by its path) passes all calls to
 * the first.
 *
 * Upper half, upper TLS, in the constructor: libc may be used. All state is in the first copy: objects, threads, hooks.
 * At the entry of each exported function, the second copy writes a jump to the first copy's function. It also writes
 * the first copy's values over its data symbols (the value of MPI_UNWEIGHTED is compared). So no call has to test which
 * copy it is in, and calls of the first copy cost nothing more. The changed pages are ordinary memory of the program: a
 * checkpoint saves them.
 *
 * Invariants
 *  1. All symbols are redirected, or none: everything that can fail precedes the first write.
 *  2. Nothing is redirected to another name space (dlmopen). It has a libc of its own, and pthread_key_create of both
 *     returns the same keys, for the same words of a thread. So destructors of the other libc would get what the first
 *     copy keeps for a thread (cross.c). And the first copy would not learn of a fork by the other libc. That copy is
 *     refused when it is called.
 *  3. After the redirection, nothing of this copy runs. It offers no hooks, and a thread that is halted in it is at a
 *     jump.
 */
#include "objects.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>

/* movabs $target, %r11; jmp *%r11. %r11 is free at the entry of a function (System V ABI). */
#define JUMP_SIZE 13
#define ENTRY_ALIGNMENT 16 /* alignment of functions: a function that is shorter than the jump has room for it, too */
#define PAGE 4096ul

typedef struct {
    const Elf64_Sym *symbols; /* of this copy */
    uint32_t n;
    const char *names;
    char *base;  /* of this copy */
    void *first; /* the first copy, for dlsym */
} copies_t;

/* The exported symbols are the last ones. The last chain of the hash table ends with the last of them. */
static uint32_t symbol_count(const uint32_t *gnu_hash) {
    uint32_t buckets = gnu_hash[0], first = gnu_hash[1], bloom_words = gnu_hash[2], last = 0;
    const uint32_t *bucket = gnu_hash + 4 + 2 * bloom_words, *chain = bucket + buckets;
    for (uint32_t i = 0; i < buckets; i++)
        if (bucket[i] > last) last = bucket[i];
    if (last < first) return first;
    while ((chain[last - first] & 1) == 0) last++;
    return last + 1;
}

/* False if the first copy can't be reached from here. */
static bool find_first(copies_t *c, const void *own, const void *first) {
    struct link_map *own_map = NULL, *first_map = NULL;
    Dl_info info;
    Lmid_t own_space, first_space;
    if (!dladdr1(own, &info, (void **)&own_map, RTLD_DL_LINKMAP) ||
        !dladdr1(first, &info, (void **)&first_map, RTLD_DL_LINKMAP) ||
        dlinfo(own_map, RTLD_DI_LMID, &own_space) != 0 || dlinfo(first_map, RTLD_DI_LMID, &first_space) != 0 ||
        own_space != first_space)
        return false;
    for (const Elf64_Dyn *d = own_map->l_ld; d->d_tag != DT_NULL; d++) { /* glibc has relocated these to addresses */
        if (d->d_tag == DT_SYMTAB) c->symbols = (const Elf64_Sym *)d->d_un.d_ptr;
        if (d->d_tag == DT_STRTAB) c->names = (const char *)d->d_un.d_ptr;
        if (d->d_tag == DT_GNU_HASH) c->n = symbol_count((const uint32_t *)d->d_un.d_ptr);
    }
    c->base = (char *)own_map->l_addr;
    /* dlsym needs a handle, and a link map is not always a valid one yet */
    c->first = dlopen(first_map->l_name, RTLD_LAZY | RTLD_NOLOAD);
    return c->first == first_map && c->symbols != NULL && c->names != NULL && c->n != 0;
}

static bool is_exported(const Elf64_Sym *s) {
    int binding = ELF64_ST_BIND(s->st_info), type = ELF64_ST_TYPE(s->st_info);
    return s->st_shndx != SHN_UNDEF && (binding == STB_GLOBAL || binding == STB_WEAK) &&
           (type == STT_FUNC || type == STT_OBJECT);
}

static void *counterpart(const copies_t *c, const Elf64_Sym *s) { return dlsym(c->first, c->names + s->st_name); }

static bool can_hand_on(const copies_t *c) {
    for (uint32_t i = 0; i < c->n; i++) {
        const Elf64_Sym *s = &c->symbols[i];
        if (!is_exported(s)) continue;
        if (counterpart(c, s) == NULL) return false;
        if (ELF64_ST_TYPE(s->st_info) == STT_FUNC && s->st_size < JUMP_SIZE && s->st_value % ENTRY_ALIGNMENT != 0)
            return false;
    }
    return true;
}

static bool protect(uint64_t begin, uint64_t end, int protection) { /* of the last page only the part before `end` */
    begin &= ~(PAGE - 1);
    end &= ~(PAGE - 1);
    return mprotect((void *)begin, end - begin, protection) == 0;
}

/* Makes the code, and constant data that needed relocation, writable; or restores their protection. */
static bool set_writable(const copies_t *c, bool writable) {
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)c->base;
    const Elf64_Phdr *h = (const Elf64_Phdr *)(c->base + header->e_phoff);
    int also = writable ? PROT_WRITE : 0;
    for (const Elf64_Phdr *last = h + header->e_phnum; h < last; h++) {
        uint64_t begin = (uint64_t)c->base + h->p_vaddr, end = begin + h->p_memsz;
        if (h->p_type == PT_LOAD && h->p_flags & PF_X && !protect(begin, end + PAGE - 1, PROT_READ | PROT_EXEC | also))
            return false;
        if (h->p_type == PT_GNU_RELRO && !protect(begin, end, PROT_READ | also)) return false; /* as the loader does */
    }
    return true;
}

static void write_jump(char *entry, const void *target) {
    memcpy(entry, "\x49\xbb", 2);
    memcpy(entry + 2, &target, sizeof target);
    memcpy(entry + 10, "\x41\xff\xe3", 3);
}

bool mpy_hand_on(const void *own, const void *first) {
    copies_t c = {0};
    if (!find_first(&c, own, first) || !can_hand_on(&c) || !set_writable(&c, true)) return false;
    for (uint32_t i = 0; i < c.n; i++) {
        const Elf64_Sym *s = &c.symbols[i];
        if (!is_exported(s)) continue;
        if (ELF64_ST_TYPE(s->st_info) == STT_FUNC)
            write_jump(c.base + s->st_value, counterpart(&c, s));
        else
            memcpy(c.base + s->st_value, counterpart(&c, s), s->st_size);
    }
    set_writable(&c, false);
    return true;
}

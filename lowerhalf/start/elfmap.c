/* elfmap.c - map an ELF file as the kernel's exec would, but into the arena.
 *
 * Half: lower, before the program starts; libc may be called.
 *
 * Invariants
 *  1. Position-independent files land in the arena; ET_EXEC files at their own addresses, which must be below 4 GiB and
 *     free.
 *  2. The whole span is reserved first, so that segments can't collide with anything.
 */
#include "elfmap.h"
#include "base/page.h"
#include "base/reason.h"
#include "isolate/arena.h"
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <manapy/boundary.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>


static int fail(char *error, size_t n, const char *path, const char *why) {
    return mpy_reason(error, n, "cannot start %s: %s", path, why);
}

static int map_segment(int fd, const Elf64_Phdr *p, uint64_t base) {
    int prot = ((p->p_flags & PF_R) ? PROT_READ : 0) | ((p->p_flags & PF_W) ? PROT_WRITE : 0) |
               ((p->p_flags & PF_X) ? PROT_EXEC : 0);
    uint64_t lo = MPY_PAGE_DOWN(base + p->p_vaddr), file_end = base + p->p_vaddr + p->p_filesz,
             end = MPY_PAGE_UP(base + p->p_vaddr + p->p_memsz);
    if (p->p_filesz &&
        mmap((void *)lo, MPY_PAGE_UP(file_end) - lo, prot, MAP_PRIVATE | MAP_FIXED, fd,
             (off_t)MPY_PAGE_DOWN(p->p_offset)) == MAP_FAILED)
        return -1;
    uint64_t zero_from = p->p_filesz ? MPY_PAGE_UP(file_end) : lo;
    if (p->p_memsz > p->p_filesz && p->p_filesz && (prot & PROT_WRITE))
        memset((void *)file_end, 0, MPY_PAGE_UP(file_end) - file_end);
    if (end > zero_from &&
        mmap((void *)zero_from, end - zero_from, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
        return -1;
    return 0;
}

int mpy_elf_map(const char *path, mpy_elf_t *out, char *error, size_t n) {
    Elf64_Ehdr h;
    Elf64_Phdr ph[64];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail(error, n, path, strerror(errno));
    int bad = 0;
    if (pread(fd, &h, sizeof h, 0) != sizeof h || memcmp(h.e_ident, ELFMAG, SELFMAG))
        bad = fail(error, n, path, "not an ELF executable");
    else if (h.e_ident[EI_CLASS] != ELFCLASS64 || h.e_machine != EM_X86_64)
        bad = fail(error, n, path, "not a 64-bit x86 program");
    else if (h.e_type != ET_EXEC && h.e_type != ET_DYN) bad = fail(error, n, path, "not an executable program");
    else if (h.e_phnum > 64 || pread(fd, ph, sizeof(Elf64_Phdr) * h.e_phnum, (off_t)h.e_phoff) !=
                                   (ssize_t)(sizeof(Elf64_Phdr) * h.e_phnum))
        bad = fail(error, n, path, "its program headers cannot be read");
    if (bad) goto close_file;

    memset(out, 0, sizeof *out);
    uint64_t lo = ~0ul, hi = 0;
    for (int i = 0; i < h.e_phnum; i++) {
        if (ph[i].p_type == PT_LOAD) {
            if (MPY_PAGE_DOWN(ph[i].p_vaddr) < lo) lo = MPY_PAGE_DOWN(ph[i].p_vaddr);
            if (MPY_PAGE_UP(ph[i].p_vaddr + ph[i].p_memsz) > hi) hi = MPY_PAGE_UP(ph[i].p_vaddr + ph[i].p_memsz);
        } else if (ph[i].p_type == PT_GNU_STACK) {
            out->exec_stack = (ph[i].p_flags & PF_X) != 0;
        } else if (ph[i].p_type == PT_INTERP && ph[i].p_filesz < sizeof out->interp) {
            if (pread(fd, out->interp, ph[i].p_filesz, (off_t)ph[i].p_offset) != (ssize_t)ph[i].p_filesz)
                out->interp[0] = 0;
        }
    }
    if (lo >= hi) { bad = fail(error, n, path, "it has no segments to load"); goto close_file; }
    out->low = h.e_type == ET_EXEC;
    uint64_t at = out->low ? lo : mpy_arena_take(hi - lo);
    if (out->low && hi > MPY_LOW_END) {
        bad = fail(error, n, path, "it is linked to a fixed address above 4 GiB");
        goto close_file;
    }
    if (!at || mmap((void *)at, hi - lo, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE,
                    -1, 0) != (void *)at) {
        bad = fail(error, n, path, "its address range is in use");
        goto close_file;
    }
    out->base = at - lo;
    for (int i = 0; i < h.e_phnum; i++)
        if (ph[i].p_type == PT_LOAD && map_segment(fd, &ph[i], out->base)) {
            bad = fail(error, n, path, strerror(errno));
            goto close_file;
        }
    out->entry = out->base + h.e_entry;
    out->phnum = h.e_phnum;
    for (int i = 0; i < h.e_phnum; i++) {
        if (ph[i].p_type == PT_PHDR) out->phdr = out->base + ph[i].p_vaddr;
        else if (!out->phdr && ph[i].p_type == PT_LOAD && ph[i].p_offset <= h.e_phoff &&
                 h.e_phoff < ph[i].p_offset + ph[i].p_filesz)
            out->phdr = out->base + ph[i].p_vaddr + (h.e_phoff - ph[i].p_offset);
    }
close_file:
    close(fd);
    return bad;
}

int mpy_elf_needs(const mpy_elf_t *program, const char *library) {
    const Elf64_Phdr *ph = (const Elf64_Phdr *)program->phdr;
    const Elf64_Dyn *dynamic = NULL;
    const char *strings = NULL;
    for (uint32_t i = 0; i < program->phnum; i++)
        if (ph[i].p_type == PT_DYNAMIC) dynamic = (const Elf64_Dyn *)(program->base + ph[i].p_vaddr);
    for (const Elf64_Dyn *d = dynamic; d && d->d_tag != DT_NULL; d++)
        if (d->d_tag == DT_STRTAB) strings = (const char *)(program->base + d->d_un.d_ptr);
    for (const Elf64_Dyn *d = dynamic; d && strings && d->d_tag != DT_NULL; d++)
        if (d->d_tag == DT_NEEDED && !strncmp(strings + d->d_un.d_val, library, strlen(library))) return 1;
    return 0;
}

/* vdso.c - a proxy vDSO in the arena, so that the program's clock calls stay fast and survive a restart.
 *
 * Half: lower; libc may be called.
 *
 * The program's libc resolves clock_gettime etc. once, in the shared object named by AT_SYSINFO_EHDR. The kernel's vDSO
 * has another address in every process. So the program gets an ELF image of our own at a fixed address, whose functions
 * jump through a table that each new lower half fills again. Without AT_SYSINFO_EHDR a clock read would be a system
 * call (282 ns instead of 22).
 *
 * After a restart clock_gettime leads to our function, which adds the offset of a shifted clock (clock.c), and
 * translates the ids in clocks of processor time.
 *
 * Layout from MPY_VDSO_ADDR: page 0 ELF headers, dynamic section, symbols, strings, hash, stubs (R+X); page 1 jump
 * table (R+W).
 *
 * Invariants
 *  1. glibc expects one PT_LOAD at vaddr 0 and a PT_DYNAMIC with flags R. It checks versions only if there is a versym
 *     table.
 *  2. Image and symbol order never change for one MPY_BOUNDARY_VERSION: a restored libc has cached the stubs'
 *     addresses.
 */
#include "vdso.h"
#include "clock.h"
#include <elf.h>
#include <manapy/boundary.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static const char *const names[] = {"__vdso_clock_gettime", "__vdso_gettimeofday", "__vdso_time", "__vdso_getcpu",
                                    "__vdso_clock_getres"};
static const int syscall_numbers[] = {SYS_clock_gettime, SYS_gettimeofday, SYS_time, SYS_getcpu, SYS_clock_getres};
enum {
    NAMES = sizeof names / sizeof names[0],
    TABLE = 0x1000,
    DYNAMIC = 0x100,
    SYMBOLS = 0x200,
    HASH = 0x300,
    STRINGS = 0x380,
    STUBS = 0x600,
    STUB_BYTES = 16,
    FALLBACK = 0x800
};

uint64_t mpy_vdso_install(void) {
    uint8_t *m = mmap((void *)MPY_VDSO_ADDR, 0x2000, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (m != (void *)MPY_VDSO_ADDR) return 0;
    Elf64_Ehdr *h = (void *)m;
    memcpy(h->e_ident, ELFMAG, SELFMAG);
    h->e_ident[EI_CLASS] = ELFCLASS64; h->e_ident[EI_DATA] = ELFDATA2LSB; h->e_ident[EI_VERSION] = EV_CURRENT;
    h->e_type = ET_DYN; h->e_machine = EM_X86_64; h->e_version = EV_CURRENT;
    h->e_phoff = sizeof *h; h->e_ehsize = sizeof *h; h->e_phentsize = sizeof(Elf64_Phdr); h->e_phnum = 2;
    Elf64_Phdr *p = (void *)(m + sizeof *h);
    p[0] =
        (Elf64_Phdr){.p_type = PT_LOAD, .p_flags = PF_R | PF_X, .p_filesz = 0x2000, .p_memsz = 0x2000, .p_align = 4096};
    p[1] = (Elf64_Phdr){.p_type = PT_DYNAMIC,
                        .p_flags = PF_R,
                        .p_offset = DYNAMIC,
                        .p_vaddr = DYNAMIC,
                        .p_filesz = 0x60,
                        .p_memsz = 0x60,
                        .p_align = 8};

    char *strings = (char *)m + STRINGS;
    uint32_t at = 1; /* strings[0] is the empty string */
    Elf64_Sym *sym = (void *)(m + SYMBOLS);
    uint32_t *hash = (void *)(m + HASH), *bucket = hash + 2, *chain = hash + 3;
    hash[0] = 1; hash[1] = NAMES + 1; /* one bucket, which every hash selects: a chain through all symbols */
    for (uint32_t i = 0; i < NAMES; i++) {
        strcpy(strings + at, names[i]);
        sym[i + 1] = (Elf64_Sym){.st_name = at,
                                 .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
                                 .st_shndx = 1,
                                 .st_value = STUBS + i * STUB_BYTES,
                                 .st_size = STUB_BYTES};
        at += (uint32_t)strlen(names[i]) + 1;
        chain[i + 1] = i + 2 <= NAMES ? i + 2 : 0;
        uint8_t *stub = m + STUBS + i * STUB_BYTES; /* jmp *disp32(%rip) */
        int32_t disp = (int32_t)(TABLE + 8 * i) - (int32_t)(STUBS + i * STUB_BYTES + 6);
        stub[0] = 0xff; stub[1] = 0x25; memcpy(stub + 2, &disp, 4);
        /* mov $nr,%eax; syscall; ret: for a kernel without that function */
        uint8_t *back = m + FALLBACK + i * STUB_BYTES;
        back[0] = 0xb8; memcpy(back + 1, &syscall_numbers[i], 4); back[5] = 0x0f; back[6] = 0x05; back[7] = 0xc3;
    }
    bucket[0] = 1;
    uint32_t soname = at;
    strcpy(strings + at, "linux-vdso.so.1");
    at += 16;
    Elf64_Dyn *d = (void *)(m + DYNAMIC);
    *d++ = (Elf64_Dyn){DT_HASH, {HASH}};
    *d++ = (Elf64_Dyn){DT_SYMTAB, {SYMBOLS}};
    *d++ = (Elf64_Dyn){DT_STRTAB, {STRINGS}};
    *d++ = (Elf64_Dyn){DT_STRSZ, {at}};
    *d++ = (Elf64_Dyn){DT_SONAME, {soname}};
    *d++ = (Elf64_Dyn){DT_NULL, {0}};
    mpy_vdso_refill();
    mprotect(m, 0x1000, PROT_READ | PROT_EXEC);
    return MPY_VDSO_ADDR;
}

static uint64_t kernel_function(const char *name) {
    uint64_t base = getauxval(AT_SYSINFO_EHDR);
    if (!base) return 0;
    const Elf64_Ehdr *h = (void *)base;
    const Elf64_Phdr *p = (void *)(base + h->e_phoff);
    const Elf64_Dyn *d = NULL;
    for (int i = 0; i < h->e_phnum; i++) if (p[i].p_type == PT_DYNAMIC) d = (void *)(base + p[i].p_vaddr);
    const Elf64_Sym *sym = NULL;
    const char *strings = NULL;
    const uint32_t *hash = NULL, *gnu = NULL;
    for (; d && d->d_tag != DT_NULL; d++) {
        if (d->d_tag == DT_SYMTAB) sym = (void *)(base + d->d_un.d_ptr);
        if (d->d_tag == DT_STRTAB) strings = (void *)(base + d->d_un.d_ptr);
        if (d->d_tag == DT_HASH) hash = (void *)(base + d->d_un.d_ptr);
        if (d->d_tag == DT_GNU_HASH) gnu = (void *)(base + d->d_un.d_ptr);
    }
    if (!sym || !strings || (!hash && !gnu)) return 0;
    /* newer kernels have only the GNU hash; the vDSO's symbol table directly precedes its strings */
    uint32_t count = 64;
    if (hash) count = hash[1];
    else if ((const char *)sym < strings) count = (uint32_t)((const Elf64_Sym *)strings - sym);
    for (uint32_t i = 1; i < count; i++)
        if (sym[i].st_shndx && !strcmp(strings + sym[i].st_name, name)) return base + sym[i].st_value;
    return 0;
}

void mpy_vdso_refill(void) {
    uint64_t *table = (void *)(MPY_VDSO_ADDR + TABLE);
    mpy_clock_kernel_gettime = (long (*)(clockid_t, struct timespec *))kernel_function(names[0]);
    for (int i = 0; i < NAMES; i++) {
        const bool ours = i == 0 && (mpy_clocks_shifted() || MPY_TRAP->nids > 0);
        uint64_t f = ours ? (uint64_t)mpy_clock_gettime : kernel_function(names[i]);
        table[i] = f ? f : MPY_VDSO_ADDR + FALLBACK + (uint64_t)i * STUB_BYTES;
    }
}

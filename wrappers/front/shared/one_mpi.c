/* one_mpi.c - refuses a program that has two MPIs: when the loader has loaded this library, before the program runs.
 *
 * Both libraries export the same names, and all calls go to the one that the loader found first. So calls of the other
 * one's programs would get handles of the wrong kind. This library needs libmpi.so.12 itself. A program has two MPIs if
 * something else needs it, too, or if it was there first.
 */
#include "front_interface.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

typedef struct { const char *name, *family; } library_t;
static const library_t libraries[] = {
    {"libmpi.so.12", "MPICH"},
    {"libmpich.so.12", "MPICH"},
    {"libmpi.so.40", "Open MPI"},
    {"libmpi_abi.so.1", "the standard ABI"},
};

static bool is_ours(const char *path) { return strstr(path, "/manapy/upper/") != NULL; }

/* The MPI library of another kind that a loaded object needs, or NULL. */
static const library_t *needs(const struct link_map *object) {
    const char *names = NULL;
    for (const ElfW(Dyn) *d = object->l_ld; d->d_tag != DT_NULL; d++)
        if (d->d_tag == DT_STRTAB) names = (const char *)d->d_un.d_ptr; /* glibc has relocated it to an address */
    if (names == NULL || (uintptr_t)names < (uintptr_t)object->l_addr) return NULL; /* the vDSO's isn't relocated */
    for (const ElfW(Dyn) *d = object->l_ld; d->d_tag != DT_NULL; d++)
        for (const library_t *l = libraries; l < libraries + sizeof libraries / sizeof *l && d->d_tag == DT_NEEDED; l++)
            if (strcmp(names + d->d_un.d_val, l->name) == 0 && strcmp(l->name, LIBRARY) != 0) return l;
    return NULL;
}

static void refuse(const char *who, const char *what) {
    char line[512];
    snprintf(line, sizeof line,
             "%s %s, and the program also loads " LIBRARY " (" FAMILY "): link everything with one MPI", who, what);
    mpy_core_end(line);
}

__attribute__((constructor)) static void check(void) {
    struct link_map *self = NULL;
    Dl_info info;
    if (!mpy_core_above() || !dladdr1(check, &info, (void **)&self, RTLD_DL_LINKMAP) || self == NULL) return;
    while (self->l_prev != NULL) self = self->l_prev;
    for (const struct link_map *object = self; object != NULL; object = object->l_next) {
        if (object->l_ld == NULL || is_ours(object->l_name)) continue;
        const library_t *library = needs(object);
        if (library == NULL) continue;
        char what[64];
        snprintf(what, sizeof what, "needs %s (%s)", library->name, library->family);
        refuse(object->l_name[0] != 0 ? object->l_name : "the program", what);
    }
    if (dlsym(RTLD_DEFAULT, "PMPI_Send") == (void *)mpy_core_functions[MPY_FN_Send])
        refuse("the program", "has loaded libmpi.so.12 (MPICH)");
}

/* load.c - finds and opens the real MPI, and fills the function table of the lower block.
 *
 * Half: lower; mpy_mpi_load is called on the lower TLS, from the program's MPI_Init (or by the restore).
 *
 * Order of search: --mpi, MANAPY_LIBMPI, the prefix of the mpirun that started us, the prefix in which manapy is
 * installed; for Open MPI then the dynamic linker's. What has started us decides which family is looked for: a library
 * of another one would not find the other ranks.
 *
 * A library with MPICH's ABI fills the table itself. For Open MPI, and for a library of the MPI-5 standard ABI, a back
 * does it (back/back.h). The standard ABI is taken only where there is no other library: it costs a translation.
 *
 * Invariants
 *  1. No slot of the table is NULL: a function that an older library lacks gets a stub that returns an error.
 *  2. The library sees the environment as the program left it at MPI_Init.
 *  3. Init runs with low descriptor numbers occupied and all signals blocked, so that descriptors and threads of the
 *     library do not interfere with the program.
 */
#include "load.h"
#include "back/back.h"
#include "base/rank.h"
#include "isolate/fdguard.h"
#include "join/manager/pmi.h"
#include "join/manager/pmix.h"
#include "rdma.h"
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <malloc.h>
#include <manapy/proc_stat.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "function_names.h"
#include "functions.h"

/* MPI libraries allocate temporary buffers as large as a message for each call. Without manapy, malloc learns from the
 * program's own frees to keep such memory. Here the program has another malloc, and each call would have to touch fresh
 * pages. */
enum { MALLOC_MMAPS_FROM = 32 << 20 /* the maximum that mallopt accepts */, MALLOC_TRIMS_FROM = 64 << 20 };

static int missing(void) { return MPI_ERR_UNSUPPORTED_OPERATION; }
static char found[PATH_MAX];

static int try_file(const char *path) {
    if (access(path, R_OK)) return 0;
    return realpath(path, found) != NULL;
}

typedef enum { FAMILY_MPICH, FAMILY_OPEN_MPI, FAMILY_STANDARD } family_t;

static int try_family(const char *prefix, family_t family) {
    static const char *const places[][7] = {
        [FAMILY_MPICH] = {"lib/libmpi.so.12", "lib64/libmpi.so.12", "lib/libmpich.so.12",
                          "lib/x86_64-linux-gnu/libmpich.so.12", "lib/x86_64-linux-gnu/libmpi.so.12",
                          "lib/release/libmpi.so.12"},
        [FAMILY_OPEN_MPI] = {"lib/libmpi.so.40", "lib64/libmpi.so.40", "lib/x86_64-linux-gnu/libmpi.so.40",
                             "lib64/openmpi/lib/libmpi.so.40"},
        [FAMILY_STANDARD] = {"lib/libmpi_abi.so.1", "lib64/libmpi_abi.so.1",
                             "lib/x86_64-linux-gnu/libmpi_abi.so.1"}};
    for (size_t i = 0; places[family][i]; i++) {
        char path[PATH_MAX + 64];
        snprintf(path, sizeof path, "%s/%s", prefix, places[family][i]);
        if (try_file(path)) return 1;
    }
    return 0;
}

/* The family that can find the other ranks. A library of the standard ABI may be of either kind. */
static family_t wanted_family(void) { return mpy_pmix_is_there() ? FAMILY_OPEN_MPI : FAMILY_MPICH; }
static int try_wanted(const char *prefix) {
    return try_family(prefix, wanted_family()) || try_family(prefix, FAMILY_STANDARD);
}

static int try_prefix(const char *prefix) {
    return try_wanted(prefix) || try_family(prefix, FAMILY_MPICH) || try_family(prefix, FAMILY_OPEN_MPI);
}

static int try_any(const char *path) { /* path: a file, or a prefix */
    char inside[PATH_MAX];
    snprintf(inside, sizeof inside, "%s/.", path);
    return access(inside, X_OK) == 0 ? try_prefix(path) : try_file(path);
}

/* The nearest ancestor that is a process manager determines the prefix of the MPI. */
static int try_ancestors(void) {
    static const char *const managers[] = {"hydra_pmi_proxy", "mpiexec", "mpirun", "prterun",
                                           "prted",           "orted",   "orterun"};
    for (long pid = getppid(); pid > 1;) {
        char link[64], exe[PATH_MAX] = "";
        snprintf(link, sizeof link, "/proc/%ld/exe", pid);
        if (readlink(link, exe, sizeof exe - 1) > 0) {
            char *name = strrchr(exe, '/');
            for (size_t i = 0; name && i < sizeof managers / sizeof *managers; i++)
                if (!strncmp(name + 1, managers[i], strlen(managers[i]))) {
                    *name = 0;
                    char *bin = strrchr(exe, '/');
                    if (bin) *bin = 0;
                    return try_wanted(exe[0] ? exe : "/");
                }
        }
        mpy_proc_stat_t stat;
        if (mpy_proc_stat(pid, &stat)) return 0;
        pid = stat.parent;
    }
    return 0;
}

static int try_own_prefix(void) {
    char prefix[PATH_MAX];
    snprintf(prefix, sizeof prefix, "%s", mpy_self_path());
    for (int i = 0; i < 2; i++) *strrchr(prefix, '/') = 0;
    return try_family(prefix, wanted_family());
}

/* What programs linked to Open MPI would get. */
static int try_linker(void) {
    struct link_map *map;
    void *library = wanted_family() == FAMILY_OPEN_MPI ? dlopen("libmpi.so.40", RTLD_LAZY | RTLD_LOCAL) : NULL;
    return library && !dlinfo(library, RTLD_DI_LINKMAP, &map) && try_file(map->l_name);
}

const char *mpy_mpi_path(void) {
    if (found[0]) return found;
    const char *env = getenv("MANAPY_LIBMPI");
    if (mpy_options.mpi) return try_any(mpy_options.mpi) ? found : NULL; /* exactly the requested one, or none */
    if (env && *env) return try_any(env) ? found : NULL;
    return try_ancestors() || try_own_prefix() || try_linker() ? found : NULL;
}

/* Invariant 2. Variables that the launcher has changed for the program, and those by which mpirun tells the library its
 * place in the job, keep our values. */
static void adopt_environment(char **env) {
    static const char *const ours[] = {
        "LD_LIBRARY_PATH=", "MPI4PY_LIBMPI=",    "MPI4PY_MPIABI=",   "LD_PRELOAD=",        "PMI_",
        "PMIX_",            "HYDI_",             "HYDRA_",           "MPI_LOCALRANKID=",   "MPI_LOCALNRANKS=",
        "MANAPY_SHIFT_",    "OMPI_COMM_WORLD_",  "OMPI_MCA_orte_",   "OMPI_MCA_ess_",      "OMPI_FILE_LOCATION=",
        "OMPI_APP_CTX_",    "OMPI_FIRST_RANKS=", "OMPI_NUM_APP_",    "OMPI_UNIVERSE_SIZE", "ORTE_",
        "PRTE_"};
    for (; env && *env; env++) {
        int skip = 0;
        for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) skip |= !strncmp(*env, ours[i], strlen(ours[i]));
        char *equals = strchr(*env, '=');
        if (skip || !equals || equals == *env) continue;
        char *copy = strdup(*env);
        if (copy) putenv(copy); /* never freed, because putenv keeps the pointer */
    }
}

/* ---- what initializes MPI, with precautions (invariant 3) ---- */

static int (*real_init)(int *, char ***);
static int (*real_init_thread)(int *, char ***, int, int *);
static int (*real_session_init)(MPI_Info, MPI_Errhandler, MPI_Session *);

static sigset_t begin(void) {
    sigset_t all, old;
    sigfillset(&all);
    sigdelset(&all, SIGSYS);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    mpy_fds_scan_begin();
    mpy_fds_occupy_low();
    return old;
}

static int end(sigset_t old, int rc) {
    mpy_fds_release_low();
    mpy_fds_scan_end();
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

static int init(int *argc, char ***argv) {
    sigset_t old = begin();
    return end(old, real_init(argc, argv));
}

static int init_thread(int *argc, char ***argv, int required, int *provided) {
    sigset_t old = begin();
    return end(old, real_init_thread(argc, argv, required, provided));
}

static int session_init(MPI_Info info, MPI_Errhandler errhandler, MPI_Session *session) {
    sigset_t old = begin();
    return end(old, real_session_init(info, errhandler, session));
}

void mpy_mpi_segments(char *out, size_t n) {
    char line[PATH_MAX + 128];
    size_t used = 0;
    mpy_fds_low_lock(); /* the control thread also calls this while a restart is moving descriptors into place */
    FILE *f = fopen("/proc/self/maps", "re");
    while (f && fgets(line, sizeof line, f)) {
        uint64_t lo = strtoul(line, NULL, 16);
        char *path = strstr(line, "/dev/shm/");
        /* mappings of the program are not MPI's */
        if (!path || strstr(path, " (deleted)") || (lo >= MPY_ARENA_LO && lo < MPY_ARENA_HI)) continue;
        path[strcspn(path, "\n")] = 0;
        if (strpbrk(path, ", %") || used + strlen(path) + 2 > n) continue;
        used += (size_t)snprintf(out + used, n - used, "%s%s", used ? "," : "", path);
    }
    if (f) fclose(f);
    mpy_fds_low_unlock();
    if (!used) snprintf(out, n, "-");
}

/* ---- a library that cannot find the other ranks ---- */

static mpy_manager_t manager;

void mpy_mpi_started_by(mpy_manager_t by) { manager = by; }

static __attribute__((format(printf, 1, 2))) void refuse(const char *format, ...) {
    char line[2 * PATH_MAX + 512];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    mpy_pmi_let_rank0_speak(manager, MPY_LOWER->rank);
    MPY_LOWER->svc->die(line, 1);
}

/* Does the library's own text name its maker? */
static bool is_by(void *library, const char *maker) {
    static char text[1 << 14]; /* MPI_MAX_LIBRARY_VERSION_STRING of MPICH's ABI is 8192 */
    int length = 0, (*version)(char *, int *) = (int (*)(char *, int *))dlsym(library, "MPI_Get_library_version");
    return version && version(text, &length) == 0 && strstr(text, maker) != NULL;
}

/* The mpirun beside a library, if there is one: PREFIX/lib/libmpi.so. */
static void mpirun_of(const char *library, int intels, bool open_mpis, char *out, size_t n) {
    char prefix[PATH_MAX];
    snprintf(prefix, sizeof prefix, "%s", library);
    for (char *slash; (slash = strrchr(prefix, '/')) != NULL && slash != prefix;) {
        *slash = 0;
        static const char *const names[] = {"mpirun.openmpi", "mpirun.mpich", "mpiexec.hydra", "mpirun"};
        for (size_t i = open_mpis ? 0 : strstr(library, "mpich") ? 1 : intels ? 2 : 3; i < 4; i++) {
            snprintf(out, n, "%s/bin/%s", prefix, names[i]);
            if (access(out, X_OK) == 0) return;
        }
    }
    snprintf(out, n, "mpirun");
}

/* Each rank would be alone. */
static void refuse_strangers(void *library, const char *path) {
    bool open_mpis = is_by(library, "Open MPI");
    bool strange = open_mpis ? manager == MPY_MANAGER_PMI && MPY_LOWER->size > 1 : manager == MPY_MANAGER_PMIX;
    if (!strange) return;
    char mpirun[PATH_MAX + 32];
    bool intels = is_by(library, "Intel"); /* whose mpirun is a script that starts the mpiexec.hydra on PATH */
    const char *whose = intels ? "Intel MPI's" : "MPICH's";
    mpirun_of(path, intels, open_mpis, mpirun, sizeof mpirun);
    if (!open_mpis)
        refuse("%s has started this rank, but the MPI library is %s: each rank would be alone; use %s %s, or name an "
               "Open MPI with --mpi PATH (%s)", mpy_pmix_launcher(), whose, whose, mpirun, path);
    refuse("%s has started this rank, but the MPI library is Open MPI: each rank would be alone; use Open MPI's %s, or "
           "name an MPICH with --mpi PATH (%s)", mpy_pmi_is_hydra() ? "MPICH's mpirun" : "srun --mpi=pmi2", mpirun,
           path);
}

/* ---- the function table ---- */

static void fill_directly(void *library) {
    for (int i = 0; i < MPY_FN_COUNT; i++) {
        void *f = dlsym(library, mpy_function_names[i]);
        MPY_LOWER->mpi[i] = f ? f : (void *)missing;
    }
    for (int i = 0; i < MPY_DATA_COUNT; i++) {
        void **symbol = dlsym(library, mpy_data_names[i]);
        MPY_LOWER->mpi_data[i] = symbol ? *symbol : NULL;
    }
}

/* Which binary interface does it have? Open MPI's library of the standard ABI may bring Open MPI's symbols, too. */
static family_t family_of(void *library) {
    int major = 0, minor = 0, (*version)(int *, int *) = (int (*)(int *, int *))dlsym(library, "MPI_Abi_get_version");
    if (version && version(&major, &minor) == 0 && major > 0) return FAMILY_STANDARD;
    return dlsym(library, "ompi_mpi_comm_world") ? FAMILY_OPEN_MPI : FAMILY_MPICH;
}

static void fill_from_back(void *library, const char *path, const char *name) {
    char file[PATH_MAX + 64], error[512];
    snprintf(file, sizeof file, "%s/../back/libmanapy-back-%s.so", mpy_upper_dir(), name);
    void *back = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    mpy_back_open_t *fill = back ? (mpy_back_open_t *)dlsym(back, MPY_BACK_OPEN) : NULL;
    if (!fill) refuse("cannot load the part of manapy for this MPI: %s", dlerror());
    if (!fill(library, MPY_LOWER->mpi, MPY_LOWER->mpi_data, (void *)missing, error, sizeof error))
        refuse("%s cannot be used: %s", path, error);
}

static void guard(int slot, void **real, void *ours) {
    *real = MPY_LOWER->mpi[slot];
    MPY_LOWER->mpi[slot] = ours;
}

void mpy_mpi_load(char **env) {
    static int loaded;
    if (loaded) return;
    adopt_environment(env);
    mallopt(M_MMAP_THRESHOLD, MALLOC_MMAPS_FROM);
    mallopt(M_TRIM_THRESHOLD, MALLOC_TRIMS_FROM);
    const char *path = mpy_mpi_path();
    char line[PATH_MAX + 256];
    if (!path) {
        const char *asked = mpy_options.mpi ? mpy_options.mpi : getenv("MANAPY_LIBMPI");
        if (asked && *asked)
            snprintf(line, sizeof line, "no MPI library at %s (from %s); give a libmpi.so.12, a libmpi.so.40, a "
                     "libmpi_abi.so.1 or an installation prefix",
                     asked, mpy_options.mpi ? "--mpi" : "MANAPY_LIBMPI");
        else
            snprintf(line, sizeof line,
                     "no MPI library found: install one (pip install mpich), or name it with --mpi PATH or "
                     "MANAPY_LIBMPI (see `manapy doctor`)");
        MPY_LOWER->svc->die(line, 1);
    }
    mpy_rdma_load();
    mpy_pmix_make_way();
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        snprintf(line, sizeof line, "cannot load the MPI library: %s", dlerror());
        MPY_LOWER->svc->die(line, 1);
    }
    refuse_strangers(library, path);
    switch (family_of(library)) {
    case FAMILY_MPICH: fill_directly(library); break;
    case FAMILY_OPEN_MPI: fill_from_back(library, path, "openmpi"); break;
    case FAMILY_STANDARD: fill_from_back(library, path, "standard"); break;
    }
    guard(MPY_FN_Init, (void **)&real_init, (void *)init);
    guard(MPY_FN_Init_thread, (void **)&real_init_thread, (void *)init_thread);
    guard(MPY_FN_Session_init, (void **)&real_session_init, (void *)session_init);
    loaded = 1;
}

/* dynamic.c - connections to processes outside the job: spawn, connect and accept, join, ports and names. They run
 * natively. While a connection is open no checkpoint is possible, because the other side can't be stopped or restored.
 *
 * Upper half, no libc.
 *
 * Invariants
 *  1. MPY_UPPER->obstacle (with clock.lock) gives the reason whenever a foreign communicator exists, a file of such a
 *     communicator is open, or a call waits for processes outside: it names the oldest connection. Duplicates and
 *     merges of a foreign communicator are connections, too.
 *  2. Two parts of one job may accept and connect to each other. Both sides then tell each other their parent
 *     communicators, from which they derive the identity of the new one.
 *  3. A port of the program keeps its name over a restart: another real port is opened for it, and its published names
 *     are published again. Names that other processes had received before are useless then; they must look them up
 *     again.
 */
#include "comm.h"
#include "clock/clock.h"
#include "environment/errors.h"
#include "environment/info.h"

/* ---- the reason why a checkpoint isn't possible ---- */

static struct { const char *function; uint32_t calls; } waiting; /* calls that wait for processes outside */

static const mpy_comm_record_t *oldest_connection(void) {
    for (mpy_link_t *l = mpy_comms.next; l != &mpy_comms; l = l->next) {
        const mpy_comm_record_t *r = MPY_COMM_RECORD(l);
        if (r->comm.foreign && r->origin != NULL && r->comm.obj.handle != 0) return r;
    }
    return NULL;
}

static mpy_foreign_file_t *files; /* with mpy_objects_lock */

void mpy_connections_changed(void) {
    mpy_lock(&mpy_objects_lock);
    mpy_lock(&MPY_UPPER->clock.lock);
    const mpy_comm_record_t *r = oldest_connection();
    char *line = MPY_UPPER->obstacle;
    if (r != NULL)
        mpy_text_format(line, sizeof MPY_UPPER->obstacle,
                        "%s%s%s connects to processes outside the job (made by %s): a checkpoint is possible after "
                        "MPI_Comm_disconnect",
                        r->comm.has_name ? "communicator '" : "a communicator", r->comm.name,
                        r->comm.has_name ? "'" : "", r->origin);
    else if (files != NULL) /* its name may be too long for the line */
        mpy_text_format(line, sizeof MPY_UPPER->obstacle,
                        "an MPI file is open in processes outside the job, too (a checkpoint is possible after "
                        "MPI_File_close): %s",
                        files->name);
    else if (waiting.calls > 0)
        mpy_text_format(line, sizeof MPY_UPPER->obstacle, "%s waits for processes outside the job", waiting.function);
    else
        line[0] = 0;
    mpy_unlock(&MPY_UPPER->clock.lock);
    mpy_unlock(&mpy_objects_lock);
}

void mpy_foreign_file_open(mpy_foreign_file_t *f) {
    mpy_lock(&mpy_objects_lock);
    f->next = files;
    files = f;
    mpy_unlock(&mpy_objects_lock);
    mpy_connections_changed();
}

void mpy_foreign_file_close(const mpy_foreign_file_t *f) {
    mpy_lock(&mpy_objects_lock);
    mpy_foreign_file_t **at = &files;
    while (*at != f) at = &(*at)->next;
    *at = f->next;
    mpy_unlock(&mpy_objects_lock);
    mpy_connections_changed();
}

void mpy_obstacle(const char *line) {
    mpy_lock(&MPY_UPPER->clock.lock);
    mpy_text_format(MPY_UPPER->obstacle, sizeof MPY_UPPER->obstacle, "%s", line);
    mpy_unlock(&MPY_UPPER->clock.lock);
}

static void wait_begin(mpy_thread_t *t, const char *function) {
    mpy_guard_in(t);
    waiting.function = function;
    __atomic_add_fetch(&waiting.calls, 1, __ATOMIC_RELAXED);
    mpy_connections_changed();
    mpy_guard_out(t);
}
/* In the lower half. */
static void wait_end(void) {
    __atomic_sub_fetch(&waiting.calls, 1, __ATOMIC_RELAXED);
    mpy_connections_changed();
}

/* ---- ports and published names ---- */

typedef struct service {
    struct service *next;
    char *name;
    int info; /* a copy of the program's info, like those below */
} service_t;
enum { PORT_NAME = 65536 }; /* larger than MPI_MAX_PORT_NAME: MPICH's hint port_name_size may allow that */
typedef struct port {
    struct port *next;
    char *name; /* the name that the program knows */
    char *real;
    int info;
    service_t *services;
} port_t;
static port_t *ports; /* these lists with mpy_objects_lock */

/* With the lock. */
static port_t **port_find(const char *name) {
    port_t **p = &ports;
    while (*p != NULL && !(name != NULL && mpy_text_equal((*p)->name, name))) p = &(*p)->next;
    return p;
}

/* The port of a name, or NULL. */
static port_t *port_of(const char *name) {
    mpy_lock(&mpy_objects_lock);
    port_t *p = *port_find(name);
    mpy_unlock(&mpy_objects_lock);
    return p;
}

static const char *real_port(const char *name) {
    const port_t *p = port_of(name);
    return p != NULL ? p->real : name;
}

int PMPI_Open_port(MPI_Info info, char *port_name) {
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = MPY_REAL(Open_port)(mpy_real_info(info), port_name);
    if (rc == 0) {
        port_t *p = mpy_alloc(sizeof *p);
        p->name = mpy_text_copy(port_name);
        p->real = mpy_text_copy(port_name);
        p->info = MPI_INFO_NULL;
        mpy_info_merge(&p->info, info);
        mpy_lock(&mpy_objects_lock);
        p->next = ports;
        ports = p;
        mpy_unlock(&mpy_objects_lock);
    }
    mpy_cross_out(t);
    return mpy_error(NULL, rc, "MPI_Open_port");
}

static void service_free(service_t *s) {
    mpy_text_free(s->name);
    mpy_info_drop(s->info);
    mpy_free(s, sizeof *s);
}

int PMPI_Close_port(const char *port_name) {
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = MPY_REAL(Close_port)(real_port(port_name));
    port_t *p = NULL;
    if (rc == 0) {
        mpy_lock(&mpy_objects_lock);
        port_t **at = port_find(port_name);
        if ((p = *at) != NULL) *at = p->next;
        mpy_unlock(&mpy_objects_lock);
    }
    if (p != NULL) {
        for (service_t *s = p->services, *next; s != NULL; s = next) {
            next = s->next;
            service_free(s);
        }
        mpy_info_drop(p->info);
        mpy_text_free(p->name);
        mpy_text_free(p->real);
        mpy_free(p, sizeof *p);
    }
    mpy_cross_out(t);
    return mpy_error(NULL, rc, "MPI_Close_port");
}

int PMPI_Publish_name(const char *service_name, MPI_Info info, const char *port_name) {
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    port_t *p = port_of(port_name);
    int rc = MPY_REAL(Publish_name)(service_name, mpy_real_info(info), real_port(port_name));
    if (rc == 0 && p != NULL) {
        service_t *s = mpy_alloc(sizeof *s);
        s->name = mpy_text_copy(service_name);
        s->info = MPI_INFO_NULL;
        mpy_info_merge(&s->info, info);
        mpy_lock(&mpy_objects_lock);
        s->next = p->services;
        p->services = s;
        mpy_unlock(&mpy_objects_lock);
    }
    mpy_cross_out(t);
    return mpy_error(NULL, rc, "MPI_Publish_name");
}

int PMPI_Unpublish_name(const char *service_name, MPI_Info info, const char *port_name) {
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    port_t *p = port_of(port_name);
    int rc = MPY_REAL(Unpublish_name)(service_name, mpy_real_info(info), real_port(port_name));
    service_t *gone = NULL;
    if (rc == 0 && p != NULL) {
        mpy_lock(&mpy_objects_lock);
        service_t **s = &p->services;
        while (*s != NULL && !mpy_text_equal((*s)->name, service_name)) s = &(*s)->next;
        if ((gone = *s) != NULL) *s = gone->next;
        mpy_unlock(&mpy_objects_lock);
    }
    if (gone != NULL) service_free(gone);
    mpy_cross_out(t);
    return mpy_error(NULL, rc, "MPI_Unpublish_name");
}

int PMPI_Lookup_name(const char *service_name, MPI_Info info, char *port_name) {
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = MPY_REAL(Lookup_name)(service_name, mpy_real_info(info), port_name);
    mpy_lock(&mpy_objects_lock);
    for (const port_t *p = ports; rc == 0 && p != NULL; p = p->next)
        if (mpy_text_equal(p->real, port_name)) {
            __builtin_memcpy(port_name, p->name, mpy_text_length(p->name) + 1);
            break;
        }
    mpy_unlock(&mpy_objects_lock);
    mpy_cross_out(t);
    return mpy_error(NULL, rc, "MPI_Lookup_name");
}

static int port_rebuild(port_t *p) {
    char *name = mpy_alloc(PORT_NAME);
    int rc = MPY_REAL(Open_port)(mpy_real_info(p->info), name);
    mpy_text_free(p->real);
    p->real = mpy_text_copy(name);
    mpy_free(name, PORT_NAME);
    for (const service_t *s = p->services; s != NULL && rc == 0; s = s->next) {
        int info = mpy_real_info(s->info);
        MPY_REAL(Unpublish_name)(s->name, info, p->real); /* a server may still have the old name */
        rc = MPY_REAL(Publish_name)(s->name, info, p->real);
    }
    return rc;
}

int mpy_port_rebuild(char *error, uint64_t n) {
    mpy_thread_t *t = &MPY_UPPER->threads[0];
    mpy_hook_in(t);
    const char *failed = "";
    int rc = 0;
    for (port_t *p = ports; p != NULL && rc == 0; p = p->next) {
        failed = p->name;
        rc = port_rebuild(p);
    }
    mpy_hook_out(t);
    if (rc == 0) return 0;
    mpy_text_format(error, n, "cannot open the port '%s' again (MPI error %d)", failed, rc);
    return -1;
}

/* ---- connections ---- */

/* In the lower half: adopts a communicator that connects two groups which did not know each other. */
static mpy_comm_t *adopt_pair(int real, mpy_comm_t *parent, uint64_t seq, const char *origin) {
    mpy_comm_t *c = mpy_comm_read(real);
    mpy_comm_record_t *r = (mpy_comm_record_t *)c;
    uint64_t cid, own = mpy_comm_cid(parent), other;
    if (c->foreign) {
        cid = mpy_child_cid(mpy_row(parent->row)->cid, seq, r->members[0]);
    } else {
        enum { TAG = -2 }; /* invariant 2; no other constructor uses this tag */
        if (MPY_REAL(Allreduce)(&own, &other, 1, MPI_UINT64_T, MPI_MAX, real) != MPI_SUCCESS)
            MPY_LOWER->svc->die("can't agree on a new communicator", 1);
        uint64_t both = mpy_comm_pair_id(own, other);
        cid = mpy_group_cid(both, TAG, mpy_comm_count(parent, both, TAG));
    }
    r->origin = origin;
    mpy_comm_publish(c, cid, parent->errhandler);
    return c;
}

/* MPI_Comm_accept and MPI_Comm_connect, which have the same type. */
static int meet(int slot, const char *port_name, MPI_Info info, int root, MPI_Comm comm, MPI_Comm *newcomm,
                const char *name) {
    wait_begin(mpy_self(), name);
    mpy_construction_t k = mpy_construct_begin(comm);
    mpy_comm_t *c = NULL;
    /* on other ranks the argument is ignored */
    const char *port = k.parent != NULL && k.parent->rank == root ? real_port(port_name) : port_name;
    mpy_fn_Comm_accept_t meet = (mpy_fn_Comm_accept_t)MPY_LOWER->mpi[slot];
    k.rc = meet(port, mpy_real_info(info), root, mpy_real_comm(comm), &k.real);
    if (k.rc == 0 && k.parent != NULL) c = adopt_pair(k.real, k.parent, k.seq, name);
    wait_end();
    return mpy_construct_leave(&k, c, newcomm, name);
}

int PMPI_Comm_accept(const char *port_name, MPI_Info info, int root, MPI_Comm comm, MPI_Comm *newcomm) {
    return meet(MPY_FN_Comm_accept, port_name, info, root, comm, newcomm, "MPI_Comm_accept");
}
int PMPI_Comm_connect(const char *port_name, MPI_Info info, int root, MPI_Comm comm, MPI_Comm *newcomm) {
    return meet(MPY_FN_Comm_connect, port_name, info, root, comm, newcomm, "MPI_Comm_connect");
}

/* Two processes with a socket between them. Each is the only member of its side. */
int PMPI_Comm_join(int fd, MPI_Comm *intercomm) {
    static const char name[] = "MPI_Comm_join";
    wait_begin(mpy_self(), name);
    mpy_construction_t k = mpy_construct_begin(MPI_COMM_SELF);
    mpy_comm_t *c = NULL;
    k.rc = MPY_REAL(Comm_join)(fd, &k.real);
    if (k.rc == 0 && k.real != MPI_COMM_NULL) c = adopt_pair(k.real, k.parent, k.seq, name);
    wait_end();
    return mpy_construct_leave(&k, c, intercomm, name);
}

int PMPI_Comm_spawn(const char *command, char *argv[], int maxprocs, MPI_Info info, int root, MPI_Comm comm,
                    MPI_Comm *intercomm, int array_of_errcodes[]) {
    static const char name[] = "MPI_Comm_spawn";
    wait_begin(mpy_self(), name);
    mpy_construction_t k = mpy_construct_begin(comm);
    k.rc = MPY_REAL(Comm_spawn)(command, argv, maxprocs, mpy_real_info(info), root, mpy_real_comm(comm),
                                &k.real, array_of_errcodes);
    wait_end();
    return mpy_construct_end(&k, intercomm, name);
}

int PMPI_Comm_spawn_multiple(int count, char *array_of_commands[], char **array_of_argv[],
                             const int array_of_maxprocs[], const MPI_Info array_of_info[], int root, MPI_Comm comm,
                             MPI_Comm *intercomm, int array_of_errcodes[]) {
    static const char name[] = "MPI_Comm_spawn_multiple";
    wait_begin(mpy_self(), name);
    mpy_construction_t k = mpy_construct_begin(comm);
    /* on other ranks the arrays are ignored */
    bool root_here = k.parent != NULL && k.parent->rank == root && count > 0 && array_of_info != NULL;
    int *infos = root_here ? mpy_alloc((size_t)count * sizeof *infos) : NULL;
    for (int i = 0; infos != NULL && i < count; i++) infos[i] = mpy_real_info(array_of_info[i]);
    k.rc = MPY_REAL(Comm_spawn_multiple)(count, array_of_commands, array_of_argv, array_of_maxprocs,
                                         root_here ? infos : array_of_info, root, mpy_real_comm(comm),
                                         &k.real, array_of_errcodes);
    if (infos != NULL) mpy_free(infos, (size_t)count * sizeof *infos);
    wait_end();
    return mpy_construct_end(&k, intercomm, name);
}

/* ---- the spawned side ---- */

/* The communicator to the processes that have spawned us. When the program has freed it, another one may get its
 * handle, but never its identity. */
static struct { int handle; uint64_t cid; } parent = {.handle = MPI_COMM_NULL};

void mpy_parent_adopt(void) {
    int real = MPI_COMM_NULL;
    if (MPY_REAL(Comm_get_parent)(&real) != 0 || real == MPI_COMM_NULL) return;
    mpy_comm_t *c = adopt_pair(real, mpy_world, 0, "MPI_Comm_spawn of the job's parent");
    parent.handle = c->obj.handle;
    parent.cid = mpy_comm_cid(c);
    mpy_comm_name(c, "MPI_COMM_PARENT");
    mpy_connections_changed();
}

int PMPI_Comm_get_parent(MPI_Comm *comm) {
    const mpy_comm_t *c = mpy_comm(parent.handle);
    *comm = c != NULL && mpy_comm_cid(c) == parent.cid ? parent.handle : MPI_COMM_NULL;
    return MPI_SUCCESS;
}

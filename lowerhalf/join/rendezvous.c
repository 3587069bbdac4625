/* rendezvous.c - the first step of every rank: find its place in the job and agree on job directory and coordinator.
 * Lower half; libc; still one thread.
 *
 *   rank 0: job directory, secret, listening socket, job.json -> start coordinator -> put "port host dir" -> barrier
 *   others: barrier -> get -> read secret
 *
 * In a chain, rank 0 first asks what this step must do (chain.h). If it must continue a checkpoint, all ranks first
 * agree whether its images are undamaged (agreement.c); if not, rank 0 asks again.
 *
 * Invariants
 *  1. No rank waits for the coordinator's interpreter: it starts beside the program, and connections made meanwhile
 *     wait in the listening socket's backlog.
 *  2. If rank 0 fails it publishes that, so no rank waits for it at the barrier. It ends when all ranks have read it:
 *     hydra breaks down, and can lose what rank 0 has said, if a rank is ended whose request it is answering.
 *  3. The coordinator has none of the ranks' descriptors (mpirun waits until the ranks' pipes are closed). It is in a
 *     session of its own, so signals sent to mpirun's process group do not reach it. But schedulers find it as a
 *     process of the job. It ignores the signals that they send as a warning (SIGTERM, the signal of `sbatch
 *     --signal`), because it is needed most at that time. It ends with the ranks. The same holds for agents (node.c).
 */
#define _GNU_SOURCE
#include "rendezvous.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agreement.h"
#include "base/io/host.h"
#include "base/reason.h"
#include "command.h"
#include "isolate/fdguard.h"
#include "jobdir.h"
#include "leftovers.h"
#include "manager/board.h"
#include "node.h"
#include "wire/wire.h"

enum { TEXT_MAX = 3072 };

/* ---- the coordinator's socket ---- */

bool mpy_job_address(struct sockaddr_storage *out, socklen_t *size, char *error, size_t n) {
    char name[MPY_HOST_NAME];
    mpy_hostname(name, sizeof name);
    const char *given = getenv("MANAPY_ADDRESS");
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *list = NULL;
    bool found = false;
    for (int family = 0; family < 2 && !found; family++) { /* IPv4 first */
        hints.ai_family = family == 0 ? AF_INET : AF_INET6;
        if (getaddrinfo(given != NULL ? given : name, NULL, &hints, &list) != 0) continue;
        for (struct addrinfo *a = list; a != NULL && !found; a = a->ai_next) {
            if (given == NULL && mpy_is_loopback(a->ai_addr)) continue;
            memcpy(out, a->ai_addr, a->ai_addrlen);
            *size = a->ai_addrlen;
            found = true;
        }
        freeaddrinfo(list);
    }
    struct ifaddrs *interfaces = NULL;
    if (!found && given == NULL && getifaddrs(&interfaces) == 0) {
        for (struct ifaddrs *i = interfaces; i != NULL && !found; i = i->ifa_next) {
            if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP) ||
                mpy_is_loopback(i->ifa_addr))
                continue;
            memcpy(out, i->ifa_addr, sizeof(struct sockaddr_in));
            *size = sizeof(struct sockaddr_in);
            found = true;
        }
        freeifaddrs(interfaces);
    }
    if (!found)
        mpy_reason(error, n, "host %s has no address that other hosts can reach; set MANAPY_ADDRESS",
                   given != NULL ? given : name);
    return found;
}

static int open_listener(mpy_job_t *job, char *error, size_t n) {
    struct sockaddr_storage address = {0};
    socklen_t size = mpy_loopback(AF_INET, &address);
    if (job->local_size != job->size && !mpy_job_address(&address, &size, error, n)) return -1;
    char service[16];
    int fd = mpy_fd_high(socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    socklen_t full = sizeof address;
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, size) < 0 || listen(fd, SOMAXCONN) < 0 ||
        getsockname(fd, (struct sockaddr *)&address, &full) < 0 ||
        getnameinfo((struct sockaddr *)&address, full, job->host, sizeof job->host, service, sizeof service,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
        mpy_reason(error, n, "cannot open the coordinator's socket: %s", strerror(errno));
        mpy_fd_close(fd);
        return -1;
    }
    job->port = atoi(service);
    return fd;
}

/* ---- the coordinator ---- */

static bool start_coordinator(const mpy_rendezvous_options_t *options, mpy_job_t *job, int listener, int lock,
                              char *error, size_t n) {
    const mpy_checkpoint_options_t *checkpoints = options->checkpoints;
    int words[2] = {-1, -1};
    char path[PATH_MAX], log_path[PATH_MAX], ranks[16], pid[16], interval[32], keep[16], grace[16], full[16], flush[32];
    if (!mpy_command_path(path, error, n)) return false;
    snprintf(log_path, sizeof log_path, "%s/coordinator.log", job->dir);
    snprintf(ranks, sizeof ranks, "%d", job->size);
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    const char *argv[40] = {path, "_coordinator", "--dir", job->dir, "--fd", "3", "--ranks", ranks, "--rank0-pid", pid};
    int argc = 10;
    if (options->resume != NULL) {
        if (pipe2(words, O_CLOEXEC) < 0) return mpy_refuse(error, n, "pipe: %s", strerror(errno));
        job->last_words = mpy_fd_high(words[0]);
        argv[argc++] = "--resume", argv[argc++] = options->resume;
        argv[argc++] = "--last-words", argv[argc++] = "5";
        if (options->exact) argv[argc++] = "--exact";
    }
    if (checkpoints->interval_s > 0)
        snprintf(interval, sizeof interval, "%.3f", checkpoints->interval_s), argv[argc++] = "--interval",
                                                                              argv[argc++] = interval;
    if (checkpoints->keep > 0)
        snprintf(keep, sizeof keep, "%d", checkpoints->keep), argv[argc++] = "--keep", argv[argc++] = keep;
    if (checkpoints->child_grace_ms > 0)
        snprintf(grace, sizeof grace, "%d", checkpoints->child_grace_ms), argv[argc++] = "--child-grace-ms",
                                                                          argv[argc++] = grace;
    if (checkpoints->background) argv[argc++] = "--background";
    if (checkpoints->dirty != NULL) {
        snprintf(full, sizeof full, "%d", checkpoints->full_every);
        argv[argc++] = "--dirty", argv[argc++] = checkpoints->dirty;
        argv[argc++] = "--full-every", argv[argc++] = full;
    }
    if (checkpoints->local != NULL) {
        snprintf(flush, sizeof flush, "--flush=%.3f", checkpoints->flush_s);
        argv[argc++] = "--local", argv[argc++] = checkpoints->local, argv[argc++] = flush;
        if (checkpoints->redundancy != NULL) argv[argc++] = "--redundancy", argv[argc++] = checkpoints->redundancy;
        if (checkpoints->failure_groups != NULL)
            argv[argc++] = "--failure-groups", argv[argc++] = checkpoints->failure_groups;
    }
    argv[argc] = NULL;
    bool ok = mpy_command_detach((char *const *)argv, log_path, (int[]){listener, lock, words[1]},
                                options->resume != NULL ? 3 : 2, error, n);
    if (options->resume != NULL) close(words[1]);
    return ok;
}

static bool found_job(const mpy_rendezvous_options_t *options, mpy_job_t *job, char *error, size_t n) {
    int lock = -1, listener = -1;
    bool ok = mpy_jobdir_create(options, job, &lock, error, n) && mpy_jobdir_write_secret(job, error, n) &&
              (listener = open_listener(job, error, n)) >= 0 && mpy_jobdir_write_record(options, job, error, n) &&
              start_coordinator(options, job, listener, lock, error, n);
    if (listener >= 0) mpy_fd_close(listener);
    if (lock >= 0) close(lock);
    return ok;
}

/* The job that this step of a chain must be; outside chains, the job that the options ask for. */
static bool found_step(const mpy_rendezvous_options_t *options, mpy_job_t *job, char *error, size_t n) {
    mpy_rendezvous_options_t mine = *options;
    if (job->step.verdict == MPY_CHAIN_DONE) return true;
    if (job->step.verdict == MPY_CHAIN_RESUME) mine.dir = NULL, mine.resume = job->step.path;
    else if (job->step.path[0] != '\0') mine.dir = job->step.path;
    return found_job(&mine, job, error, n);
}

/* ---- what rank 0 publishes: "E" error, "D" exit code, "C" checkpoint to check, or the job ---- */

static bool publish(mpy_pmi_t *pmi, int round, const char *text, char *error, size_t n) {
    char name[16];
    if (pmi->manager == MPY_MANAGER_NONE) return true;
    snprintf(name, sizeof name, "%d", round);
    return mpy_board_put(pmi, name, text, error, n) && mpy_pmi_barrier(pmi, error, n);
}

static bool lookup(mpy_pmi_t *pmi, int round, char *text, size_t size, char *error, size_t n) {
    char name[16];
    snprintf(name, sizeof name, "%d", round);
    return mpy_pmi_barrier(pmi, error, n) && mpy_board_get(pmi, 0, name, text, size, error, n);
}

/* Waits until the file that rank 0 has just created is visible, because attributes may be cached (NFS). */
static bool read_secret_patiently(mpy_job_t *job, char *error, size_t n) {
    for (int tries = 0; !mpy_secret_read(job->dir, job->secret, error, n); tries++) {
        if (tries == 40) {
            char cause[512];
            snprintf(cause, sizeof cause, "%s", error);
            return mpy_refuse(error, n, "%s (the job directory must lie on a file system that all ranks see; choose it "
                              "with --dir)", cause);
        }
        usleep(50000);
    }
    return true;
}

/* Rank 0 in a chain: what this step must do. A checkpoint to continue is whole. *round counts what is published. */
static bool ask_chain(const mpy_rendezvous_options_t *options, mpy_pmi_t *pmi, mpy_job_t *job, int *round, char *error,
                      size_t n) {
    char text[TEXT_MAX], damage[MPY_DAMAGE_MAX] = "";
    do {
        if (!mpy_chain_ask(options->argv, options->dir, job->size, damage, &job->step, error, n)) return false;
        if (job->step.verdict != MPY_CHAIN_RESUME) return true;
        snprintf(text, sizeof text, "C%s", job->step.path);
        if (!publish(pmi, (*round)++, text, error, n) ||
            !mpy_agreement_lead(pmi, *round, job->step.path, options->check, damage, error, n))
            return false;
    } while (damage[0] != '\0');
    return true;
}

static bool lead(const mpy_rendezvous_options_t *options, mpy_pmi_t *pmi, mpy_job_t *job, char *error, size_t n) {
    char text[TEXT_MAX], trouble[TEXT_MAX];
    int round = 0;
    bool is_step = mpy_chain_active() && options->resume == NULL;
    bool ok = (!is_step || ask_chain(options, pmi, job, &round, error, n)) && found_step(options, job, error, n);
    if (!ok) snprintf(text, sizeof text, "E%.1000s", error);
    else if (job->step.verdict == MPY_CHAIN_DONE) snprintf(text, sizeof text, "D%d", job->step.code);
    else
        snprintf(text, sizeof text, "%d %s %zu %s%s", job->port, job->host, strlen(job->dir), job->dir,
                 job->step.verdict == MPY_CHAIN_RESUME ? job->step.path : "");
    job->all_refused = !ok;
    if (publish(pmi, round, text, trouble, sizeof trouble)) return ok;
    job->all_refused = false;
    if (ok) mpy_reason(error, n, "%s", trouble);
    return false;
}

static bool follow(const mpy_rendezvous_options_t *options, mpy_pmi_t *pmi, mpy_job_t *job, bool *say, char *error,
                   size_t n) {
    char text[TEXT_MAX];
    for (int round = 0;;) {
        if (!lookup(pmi, round++, text, sizeof text, error, n)) return false;
        if (text[0] != 'C') break;
        if (!mpy_agreement_follow(pmi, round, text + 1, options->check, error, n)) return false;
    }
    if (text[0] == 'E') {
        mpy_reason(error, n, "%s", text + 1);
        *say = false;
        job->all_refused = true;
        return false;
    }
    if (text[0] == 'D') {
        job->step = (mpy_chain_step_t){.verdict = MPY_CHAIN_DONE, .code = atoi(text + 1)};
        return true;
    }
    int at = 0;
    size_t length = 0;
    if (sscanf(text, "%d %255s %zu %n", &job->port, job->host, &length, &at) != 3 || at == 0 ||
        length >= sizeof job->dir || length > strlen(text + at))
        return mpy_refuse(error, n, "the data that rank 0 has published is unreadable: %.200s", text);
    snprintf(job->dir, sizeof job->dir, "%.*s", (int)length, text + at);
    snprintf(job->step.path, sizeof job->step.path, "%s", text + at + length);
    if (job->step.path[0] != '\0') job->step.verdict = MPY_CHAIN_RESUME;
    return read_secret_patiently(job, error, n);
}

/* All ranks know of the same job. */
static bool agree(const mpy_rendezvous_options_t *options, mpy_pmi_t *pmi, mpy_job_t *job, bool *say, char *error,
                  size_t n) {
    *say = job->rank == 0;
    job->all_refused = options->expected_ranks > 0 && options->expected_ranks != job->size;
    if (job->all_refused)
        return mpy_refuse(error, n, "the checkpoint has %d ranks, but %d were started: use mpirun -n %d",
                          options->expected_ranks, job->size, options->expected_ranks);
    if (job->rank == 0) return lead(options, pmi, job, error, n);
    *say = true;
    return follow(options, pmi, job, say, error, n);
}

bool mpy_rendezvous(const mpy_rendezvous_options_t *options, mpy_job_t *job, bool *say, char *error, size_t n) {
    mpy_pmi_t pmi;
    *say = true;
    memset(job, 0, sizeof *job);
    job->last_words = job->pmi_fd = -1;
    if (!mpy_pmi_open(&pmi, error, n)) return false;
    job->rank = pmi.rank, job->size = pmi.size, job->local_size = pmi.local_size, job->manager = pmi.manager;
    if (job->manager == MPY_MANAGER_PMI && !mpy_pmi_is_hydra()) mpy_leftovers_remove(pmi.kvsname);
    bool ok = agree(options, &pmi, job, say, error, n);
    if (ok && job->step.verdict != MPY_CHAIN_DONE) ok = mpy_node_join(job, error, n);
    job->pmi_fd = pmi.fd;
    return ok;
}

void mpy_rendezvous_part(const mpy_job_t *job) {
    char unused[256];
    mpy_pmi_t pmi = {.fd = job->pmi_fd};
    if (job->all_refused && job->manager != MPY_MANAGER_NONE) mpy_pmi_barrier(&pmi, unused, sizeof unused);
}

void mpy_rejoin_text(const mpy_job_t *job, char *text, size_t n) {
    snprintf(text, n, "%d %d %d %d %d %d %d %s %s", job->rank, job->size, job->local_size, (int)job->manager,
             job->pmi_fd, (int)job->protocol, job->port, job->host, job->dir);
}

bool mpy_rejoin(const char *text, mpy_job_t *job, char *error, size_t n) {
    int at = 0, manager = 0, protocol = 0;
    memset(job, 0, sizeof *job);
    job->last_words = -1;
    if (sscanf(text, "%d %d %d %d %d %d %d %255s %n", &job->rank, &job->size, &job->local_size, &manager, &job->pmi_fd,
               &protocol, &job->port, job->host, &at) != 8 ||
        at == 0 || strlen(text + at) >= sizeof job->dir)
        return mpy_refuse(error, n, "--rejoin is for manapy's own use");
    job->manager = (mpy_manager_t)manager;
    job->protocol = (mpy_protocol_t)protocol;
    strcpy(job->dir, text + at);
    if (job->pmi_fd >= 0) { /* the exec has kept it open */
        fcntl(job->pmi_fd, F_SETFD, FD_CLOEXEC);
        mpy_fd_lower_add(job->pmi_fd);
        mpy_pmi_note_fd(job->manager, job->pmi_fd);
    }
    job->through_agent = mpy_node_needs_agent(job);
    return mpy_secret_read(job->dir, job->secret, error, n);
}

/* notify.c - functions by which threads of the program reach the control thread.
 *
 * Half: lower, but on either TLS: sys.h only, no libc, no stack protector.
 *
 * Invariants
 *  1. A call stores a word, then writes the eventfd; the control thread reads the eventfd, then the words.
 *  2. After a fork the child shares eventfd and memory layout but has no control thread: all calls do nothing there.
 */
#include "notify.h"

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>

#include <manapy/boundary.h>

#include "base/sys.h"
#include "control.h"

#define READ_WAIT_MS 500
#define END_WAIT_MS 990 /* for the process manager to end this rank */

mpy_control_words_t mpy_control_words = {.event = -1, .pmi_fd = -1};
#define WORDS (&mpy_control_words)

static int ours(void) { return WORDS->pid != 0 && mpy_sys(SYS_getpid) == WORDS->pid; }

void mpy_control_notify(void) {
    if (!ours()) return;
    uint64_t one = 1;
    mpy_sys(SYS_write, WORDS->event, &one, sizeof one);
}

int64_t mpy_control_request(void) {
    if (!ours() || WORDS->lost || WORDS->finish_asked) return -1;
    int64_t ticket = __atomic_add_fetch(&WORDS->tickets, 1, __ATOMIC_SEQ_CST);
    mpy_control_notify();
    return ticket;
}

int64_t mpy_control_request_done(void) { return __atomic_load_n(&WORDS->tickets_done, __ATOMIC_SEQ_CST); }

static void copy(char *to, const char *from, size_t n) {
    size_t i = 0;
    for (; i < n - 1 && from[i]; i++) to[i] = from[i];
    to[i] = '\0';
}

void mpy_control_set_place(const char *name, const char *path) {
    if (!ours()) return;
    copy(MPY_LOWER->checkpoint_dir, name, sizeof MPY_LOWER->checkpoint_dir);
    __atomic_add_fetch(&WORDS->place_version, 1, __ATOMIC_SEQ_CST);
    copy(WORDS->place, path, sizeof WORDS->place);
    __atomic_add_fetch(&WORDS->place_version, 1, __ATOMIC_SEQ_CST);
    mpy_control_notify();
}

void mpy_control_note_process_manager(int pmi_fd) {
    struct stat now;
    if (pmi_fd < 0) WORDS->pmi_fd = -1;
    if (pmi_fd < 0 || mpy_sys(SYS_fstat, pmi_fd, &now) < 0) return;
    WORDS->pmi_fd = pmi_fd, WORDS->pmi_inode = now.st_ino, WORDS->pmi_device = now.st_dev;
}

/* True if the descriptor is still the connection that we were given. */
static int process_manager_listens(void) {
    struct stat now;
    return WORDS->pmi_fd >= 0 && mpy_sys(SYS_fstat, WORDS->pmi_fd, &now) >= 0 && now.st_ino == WORDS->pmi_inode &&
           now.st_dev == WORDS->pmi_device;
}

/* Without a signal, if there is nobody at the other end. */
static int tell_process_manager(const char *request, size_t n) {
    long sent = mpy_sys(SYS_sendto, WORDS->pmi_fd, request, n, MSG_NOSIGNAL, 0, 0);
    if (sent == -ENOTSOCK) sent = mpy_sys(SYS_write, WORDS->pmi_fd, request, n);
    return sent == (long)n;
}

/* Hydra treats a process that has spoken PMI and ends without finalize as crashed: it kills the other ranks and loses
 * exit codes. MPICH 4 finalizes in MPI_Finalize. MPICH 5 finalizes in an exit handler of its libc, which never runs,
 * because the program exits through its own libc. So we send finalize here, unless the library has closed the
 * connection (the number may be reused then). */
void mpy_control_leave_process_manager(void) {
    static const char request[] = "cmd=finalize\n";
    static volatile uint32_t left;
    if (!process_manager_listens() || __atomic_exchange_n(&left, 1, __ATOMIC_SEQ_CST)) return;
    if (!tell_process_manager(request, sizeof request - 1)) return;
    char c = 0;
    while (c != '\n' && mpy_sys(SYS_read, WORDS->pmi_fd, &c, 1) == 1) {}
}

/* Wait until the process manager has read standard error: at the end of the job it discards unread output. */
static void wait_until_read(void) {
    struct stat now;
    struct timespec pause = {.tv_nsec = 1000000};
    int unread = 0;
    if (mpy_sys(SYS_fstat, 2, &now) < 0 || !S_ISFIFO(now.st_mode)) return;
    for (int tries = 0; tries < READ_WAIT_MS && mpy_sys(SYS_ioctl, 2, FIONREAD, &unread) == 0 && unread > 0; tries++)
        mpy_sys(SYS_nanosleep, &pause, 0);
}

/* Hydra overlooks about one in fifty ranks that exit before their MPI_Init while the others are in it. Then the others
 * wait for ever. So a rank that gives up tells hydra. And it breaks down if a rank exits whose request it is answering.
 * So the rank waits to be ended. */
void mpy_control_abort(int code) {
    char request[] = "cmd=abort exitcode=0\n";
    if ((WORDS->pid != 0 && !ours()) || !process_manager_listens()) return;
    wait_until_read();
    request[sizeof request - 3] = (char)('0' + code % 10);
    const struct timespec patience = {.tv_nsec = END_WAIT_MS * 1000000l};
    if (tell_process_manager(request, sizeof request - 1)) mpy_sys(SYS_nanosleep, &patience, 0);
}

static void tell_coordinator(void);

void mpy_control_finished(int code) {
    if (!ours()) return;
    WORDS->exit_code = code & 0xff;
    tell_coordinator();
    /* otherwise it is a crash, as it is without manapy */
    if (!mpy_mpi_is_up(MPY_UPPER)) mpy_control_leave_process_manager();
}

/* Returns when the word has this value, or there is no coordinator, or after so many seconds. */
static void wait_until(const volatile uint32_t *word, uint32_t wanted, uint32_t seconds) {
    const struct timespec timeout = {.tv_sec = seconds};
    while (*word != wanted && !WORDS->lost &&
           /* a signal may end the wait early */
           mpy_sys(SYS_futex, word, FUTEX_WAIT, !wanted, &timeout) != -ETIMEDOUT) {}
}

static void tell_coordinator(void) {
    __atomic_store_n(&WORDS->finish_asked, 1, __ATOMIC_SEQ_CST);
    mpy_control_notify();
    /* a short program doesn't wait for the coordinator's interpreter to start */
    if (WORDS->alone && !WORDS->connected) return;
    wait_until(&WORDS->writing, 0, WORDS->writing_wait_s);
    wait_until(&WORDS->finish_taken, 1, WORDS->finish_wait_s);
}

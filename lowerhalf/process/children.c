/* children.c - see children.h. */
#define _GNU_SOURCE
#include "children.h"
#include "base/match.h"
#include "base/now.h"
#include "base/proc/text.h"
#include "base/reason.h"
#include "isolate/fdguard.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <manapy/proc_exe.h>
#include <manapy/proc_stat.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define POLL_MS 10       /* interval without pidfd_open (Linux before 5.3) */
#define ASK_MS 50        /* longest interval between two tests whether the checkpoint was cancelled */
#define COMMAND_SHOWN 60 /* number of characters shown of a command line */

static unsigned long long ticks_now(void) {
    struct timespec now;
    unsigned long long hz = (unsigned long long)sysconf(_SC_CLK_TCK);
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (unsigned long long)now.tv_sec * hz + (unsigned long long)now.tv_nsec * hz / 1000000000;
}

typedef struct wanted {
    int ended;
    unsigned long long until; /* the child must have been started by then */
} wanted_t;

static int *saved; /* mpy_children_are_saved */
static size_t nsaved;

void mpy_children_are_saved(const int *pids, size_t count) {
    int *copy = malloc(count * sizeof *copy);
    if (copy)
        memcpy(copy, pids, count * sizeof *copy);
    free(saved);
    saved = copy;
    nsaved = copy ? count : 0;
}

int mpy_children_saved(size_t i) {
    return i < nsaved ? saved[i] : 0;
}

int mpy_rank_process(size_t i) {
    return nsaved || i ? mpy_children_saved(i) : getpid();
}

/* In a tree, children that are split are left to the hub: they are members, or will be (lowerhalf/tree/kin.c). */
static int is_member(int pid) {
    for (size_t i = 0; i < nsaved; i++)
        if (saved[i] == pid)
            return 1;
    return 0;
}

static int is_saved(int pid) {
    return is_member(pid) || (nsaved && mpy_proc_is_split(pid));
}

static const char *ignored; /* patterns */

void mpy_children_ignore(const char *patterns) {
    ignored = patterns;
}

static char *text_of(int pid, const char *name, size_t *bytes) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    return mpy_proc_text(path, bytes);
}

/* The words of its command, each with a zero byte behind it; for free(3). */
static char *command_line(int pid, size_t *bytes) {
    return text_of(pid, "cmdline", bytes);
}

/* By its name or, if it is a script, by the script's. */
static int is_ignored(int pid) {
    size_t bytes = 0;
    char *words = ignored ? command_line(pid, &bytes) : NULL;
    int found = bytes && (mpy_matches_any(ignored, words) || mpy_matches_any(ignored, words + strlen(words) + 1));
    free(words);
    return found;
}

typedef struct searched {
    int parent;
    mpy_child_visit_t *visit;
    void *context;
} searched_t;

static int visit_ignored(int pid, void *context) {
    const searched_t *s = context;
    mpy_proc_stat_t stat;
    return mpy_proc_stat(pid, &stat) == 0 && stat.parent == s->parent && stat.state != 'X' && stat.state != 'Z' &&
           is_ignored(pid) && s->visit(pid, s->context);
}

int mpy_children_ignored(mpy_child_visit_t *visit, void *context) {
    searched_t s = {0, visit, context};
    int found = 0;
    for (size_t i = 0; ignored && !found && (s.parent = mpy_rank_process(i)); i++)
        found = mpy_children_each(s.parent, visit_ignored, &s);
    return found != 0;
}

static int counts(int pid, void *context) {
    wanted_t w = *(wanted_t *)context;
    mpy_proc_stat_t s;
    return mpy_proc_stat(pid, &s) == 0 && s.parent == getpid() && s.state != 'X' && (s.state == 'Z') == w.ended &&
           s.started <= w.until && !is_saved(pid) && !is_ignored(pid);
}

/* Searches /proc/PID/task/TID/children. Returns -1 if the kernel doesn't have these files. */
static int find_by_task(int parent, mpy_child_visit_t *visit, void *context) {
    char path[64 + sizeof((struct dirent *)0)->d_name];
    int found = 0, readable = 0, pid;
    snprintf(path, sizeof path, "/proc/%d/task", parent);
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && !found && (entry = readdir(dir));) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        snprintf(path, sizeof path, "/proc/%d/task/%s/children", parent, entry->d_name);
        FILE *file = fopen(path, "re");
        if (!file)
            continue;
        readable = 1;
        while (!found && fscanf(file, "%d", &pid) == 1)
            found = visit(pid, context) ? pid : 0;
        fclose(file);
    }
    if (dir)
        closedir(dir);
    return readable ? found : -1;
}

static int find_by_scan(mpy_child_visit_t *visit, void *context) {
    int found = 0;
    DIR *dir = opendir("/proc");
    for (struct dirent *entry; dir && !found && (entry = readdir(dir));)
        if (isdigit((unsigned char)entry->d_name[0]))
            found = visit(atoi(entry->d_name), context) ? atoi(entry->d_name) : 0;
    if (dir)
        closedir(dir);
    return found;
}

int mpy_children_each(int parent, mpy_child_visit_t *visit, void *context) {
    int pid = find_by_task(parent, visit, context);
    return pid >= 0 ? pid : find_by_scan(visit, context);
}

/* Returns the pid of a matching child, or 0. */
static int find(wanted_t w) {
    return mpy_children_each(getpid(), counts, &w);
}

/* Its name, if it shows no command: it has overwritten that, or is ending. */
static void command_of(int pid, char *command, size_t n) {
    size_t got;
    char *words = command_line(pid, &got);
    while (got && !words[got - 1])
        got--;
    if (!got) {
        free(words);
        words = text_of(pid, "comm", &got);
        got -= got && words[got - 1] == '\n';
    }
    got = got < n ? got : n - 1;
    for (size_t i = 0; i < got; i++)
        command[i] = isprint((unsigned char)words[i]) ? words[i] : ' ';
    command[got] = 0;
    free(words);
}

/* Describes helpers that end only with the program, and how to avoid them. NULL for other commands. */
static const char *advice(const char *command) {
    if (strstr(command, "multiprocessing.resource_tracker"))
        return "Python's multiprocessing resource tracker, which lives as long as the program: avoid multiprocessing's "
               "shared memory and spawned processes";
    if (strstr(command, "multiprocessing.forkserver"))
        return "Python's multiprocessing fork server, which lives as long as the program: avoid the start method "
               "'forkserver'";
    return NULL;
}

/* Waits until the process ends, at most `ms`. */
static void wait_for(int pid, int64_t ms) {
    int fd = MPY_FD_OPEN(syscall(SYS_pidfd_open, pid, 0));
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (fd >= 0)
        poll(&p, 1, (int)ms);
    else if (errno != ESRCH)
        poll(NULL, 0, ms < POLL_MS ? (int)ms : POLL_MS);
    if (fd >= 0)
        mpy_fd_close(fd);
}

int mpy_children_wait(mpy_children_t which, int *grace_ms, bool (*given_up)(void), char *err, size_t n) {
    wanted_t living = {.until = which == MPY_CHILDREN_ALL ? ~0ull : ticks_now()};
    int64_t deadline = mpy_now_ms() + *grace_ms;
    for (;;) {
        char command[512];
        int pid = find(living);
        int64_t left = deadline - mpy_now_ms();
        *grace_ms = left > 0 ? (int)left : 0;
        if (!pid)
            return 0;
        if (given_up())
            return mpy_reason(err, n, "the checkpoint was cancelled");
        command_of(pid, command, sizeof command);
        const char *known = advice(command);
        if (known)
            return mpy_reason(err, n, "child process %d is %s", pid, known);
        if (left <= 0 && counts(pid, &living))
            return mpy_reason(err, n, "child process %d (%.*s%s) is still running", pid, COMMAND_SHOWN, command,
                              strlen(command) > COMMAND_SHOWN ? " ..." : "");
        if (left > 0)
            wait_for(pid, left < ASK_MS ? left : ASK_MS);
    }
}

static int may_join(int pid, void *unused) {
    mpy_proc_stat_t s;
    (void)unused;
    return nsaved && !is_member(pid) && mpy_proc_stat(pid, &s) == 0 && s.parent == getpid() && s.state != 'X' &&
           s.state != 'Z' && mpy_proc_is_split(pid);
}

int mpy_children_may_join(void) {
    return mpy_children_each(getpid(), may_join, NULL) != 0;
}

int mpy_children_unreaped(void) {
    return find((wanted_t){.ended = 1, .until = ~0ull}) != 0;
}

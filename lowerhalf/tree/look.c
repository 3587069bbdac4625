/* look.c - the processes of a rank's tree as they are now, for a user who asks (`manapy status`).
 *
 * Half: lower; runs on the control thread of the process that speaks for the rank; libc may be called.
 *
 * Invariants
 *  1. Everything is read from /proc. Other processes, which may be stopped, are not asked, so this costs them nothing.
 *  2. Those that a checkpoint would save are found: the first process, and what kin.c finds below it. Processes that
 *     have ended are not among them, nor those that write an image (image/background.c).
 */
#include "isolate/trap/trap.h"
#include "message.h"
#include "internal.h"
#include "tree.h"
#include <manapy/proc_stat.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

static bool is_above(int pid) {
    mpy_proc_stat_t s;
    int at = getpid();
    while (at > 1 && at != pid) at = mpy_proc_stat(at, &s) ? 0 : s.parent;
    return at == pid;
}

/* The hub has made the door. If it has ended, another process may have its id. */
static int first_process(void) {
    struct ucred maker = {0};
    socklen_t n = sizeof maker;
    if (mpy_tree_role() < MPY_TREE_MEMBER || getsockopt(mpy_tree_kept(), SOL_SOCKET, SO_PEERCRED, &maker, &n))
        return getpid();
    return maker.pid > 1 && is_above(maker.pid) ? maker.pid : getpid();
}

/* Appends the line of a process. Returns the new length; `at` if it has ended, or there is no room. */
static size_t describe(int pid, bool is_first, char *text, size_t at, size_t n) {
    mpy_proc_stat_t s;
    if (mpy_proc_stat(pid, &s) || s.state == 'Z' || s.state == 'X') return at;
    if (!is_first && s.exit_signal == 0) return at; /* it writes an image */
    for (char *c = s.name; *c; c++)
        if (*c == '\n') *c = '?';
    int length = snprintf(text + at, n - at, "%d %d %d %c %s\n", pid, mpy_id_shown(pid), is_first ? 0 : s.parent,
                          s.state, s.name);
    if (at + (size_t)length < n) return at + (size_t)length;
    text[at] = '\0';
    return at;
}

void mpy_tree_look(char *text, size_t n) {
    int first = first_process(), found[MPY_TREE_MAX], lines = 1;
    int nfound = mpy_kin_find(&first, 1, found, MPY_TREE_MAX);
    size_t length = describe(first, true, text, 0, n);
    for (int i = 0; i < nfound; i++) {
        size_t more = describe(found[i], false, text, length, n);
        lines += more > length;
        length = more;
    }
    if (lines == 1) text[0] = '\0';
}

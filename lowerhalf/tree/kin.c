/* kin.c - finds processes that members of the tree have forked, and that have not joined it yet.
 *
 * Half: lower; runs on the hub's thread; libc may be called.
 *
 * Invariants
 *  1. A process is found by its parent, and counts if it still runs manapy-launch or manapy-restart: it was forked and
 *     has not called exec, or it is a new member that is just starting.
 */
#include "internal.h"
#include "process/children.h"
#include <manapy/proc_exe.h>
#include <manapy/proc_stat.h>

typedef struct search {
    const int *members;
    int n, *found, nfound, max, parent;
} search_t;

static bool is_known(const search_t *s, int pid) {
    for (int i = 0; i < s->n; i++)
        if (s->members[i] == pid) return true;
    for (int i = 0; i < s->nfound; i++)
        if (s->found[i] == pid) return true;
    return false;
}

static int note(int child, void *context) {
    search_t *s = context;
    mpy_proc_stat_t stat;
    if (is_known(s, child) || mpy_proc_stat(child, &stat) || stat.parent != s->parent || stat.state == 'Z' ||
        stat.state == 'X' || stat.exit_signal == 0 /* the lower half's own */ || !mpy_proc_is_split(child))
        return 0;
    s->found[s->nfound++] = child;
    return s->nfound == s->max;
}

int mpy_kin_find(const int *members, int n, int *found, int max) {
    search_t s = {.members = members, .n = n, .found = found, .max = max};
    for (int i = 0; i < n + s.nfound && s.nfound < max; i++) {
        s.parent = i < n ? members[i] : found[i - n];
        mpy_children_each(s.parent, note, &s);
    }
    return s.nfound;
}

/* internal.h - what the files of this folder share. */
#ifndef MANAPY_TREE_INTERNAL_H
#define MANAPY_TREE_INTERNAL_H
#include "base/rank.h"
#include <stdbool.h>
#include <stddef.h>

/* member.c: the line for a process that wants to use MPI, too. Returns -1. */
int mpy_taken(int other, char *error, size_t n);
int mpy_hub_door(void);
int mpy_hub_lead(char *error, size_t n);
void mpy_hub_expect(int pid); /* restart: the MPI process; before the thread starts */
bool mpy_hub_is_away(void);
/* In a forked child of the hub, which is a member only. Returns the members' end of the door. */
int mpy_hub_forked(void);
void mpy_hub_make_way(void);
bool mpy_hub_end(int code); /* mpy_tree_end in the first process */
/* How long a process that is about to end waits for the others of its tree. */
enum { MPY_LAST_WORD_MS = 2000 };
void mpy_member_make_way(void); /* member.c: a part of mpy_tree_make_way */
/* member.c: a member joins again. Any TLS, in the handler of a signal. */
void mpy_member_invited(void);
/* member.c: a forked child joins; its parent was the hub or a member */
void mpy_member_forked(void);
/* kin.c: processes that the members or their kin have forked, and that have not joined. Puts up to `max` into `found`,
 * and returns their number. */
int mpy_kin_find(const int *members, int n, int *found, int max);
/* hub.c: does this process have a child that is a member, or was forked? */
bool mpy_hub_has_kin(void);
/* hub.c: this process is the MPI process, and sends orders to the hub's thread. */
void mpy_hub_orders_itself(void);
/* member.c, restart: this process has the door by a fork; it is the MPI process, or not */
void mpy_member_of_restart(bool leads);
#endif

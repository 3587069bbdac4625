/* member.h - private to this folder: how the MPI process speaks to the hub. See member.c. */
#ifndef MANAPY_TREE_MEMBER_H
#define MANAPY_TREE_MEMBER_H
#include "message.h"

/* Are there other processes to give orders to? If this is the hub, too, it looks for them, unless images are to be on
 * local storage: there a rank has one image, and its children get the grace time. */
bool mpy_member_leads(char *error, size_t n);
bool mpy_member_order(const mpy_tree_message_t *order);
/* Waits for the next answer, at most `ms` (negative: without limit). False: none, or the hub has ended. *fd (may be
 * NULL): the descriptor that came with it, or -1. */
bool mpy_member_answer(mpy_tree_message_t *answer, int *fd, int ms);
#endif

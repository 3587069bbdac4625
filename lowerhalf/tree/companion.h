/* companion.h - private to this folder: the steps of a checkpoint in a process that does not use MPI. See companion.c.
 */
#ifndef MANAPY_TREE_COMPANION_H
#define MANAPY_TREE_COMPANION_H
#include "message.h"

/* Carries out an order, and puts the answer to it into `answer`. `line`: where the parts of it go that come before. */
void mpy_companion_do(const mpy_tree_message_t *order, int line, mpy_tree_message_t *answer);
/* The processes that are saved together, in the order of their images. */
void mpy_tree_note(const int *pids, uint32_t n);
/* In a forked child: the orders so far were for its parent. */
void mpy_companion_forked(void);
/* This process in the list of the tree, without a seal, and with the kernel's ids. */
mpy_image_member_t mpy_tree_self(uint32_t index);
/* Nobody gives orders any more: the program goes on. */
void mpy_companion_release(void);
#endif

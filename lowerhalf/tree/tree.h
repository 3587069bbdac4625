/* tree.h - the processes below mpirun's process, which are one rank. See lowerhalf/README.md, hub.c, member.c. */
#ifndef MANAPY_TREE_H
#define MANAPY_TREE_H
#include "control/engine.h"
#include "image/file/reader.h"
#include "isolate/trap/trap.h"
#include <stdbool.h>
#include <stddef.h>

/* ---- the first process of a rank: the hub ---- */

/* Opens the door, before the program starts (once). Fails with a line in `error`. */
bool mpy_tree_found(char *error, size_t n);
/* After an exec of this process: `text` is the argument of --door, and the door is open. Before anything is opened. */
bool mpy_tree_found_again(const char *text, char *error, size_t n);
/* That argument. */
const char *mpy_tree_door_text(void);
/* The hub's end of the door: readable as soon as there is a member. */
int mpy_tree_door(void);
/* There is: starts the hub's thread. */
void mpy_tree_serve(void);

/* ---- the others: members ---- */

/* `text`: the argument of --tree, which the exec has kept. Before anything is opened. */
bool mpy_tree_adopt(const char *text, char *error, size_t n);
/* Joins the tree: from now on this process is saved with it. */
bool mpy_tree_join(char *error, size_t n);

/* ---- both ---- */

/* mpy_trap_fork: makes a child of this process that can join the tree. See fork.c. */
long mpy_tree_fork(mpy_taken_t *taken);
/* mpy_stop_on_invitation: this process joins, if it is such a child. A member joins again: it was one of the program
 * that the first process has replaced by an exec. */
void mpy_tree_invited(void);

/* For an exec of this process or of a child: the argument of --tree, and the descriptor that the exec has to keep. */
const char *mpy_tree_text(void);
int mpy_tree_kept(void);
/* The program is about to load the MPI library. Returns 1 if a member has become the MPI process of the rank now, 0 if
 * this is the MPI process already, -1 with a line if another process is. */
int mpy_tree_lead(char *error, size_t n);
/* The MPI process ends in order: the hub speaks for the rank again. Returns when it does, or after MPY_BACK_MS. */
void mpy_tree_hand_back(void);
/* The steps of a checkpoint in an MPI process that is a member: image/checkpoint.h, for the whole tree. */
const mpy_engine_ops_t *mpy_tree_engine(void);

/* The processes of the tree as they are now, a line for each: its id, the id that the program knows, its parent (0: it
 * is the first), its state as in proc(5), its name. Empty if there is only one. */
void mpy_tree_look(char *text, size_t n);

/* This process speaks for the rank, and is about to end: ends all others of the tree with this exit code. Otherwise
 * those that mpirun does not end (of another process group) would live on. The first process is halted, and ends after
 * this one. Returns false if there are no others. */
bool mpy_tree_end(int code);

/* The base of reserved descriptors has risen: moves ours above it. */
void mpy_tree_make_way(void);

/* What this process is. FIRST: it speaks for the rank; FIRST_AWAY: it is the hub, and a member speaks for the rank,
 * after a restart; MEMBER: it may become the MPI process; MEMBER_LEADS: it is, after a restart. */
typedef enum { MPY_TREE_FIRST, MPY_TREE_FIRST_AWAY, MPY_TREE_MEMBER, MPY_TREE_MEMBER_LEADS } mpy_tree_role_t;
mpy_tree_role_t mpy_tree_role(void);

/* ---- restart: restore.c ---- */

/* The process of the restart becomes the first process of the tree, and makes the others. Returns in each of them the
 * image that it restores: the MPI process gets `image` itself. A rank that was a single process gets it, too. */
mpy_image_t *mpy_tree_restore(mpy_image_t *image);
/* Notes the ids of the other processes. The memory is restored. */
void mpy_tree_translate(void);
/* The processes go on together, in two stages: arrive when this process is ready for the stage. In the MPI process it
 * returns when all others have arrived; these wait in pass, which the MPI process calls to let them go on. */
typedef enum { MPY_TREE_RESTORED, MPY_TREE_COMMITTED, MPY_TREE_STAGES } mpy_tree_stage_t;
void mpy_tree_arrive(mpy_tree_stage_t stage);
void mpy_tree_pass(mpy_tree_stage_t stage);
#endif

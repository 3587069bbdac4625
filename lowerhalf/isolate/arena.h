/* arena.h - see arena.c. Addresses and lengths in bytes; no function here maps anything. */
#ifndef MANAPY_ARENA_H
#define MANAPY_ARENA_H
#include "trapstate.h"

/* Words that are zero in every forked child, whichever libc has made it. ARENA: the lock of arena.c. LOAN: the one of
 * mpy_thread_borrow. SOUND: the id of the process, if the lower half's libc can be used there; a child of vfork(2) sees
 * that of its parent. */
enum { MPY_WIPED_ARENA, MPY_WIPED_LOAN, MPY_WIPED_SOUND };
extern volatile uint32_t *mpy_wiped_words;

int mpy_arena_attach(void);                       /* first step of every new lower half: these words; 0 or -errno */
/* at launch: an empty arena */
int mpy_arena_init(void);                         /* -1: the first address is in use */
uint64_t mpy_arena_take(uint64_t bytes);          /* address of a free range, or 0: no room */
uint64_t mpy_arena_take_aligned(uint64_t bytes, uint64_t align); /* align: a power of two, a page or more */
int mpy_arena_take_at(uint64_t lo, uint64_t bytes); /* exactly this range; 0 if part of it is taken */
void mpy_arena_give(uint64_t lo, uint64_t bytes); /* the range was unmapped */
void mpy_arena_claim(uint64_t lo, uint64_t bytes); /* the program itself maps memory there */
/* Memory that the program has mapped below the arena. 0: the table is full. */
int mpy_arena_low_add(uint64_t lo, uint64_t bytes);
int mpy_arena_low_remove(uint64_t lo, uint64_t bytes);
#endif

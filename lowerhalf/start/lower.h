/* lower.h - the start of a lower half: its command line, its blocks, its job, its services. See lower.c, options.c. */
#ifndef MANAPY_LOWER_H
#define MANAPY_LOWER_H
#include "base/rank.h"
#include <stdint.h>

/* Parse options; returns the index of the program in argv (of the checkpoint, for manapy-restart). Exits on bad
 * usage. */
int mpy_options_parse(int argc, char **argv, mpy_options_t *out);

/* Map what every lower half makes again: lower block, code page, service stack. */
void mpy_blocks_map(void);
/* Map upper and trap block. (At a restart they come from the image.) */
void mpy_blocks_map_saved(void);
/* Anonymous memory at a fixed free address, or fail. */
void mpy_fixed_map(uint64_t address, uint64_t bytes);
/* Find rank, size and job (join/rendezvous.h); fills the lower block. `argv`: the program, for people. `resume`: the
 * checkpoint continued, or NULL; `ranks`: how many it has. Returns the checkpoint to continue, or NULL: start the
 * program. In a chain it may be another one than `resume`, and a step that was done before ends here. */
const char *mpy_lower_join(char *const *argv, const char *resume, int ranks, uint32_t generation);
/* What mpy_lower_join has opened goes above a base of descriptors that has gone up. */
void mpy_lower_make_way(void);
/* Donor threads, stop handler, control thread. */
void mpy_lower_start(const char *program);
/* Continue this rank's part of a checkpoint (continue.c). */
void mpy_continue(const char *checkpoint) __attribute__((noreturn));
#endif

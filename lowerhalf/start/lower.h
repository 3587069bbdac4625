/* lower.h - the start of a lower half: its blocks, its job, its services. See lower.c. */
#ifndef MANAPY_LOWER_H
#define MANAPY_LOWER_H
#include "base/rank.h"
#include "join/rendezvous.h"
#include <stddef.h>
#include <stdint.h>

/* Map what every lower half creates anew: lower block, code page, service stack. */
void mpy_blocks_map(void);
/* Map the upper and the trap block. (At a restart they come from the image.) */
void mpy_blocks_map_saved(void);
/* Map anonymous memory at a fixed free address. Fails if the address is in use. */
void mpy_fixed_map(uint64_t address, uint64_t bytes);
/* After an exec (--rejoin), before mpy_lower_join: find the job again. */
bool mpy_lower_rejoin(char *error, size_t n);
/* Find rank, size and job (join/rendezvous.h) and fill the lower block. `argv`: the program, for messages. `resume`:
 * the checkpoint to continue, or NULL; `exact`: no older one. `ranks`: its number of ranks. Returns the checkpoint to
 * continue, or NULL to start the program. In a chain, and if images are on local storage, it may differ from `resume`.
 * The process ends here if an earlier allocation has done the step. */
const char *mpy_lower_join(char *const *argv, const char *resume, bool exact, int ranks, uint32_t generation);
/* The checkpoint that all ranks of the job continue, in place of this one. Ends the process if its images are lost. */
const char *mpy_locate(const mpy_job_t *job, const char *checkpoint);
/* Where mpy_locate has found the image of this rank; NULL: in the checkpoint's directory (image_path.h). */
const char *mpy_image_located(void);
/* How many ranks of the job are on this host; 0: unknown. */
int mpy_lower_local_size(void);
/* The base of reserved descriptors has risen: move what mpy_lower_join has opened above it. */
void mpy_lower_make_way(void);
/* Start the donor threads, the stop handler and the control thread. */
void mpy_lower_start(const char *program);
/* Continue this rank's part of a checkpoint (continue.c). */
void mpy_continue(const char *checkpoint) __attribute__((noreturn));
/* The secret of the job that took the checkpoint. It lies in the job directory or, if that has moved, in the
 * checkpoint. */
bool mpy_checkpoint_secret(const char *checkpoint, uint8_t secret[MPY_SECRET_BYTES], char *error, size_t n);
/* Check every byte of a rank's image. False with the reason in `damage`. */
bool mpy_continue_check(const char *checkpoint, int rank, int size, char *damage, size_t n);
#endif

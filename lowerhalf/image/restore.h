/* restore.h - see restore.c. The steps of a restart, in this order. All return 0, or -1 with one line in `error`. */
#ifndef MANAPY_RESTORE_H
#define MANAPY_RESTORE_H
#include "image/file/reader.h"

/* calls the real MPI_Init if the program had called it */
int mpy_restore_mpi(const mpy_image_t *image, char *error, size_t n);
int mpy_restore_memory(const mpy_image_t *image, char *error, size_t n);
int mpy_restore_process(const mpy_image_t *image, char *error, size_t n); /* descriptors, signals, traps and the like */
/* the program knows another process of its tree by `shown` (after mpy_restore_process) */
void mpy_restore_note_id(int32_t shown, int32_t real);
int mpy_restore_threads(const mpy_image_t *image, char *error, size_t n); /* the threads wait at a gate */
/* rebuilds MPI objects through the wrappers' hook */
int mpy_restore_rebuild(const mpy_image_t *image, char *error, size_t n);
/* all ranks are ready: this is the first step that changes files */
int mpy_restore_commit(char *error, size_t n);
/* opens the gate and becomes the program's main thread */
void mpy_restore_run(const mpy_image_t *image) __attribute__((noreturn));
/* Lets the real MPI move messages, while this rank waits for the others. */
void mpy_restore_progress(void);
#endif

/* recorder.h - this rank's trace (<manapy/trace.h>) in the split process. See recorder.c. */
#ifndef MANAPY_RECORDER_H
#define MANAPY_RECORDER_H
#include <manapy/boundary.h>

/* Generation and job must be known; after a restart the upper block must be in place. */
void mpy_recorder_start(const char *program);
void mpy_recorder_rebuilt(void);              /* after a restart: the communicators have been entered again */
void mpy_recorder_sample(void);               /* from time to time, on one thread of the lower half */
void mpy_recorder_save(void);                 /* all upper threads are stopped, the image is about to be written */
void mpy_recorder_forked(void);               /* in a forked child: the file is its parent's */
void mpy_recorder_leave(void);                /* the process ends here and will continue from its image */
/* Services (boundary.h), and a thread's ring. */
void mpy_recorder_bind(mpy_thread_t *t);
void mpy_recorder_unbind(mpy_thread_t *t);
uint32_t mpy_recorder_comm(uint64_t cid, uint64_t ggid, const int32_t *members, uint32_t n, uint32_t remote,
                           const char *name);
int mpy_recorder_mark(uint64_t mark);
void mpy_recorder_end(void);
#endif

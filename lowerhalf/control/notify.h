/* notify.h - words shared by control.c and notify.c. */
#ifndef MANAPY_NOTIFY_H
#define MANAPY_NOTIFY_H

#include <stdint.h>

typedef struct mpy_control_words {
    int event;                         /* eventfd; written to wake the control thread */
    /* of the process whose control thread it is (invariant 2 of notify.c); 0: none */
    int pid;
    int pmi_fd;                        /* connection with the process manager; -1: none */
    uint64_t pmi_inode, pmi_device;    /* what pmi_fd was when we spoke with it */
    uint32_t alone;                    /* nobody waits for this rank's DONE */
    uint32_t finish_wait_s;            /* how long the others wait for theirs to be taken */
    volatile uint32_t connected;       /* HELLO is sent, the connection is up */
    volatile uint32_t lost;            /* there is no coordinator (any more) */
    volatile int exit_code;            /* of the program; valid when finish_asked */
    volatile uint32_t finish_asked;
    volatile uint32_t finish_taken;    /* futex: the coordinator has been told; in a chain, it has noted it */
    volatile int64_t tickets;          /* given out */
    volatile int64_t tickets_done;     /* as svc->checkpoint_done returns it */
    volatile uint32_t place_version;   /* 0: the program has named no directory; odd: it is being written */
    char place[1024];                  /* for checkpoints */
} mpy_control_words_t;

extern mpy_control_words_t mpy_control_words;

#endif

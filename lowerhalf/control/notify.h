/* notify.h - words shared by control.c and notify.c. */
#ifndef MANAPY_NOTIFY_H
#define MANAPY_NOTIFY_H

#include <stdint.h>

typedef struct mpy_control_words {
    int event;                         /* eventfd; written to wake the control thread */
    /* pid of the process that has the control thread (invariant 2 of notify.c); 0: none */
    int pid;
    int pmi_fd;                        /* connection to the process manager; -1: none */
    uint64_t pmi_inode, pmi_device;    /* of pmi_fd when we last used it */
    uint32_t alone;                    /* no other rank or chain waits for this rank's DONE */
    uint32_t finish_wait_s;            /* seconds to wait until DONE is taken */
    uint32_t writing_wait_s;           /* seconds to wait until the image is written */
    volatile uint32_t connected;       /* the connection is up and HELLO is sent */
    volatile uint32_t lost;            /* there is no coordinator (any more) */
    volatile int exit_code;            /* of the program; valid when finish_asked */
    volatile uint32_t finish_asked;
    volatile uint32_t finish_taken;    /* futex: the coordinator has been told; in a chain, it has noted it */
    volatile uint32_t writing;         /* futex: an image is being written beside the program */
    volatile int64_t tickets;          /* tickets given out */
    volatile int64_t tickets_done;     /* as svc->checkpoint_done returns it */
    volatile uint32_t place_version;   /* 0: the program has named no directory; odd: it is being written */
    char place[1024];                  /* for checkpoints */
} mpy_control_words_t;

extern mpy_control_words_t mpy_control_words;

#endif

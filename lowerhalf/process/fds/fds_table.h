/* fds_table.h - the table that fds.c works on, and the operations that each kind of descriptor offers. Private to
 * lowerhalf/process.
 *
 * A descriptor is a number. It refers to an open file description (mpy_desc_t). There is one ops table per kind:
 *   check   may this description be saved? The program may be running: change nothing
 *   save    append what make and finish need to the blob
 *   make    new process: set desc->made to a temporary descriptor (mpy_fdtable_temp) of an equal description
 *   finish  called when every number is in place, and may use them. NULL: nothing to do
 * make and finish get the same reader over the bytes of save; finish continues where make stopped.
 */
#ifndef MANAPY_STATE_FDS_TABLE_H
#define MANAPY_STATE_FDS_TABLE_H

#include "base/reason.h"
#include "isolate/fdguard.h"
#include "process/blob.h"
#include "process/process.h"

#include <linux/kcmp.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>

typedef enum { /* stored in images: never renumber */
    MPY_FD_OTHER = 0, /* refused */
    MPY_FD_STDIO = 1,
    MPY_FD_INHERITED = 2, /* came from mpirun or the shell; the program doesn't use it */
    MPY_FD_FILE = 3,      /* regular file or directory with a name */
    MPY_FD_CONTENT = 4,   /* file without a name (deleted, O_TMPFILE, memfd): the image contains its content */
    MPY_FD_DEVICE = 5,
    MPY_FD_FIFO = 6,
    MPY_FD_PIPE = 7,
    MPY_FD_PAIR = 8, /* connected AF_UNIX sockets, both in this process */
    MPY_FD_SOCKET = 9,
    MPY_FD_EVENT = 10,
    MPY_FD_TIMER = 11,
    MPY_FD_SIGNAL = 12,
    MPY_FD_EPOLL = 13,
    MPY_FD_ELSEWHERE = 14, /* another process of the tree restores it (fds_tree.c) */
    MPY_FD_TCP = 15, /* connected to another process of the job; also of the tree's other processes (fds_tcp.c) */
    MPY_FD_PTY = 16, /* a pseudo-terminal of the tree */
    MPY_FD_KINDS
} mpy_fd_kind_t;

typedef struct mpy_desc {
    mpy_fd_kind_t kind;
    int number; /* one of the program's numbers for this description */
    int flags;  /* F_GETFL */
    struct stat st;
    char *path; /* target of the link in /proc/self/fd */
    /* STDIO: 0, 1 or 2; INHERITED: its number at launch; ELSEWHERE: an mpy_fd_share_t; restore of CONTENT: seals, of
     * PAIR: shutdown state, of PTY: this process keeps the terminal's state */
    int which;
    int owner, owners_number; /* ELSEWHERE: index of the process, and its descriptor */
    int keeps; /* ELSEWHERE, other end of a pair: this process keeps the state of the end (fds_pair.c) */
    int made;   /* restore: temporary descriptor */
    int extra;  /* restore: a second descriptor that the kind needs until the end (other end of a pipe), or -1 */
    uint64_t object; /* restore: identifies an object that several descriptions share (pipe, pair, deleted file) */
    mpy_reader_t saved;
    mpy_reader_t locks;
} mpy_desc_t;

typedef struct mpy_fdnumber {
    int number;
    int desc; /* index of the description */
    int cloexec;
} mpy_fdnumber_t;

typedef struct mpy_fdtable {
    mpy_desc_t *descs;
    int ndescs, descs_room;
    mpy_fdnumber_t *numbers;
    int nnumbers, numbers_room;
    int temp_base; /* restore: lowest number of temporary descriptors */
} mpy_fdtable_t;

typedef struct mpy_fd_ops {
    int (*check)(mpy_fdtable_t *t, mpy_desc_t *d, char *err, size_t n);
    int (*save)(mpy_fdtable_t *t, mpy_desc_t *d, mpy_blob_t *b, char *err, size_t n);
    int (*make)(mpy_fdtable_t *t, mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n);
    int (*finish)(mpy_fdtable_t *t, mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n);
} mpy_fd_ops_t;

extern const mpy_fd_ops_t mpy_fd_other_ops, mpy_fd_stdio_ops, mpy_fd_inherited_ops, mpy_fd_file_ops, mpy_fd_content_ops,
    mpy_fd_device_ops, mpy_fd_fifo_ops, mpy_fd_pipe_ops, mpy_fd_pair_ops, mpy_fd_socket_ops, mpy_fd_event_ops,
    mpy_fd_timer_ops, mpy_fd_signal_ops, mpy_fd_epoll_ops, mpy_fd_elsewhere_ops, mpy_fd_tcp_ops,
    mpy_fd_pty_ops;

/* fds_scan.c */
int mpy_fdtable_scan(mpy_fdtable_t *t, int stopped, char *err, size_t n);
void mpy_fdtable_free(mpy_fdtable_t *t);
mpy_desc_t *mpy_fdtable_add_desc(mpy_fdtable_t *t);
mpy_fdnumber_t *mpy_fdtable_add_number(mpy_fdtable_t *t);
/* Moves a descriptor of ours above the numbers to be restored. Negative: unchanged. */
int mpy_fdtable_temp(mpy_fdtable_t *t, int fd);
/* The description created earlier for the same object, or NULL. */
mpy_desc_t *mpy_fdtable_object(mpy_fdtable_t *t, const mpy_desc_t *d);
/* Opens another description of the object that `fd` refers to, through /proc. Returns a temporary descriptor, or -1. */
int mpy_fdtable_reopen(mpy_fdtable_t *t, int fd, int flags);
/* 1 if both numbers refer to the same open file description. `stopped`: nothing else changes descriptors now. */
int mpy_fd_same(int a, int b, int stopped);
/* Text of /proc/self/fdinfo/FD; NULL on failure. The caller frees it. */
char *mpy_fdinfo_read(int fd);
char *mpy_fdinfo_read_of(int pid, int fd); /* of another process */

/* fds_device.c */
int mpy_fd_stdio_match(int fd, const struct stat *st, int flags, int stopped);
int mpy_fd_inherited_match(int fd, const struct stat *st, int flags, int stopped);
/* The base has risen: moves the duplicates kept by fds_device.c above it. */
void mpy_fd_keeps_high(void);

/* fds_lock.c */
int mpy_fdlocks_check(const mpy_desc_t *d, char *err, size_t n);
int mpy_fdlocks_save(const mpy_desc_t *d, mpy_blob_t *b, char *err, size_t n);
int mpy_fdlocks_restore(const mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n);

/* fds_socket.c */
extern bool mpy_sockets_are_dropped;
/* Fails, with the reason that a connection to outside the job can't be saved. `who`: "descriptor 7" */
int mpy_socket_refuse(int fd, const char *who, char *err, size_t n);
/* A TCP socket whose connection, to this host, has been reset. */
int mpy_socket_reset(int domain);
int mpy_socket_option(int fd, int level, int name);
void mpy_socket_options_save(int fd, mpy_blob_t *b);
void mpy_socket_options_restore(int fd, mpy_reader_t *r);

/* fds_tcp.c */
int mpy_fd_tcp_may_be_inside(const mpy_desc_t *d); /* before the meeting */
int mpy_fd_tcp_is_inside(int fd);                  /* after it */
void mpy_fd_tcp_note_inside(const mpy_fdtable_t *t); /* after it, or a restart: those that the MPI process saves */
int mpy_fd_tcp_check_lent(char *err, size_t n);    /* before the meeting: those of other processes of the tree */
int mpy_fd_tcp_add_lent(mpy_fdtable_t *t, char *err, size_t n); /* after it: to what this process saves */
/* This host's address for other hosts, with the family and port of `like`; 0 if there is none. errno is kept. */
socklen_t mpy_fd_own_address(const struct sockaddr_storage *like, struct sockaddr_storage *own);
/* Restart: connects them, when all other descriptions are made. */
int mpy_fd_tcp_rejoin(mpy_fdtable_t *t, char *err, size_t n);

/* fds_pair.c */
typedef struct mpy_unix_state {
    uint32_t peer;             /* inode of the partner; 0: none any more */
    uint32_t waiting, backlog; /* of a listening socket: connections */
    uint8_t shutdown;          /* bit 0 receiving, bit 1 sending (the kernel's RCV_SHUTDOWN, SEND_SHUTDOWN) */
} mpy_unix_state_t;
/* Returns -1 if the kernel does not tell. */
int mpy_unix_state(ino_t ino, mpy_unix_state_t *state);
/* The keeper's record of an end of a pair that another process makes. d->number is the end, d->extra the other one. */
int mpy_fd_end_save(const mpy_desc_t *d, mpy_blob_t *b, char *err, size_t n);
int mpy_fd_end_restore(mpy_desc_t *d, mpy_reader_t *r, char *err, size_t n);
/* All processes have filled their queues. */
void mpy_fd_pairs_commit(void);

/* fds_tree.c */
/* What ELSEWHERE gets from the owner: the same description; a pipe, to open an end of it; the other end of a pair. */
typedef enum { MPY_FD_SHARE_SAME, MPY_FD_SHARE_PIPE, MPY_FD_SHARE_OTHER_END } mpy_fd_share_t;
/* Does another process of the tree restore this description? Returns 1 and fills it in, 0, or -1 with the reason why it
 * can't be saved. */
int mpy_fd_elsewhere(mpy_desc_t *d, char *err, size_t n);
/* Does a process of the tree have an end of d's pipe that is open for O_RDONLY or O_WRONLY? */
int mpy_fd_relative_has(const mpy_desc_t *d, int accmode);
/* Does a process of the tree have a descriptor of the socket with this inode? */
int mpy_fd_relative_has_inode(const mpy_desc_t *d, ino_t inode);
/* Another process of the tree that has what an entry of this process's epoll set watches; 0: there is none. */
int mpy_fd_relative_with_entry(const struct kcmp_epoll_slot *entry);
/* Restart: makes the descriptions that others restore. */
int mpy_fds_fetch(mpy_fdtable_t *t, char *err, size_t n);

/* fds_pty.c */
int mpy_fd_is_pty(const mpy_desc_t *d); /* of a terminal: does it belong to the tree? */
int mpy_ptys_save(mpy_blob_t *b, mpy_tid_map_t *shown, char *err, size_t n);
int mpy_ptys_make(mpy_reader_t *r, char *err, size_t n);
void mpy_ptys_high(void);   /* the base has risen */
void mpy_ptys_settle(void); /* all descriptors are in place */

/* fds_tty.c. `number`: the program's descriptor of the master; `closed`: nobody has the slave open any more. */
int mpy_tty_check(int number, int closed, char *err, size_t n);
int mpy_tty_save(int number, mpy_blob_t *b, char *err, size_t n);
int mpy_tty_restore(int number, mpy_reader_t *r, char *err, size_t n);
/* Opens the slave of a master anew. Negative: it cannot be opened. */
int mpy_tty_peer(int master, int flags);

/* fds_file.c */
int mpy_fd_file_commit(char *err, size_t n);

#endif

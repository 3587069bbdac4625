/* fdhigh.h - see fdhigh.c. */
#ifndef MANAPY_FDHIGH_H
#define MANAPY_FDHIGH_H

#define MPY_FD_HIGH 512 /* descriptors of the lower half have this number or a higher one */

int mpy_fd_high(int fd);

#endif

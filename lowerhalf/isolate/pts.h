/* pts.h - numbers of pseudo-terminals that a restart has recreated: as the program knows them, and as the kernel does.
 *
 * Lower half; callable on either TLS: no libc.
 */
#ifndef MANAPY_PTS_H
#define MANAPY_PTS_H

/* Each is the inverse of the other, also for numbers that no restart has changed. */
int mpy_pts_real(int shown);
int mpy_pts_shown(int real);

#endif

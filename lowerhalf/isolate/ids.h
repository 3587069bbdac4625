/* ids.h - the ids of processes and threads, as the program knows them and as the kernel does (trapstate.h). They differ
 * only after a restart. */
#ifndef MANAPY_IDS_H
#define MANAPY_IDS_H
#include "trapstate.h"

mpy_idpair_t mpy_id_pair(uint32_t i); /* the i-th entry of the list of ids, read atomically */
int32_t mpy_id_real(int32_t shown);
int32_t mpy_id_shown(int32_t real);
#endif

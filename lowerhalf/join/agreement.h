/* agreement.h - see agreement.c. */
#ifndef MANAPY_AGREEMENT_H
#define MANAPY_AGREEMENT_H

#include <stdbool.h>
#include <stddef.h>

#include "manager/pmi.h"

enum { MPY_DAMAGE_MAX = 768 };

/* Reads every byte of a rank's image. False with the reason in `damage` if the image cannot be used. */
typedef bool mpy_agreement_check_t(const char *checkpoint, int rank, int size, char *damage, size_t n);

/* One round, after rank 0 has told the others the checkpoint. Rank 0 leads, the others follow. `damage` becomes the
 * reason of the lowest rank whose image is damaged, or empty. False, with one line in `error`, if the ranks cannot
 * agree. */
bool mpy_agreement_lead(mpy_pmi_t *pmi, int round, const char *checkpoint, mpy_agreement_check_t *check,
                        char damage[MPY_DAMAGE_MAX], char *error, size_t n);
bool mpy_agreement_follow(mpy_pmi_t *pmi, int round, const char *checkpoint, mpy_agreement_check_t *check, char *error,
                          size_t n);

#endif

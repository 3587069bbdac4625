/* journal.h - information that SHIFT gives to others: to peers through the key-value store, to users, and to the agent.
 * For links/, failover/, worker/ and verbs/. With the device's lock held, unless a line says otherwise. */
#ifndef MANAPY_RDMA_JOURNAL_H
#define MANAPY_RDMA_JOURNAL_H

#include "objects/objects.h"

/* keys.c: what peers can find about us */
void shift_mr_key(char *key, uint64_t device, uint32_t index); /* room: 64 */
bool shift_qp_key(char *key, const shift_qp_t *q, bool peer);
/* A region's entry is emptied, not deleted, because peers read the entries by consecutive numbers. */
void shift_keys_withdraw(shift_device_t *d, const char *key, bool regions);
void shift_keys_step(shift_device_t *d); /* called by the worker; releases the lock meanwhile */
void shift_keys_free(shift_device_t *d); /* after the worker has ended */

/* counts.c */
uint32_t shift_outstanding(const shift_qp_t *q); /* sends that have not completed, for status displays */
shift_counts_t shift_count(shift_qp_t *q);

/* events.c */
void shift_tell(shift_qp_t *q, const char *event);
void shift_tell_flowing(const shift_qp_t *q); /* on standard error only */
void shift_tell_agent(shift_device_t *d);     /* called by the worker; releases the lock meanwhile */

/* traffic.c */
void shift_record_begin(shift_device_t *d); /* if a recorder of the process has started by now */
void shift_record(shift_qp_t *q, const shift_counts_t *n);
void shift_record_moved(shift_qp_t *q); /* if it has advanced since the last record */
void shift_record_end(shift_device_t *d);

#endif

/* report.h - messages to the user, and the time. For every layer. */
#ifndef MANAPY_RDMA_REPORT_H
#define MANAPY_RDMA_REPORT_H

#include <stdint.h>

uint64_t shift_now(void); /* ns, monotonic */

/* Prints "manapy shift: ..." on standard error, once per message text. */
void shift_report(const char *format, ...) __attribute__((format(printf, 1, 2)));
void shift_pass(const char *what); /* reports that `what` is left to the provider; silent with MANAPY_SHIFT_QUIET */

#endif

/* tcp_bytes.h - see tcp_bytes.c. */
#ifndef MANAPY_TCP_BYTES_H
#define MANAPY_TCP_BYTES_H
#include <stdint.h>
uint64_t mpy_tcp_bytes(void); /* bytes acknowledged or received so far, on the connections that are open now */
#endif

/* op_entries.h - entry points that stand for reduction functions. An MPI library passes such a function nothing that
 * tells which operation it is. So each operation gets an entry point of its own.
 *
 * Both halves have them, and each defines mpy_op_call. See op_entries.S.
 */
#ifndef MANAPY_OP_ENTRIES_H
#define MANAPY_OP_ENTRIES_H

#define MPY_OP_ENTRIES 1024
#define MPY_OP_ENTRY_BYTES 16

#ifndef __ASSEMBLER__
extern char mpy_op_entries[] __attribute__((visibility("hidden"))); /* MPY_OP_ENTRIES of MPY_OP_ENTRY_BYTES each */
#endif
#endif

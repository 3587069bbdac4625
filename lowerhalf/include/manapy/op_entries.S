/* op_entries.S - the entry points of op_entries.h.
 *
 * Register contract: entered by the real MPI as an ordinary C function of four pointers (rdi, rsi, rdx, rcx); adds its
 * number as the fifth argument (r8) and jumps to mpy_op_call. Clobbers nothing else.
 */
#include <manapy/op_entries.h>

        .text
        .balign MPY_OP_ENTRY_BYTES
        .globl  mpy_op_entries
        .hidden mpy_op_entries
        .hidden mpy_op_call
        .type   mpy_op_entries, @function
mpy_op_entries:
        .cfi_startproc
        .set    number, 0
        .rept   MPY_OP_ENTRIES
        .balign MPY_OP_ENTRY_BYTES
        movl    $number, %r8d
        jmp     mpy_op_call
        .set    number, number + 1
        .endr
        .cfi_endproc
        .size   mpy_op_entries, . - mpy_op_entries
        .section .note.GNU-stack, "", @progbits

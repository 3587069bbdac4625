/* op_entries.S - entry points that stand for the core's reduction functions (ops.c).
 *
 * Register contract: entered by the library as an ordinary C function of four pointers (rdi, rsi, rdx, rcx); adds its
 * number as the fifth argument (r8) and jumps to mpy_op_call. Clobbers nothing else. Entries are 16 bytes apart; their
 * count is ENTRIES of ops.c.
 */
        .text
        .balign 16
        .globl  mpy_op_entries
        .hidden mpy_op_entries
        .hidden mpy_op_call
        .type   mpy_op_entries, @function
mpy_op_entries:
        .cfi_startproc
        .set    number, 0
        .rept   1024
        .balign 16
        movl    $number, %r8d
        jmp     mpy_op_call
        .set    number, number + 1
        .endr
        .cfi_endproc
        .size   mpy_op_entries, . - mpy_op_entries
        .section .note.GNU-stack, "", @progbits

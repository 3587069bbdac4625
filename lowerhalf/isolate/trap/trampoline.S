/* trampoline.S - code at a fixed address, the same before and after a restart.
 *
 * The code between mpy_code_begin and mpy_code_end is copied to MPY_CODE_ADDR. Signal frames on the program's stacks
 * contain its addresses (as handler and as restorer), so it must not move. It refers to the rest of the lower half only
 * through the lower block.
 *
 * mpy_code_restorer       return address of every signal handler: rt_sigreturn, as unwinders recognise it.
 * mpy_code_signal_entry   the kernel's handler for every signal that the program catches.
 *   in:  rdi = signal, rsi = siginfo, rdx = ucontext (as the kernel calls handlers)
 *   If the sender's pid in siginfo is our own (raise, pthread_cancel, sigqueue), it is replaced by the pid that the
 *   program knows: glibc ignores a cancellation that seems to come from another process.
 *   If the signal arrived during an MPI call, FS is the lower half's: it is switched to the upper one while the handler
 *   runs. Otherwise lower->signal_above tells whether the interrupted code may still exist after a restart. If it may,
 *   we jump to the program's handler. If not, we call the handler, and the thread is not halted until it has returned
 *   (stop.c).
 *   Clobbers only what a C call may clobber.
 * mpy_code_masked_*       system calls that take a signal mask: see below.
 * mpy_code_wait_*         waits for children: see below.
 *
 * No thread is halted between mpy_code_begin and mpy_code_haltable: there a frame may lead back into a lower half.
 */
#define TRAP_ADDR          0x200000080000
#define LOWER_TLS_WORD     0x200000000000 + 0x30 /* offsetof(mpy_lower_t, tls_upper_fs): asserted in trap.c */
#define LOWER_SIGNAL_ABOVE 0x200000000000 + 0x38 /* offsetof(mpy_lower_t, signal_above) */

    .section .rodata
    .globl mpy_code_begin, mpy_code_restorer, mpy_code_signal_entry, mpy_code_haltable, mpy_code_end
    .hidden mpy_code_begin, mpy_code_restorer, mpy_code_signal_entry, mpy_code_haltable, mpy_code_end
    .balign 64
mpy_code_begin:
    nop /* unwinders look up the return address - 1 */
mpy_code_restorer:
    movq $15, %rax
    syscall
    ud2

    .balign 16
mpy_code_signal_entry:
    endbr64
    movabsq $TRAP_ADDR, %rax
    movl 0x824(%rax), %ecx /* real_pid */
    cmpl %ecx, 16(%rsi) /* si_pid */
    jne 2f
    cmpl $0, 8(%rsi) /* si_code: kill, tgkill, sigqueue are <= 0 */
    jg 2f
    movl 0x820(%rax), %ecx /* pid */
    movl %ecx, 16(%rsi)
2:  movslq %edi, %rcx
    shlq $5, %rcx
    movq (%rax, %rcx), %rax /* signals[sig].handler */
    rdfsbase %r8
    movq %r8, %r9
    shrq $40, %r9
    pushq %rbp
    movq %rsp, %rbp
    cmpl $0x20, %r9d /* 0x2000_0000_0000 <= FS < 0x2100_0000_0000 */
    jne 1f
    pushq %rdi
    pushq %rsi
    pushq %rdx
    pushq %rax
    subq $16, %rsp /* the mark, and 16-byte alignment */
    movq %rdx, %rdi
    movq %rsp, %rsi
    movabsq $LOWER_SIGNAL_ABOVE, %rax
    call *(%rax)
    testl %eax, %eax
    movq 16(%rsp), %rax
    movq 24(%rsp), %rdx
    movq 32(%rsp), %rsi
    movq 40(%rsp), %rdi
    jnz 3f
    leave
    jmp *%rax
3:  call *%rax
    movq (%rsp), %rax
    movl $0, (%rax) /* the mark's thread: none */
    leave
    ret
1:  pushq %r8
    pushq %r8 /* keep the stack 16-aligned at the call */
    movabsq $LOWER_TLS_WORD, %r9
    movq (%r9), %r9
    movq (%r8, %r9), %r9
    wrfsbase %r9
    call *%rax
    movq -8(%rbp), %r8
    wrfsbase %r8
    leave
    ret

/* Here a system call that takes a signal mask is made on behalf of the program (mpy_trap_with_mask): with a corrected
 * copy of the mask, interruptible as in its original place, and exempt from the filter. The signal frame of the trap no
 * longer exists then, so the stack below the red zone is free.
 *   in:  rax = number; rcx = where the program continues; r11 = the corrected mask. The entry determines which argument
 *   is, or points to, the mask. All other registers are as at the program's own system call, which clobbers only these
 *   three.
 *   Flags are not changed. */
#define BEGIN \
    leaq -128(%rsp), %rsp; \
    pushq %rcx
/* reg points to the last `bytes` that were pushed; the program's reg was pushed before. */
#define CALL_WITH_TOP(reg, bytes) \
    movq %rsp, %reg; \
    call masked_call; \
    leaq bytes(%rsp), %rsp; \
    popq %reg; \
    ret $128
#define WITH(reg) \
    BEGIN; \
    pushq %reg; \
    pushq %r11; \
    CALL_WITH_TOP(reg, 8)
/* The same for waits (trap_wait.c): r11 is the kernel's id for which the call waits, and takes the place of the
 * program's. The id of the child, in rax or in the siginfo at rdx, is translated afterwards. No thread is halted in
 * this part, only in the system call. */
    .globl mpy_code_wait_rdi, mpy_code_wait_rdi_returned, mpy_code_wait_rsi, mpy_code_wait_rsi_returned
    .hidden mpy_code_wait_rdi, mpy_code_wait_rdi_returned, mpy_code_wait_rsi, mpy_code_wait_rsi_returned
#define WAIT(reg, returned) \
    BEGIN; \
    pushq %reg; \
    movq %r11, %reg; \
    call masked_call; \
returned: \
    popq %reg
mpy_code_wait_rdi: /* wait4 */
    WAIT(rdi, mpy_code_wait_rdi_returned)
    pushfq
    call shown_id
    popfq
    ret $128
mpy_code_wait_rsi: /* waitid */
    WAIT(rsi, mpy_code_wait_rsi_returned)
    pushfq
    testq %rax, %rax
    jnz 1f
    testq %rdx, %rdx
    jz 1f
    movl 16(%rdx), %eax /* si_pid */
    call shown_id
    movl %eax, 16(%rdx)
    xorl %eax, %eax
1:  popfq
    ret $128
shown_id: /* eax: the kernel's id, then the program's; clobbers rcx, r11 and the flags */
    movabsq $TRAP_ADDR + 0x1888, %rcx /* ids */
    movl -4(%rcx), %r11d /* nids */
    leaq (%rcx, %r11, 8), %r11
1:  cmpq %r11, %rcx
    je 3f
    cmpl %eax, 4(%rcx) /* real */
    je 2f
    addq $8, %rcx
    jmp 1b
2:  movl (%rcx), %eax /* shown */
3:  ret

    .globl mpy_code_masked_none, mpy_code_masked_rdi, mpy_code_masked_r10, mpy_code_masked_r8
    .hidden mpy_code_masked_none, mpy_code_masked_rdi, mpy_code_masked_r10, mpy_code_masked_r8
    .globl mpy_code_masked_r9_pair, mpy_code_masked_done
    .hidden mpy_code_masked_r9_pair, mpy_code_masked_done
    .balign 16
mpy_code_haltable:
mpy_code_masked_none:
    BEGIN
    call masked_call
    ret $128
mpy_code_masked_rdi:
    WITH(rdi)
mpy_code_masked_r10:
    WITH(r10)
mpy_code_masked_r8:
    WITH(r8)
mpy_code_masked_r9_pair: /* pselect6: a pointer to {mask, its size} */
    BEGIN
    pushq %r9
    pushq %r11
    movq %rsp, %r11
    pushq $8
    pushq %r11
    CALL_WITH_TOP(r9, 24)
/* The same for a sleep until an absolute time of a shifted clock (clock.c): r11 is the corrected time's seconds; a copy
 * of the time is made with it. */
#define UNTIL(reg) \
    BEGIN; \
    pushq %reg; \
    pushq 8(%reg); \
    pushq %r11; \
    CALL_WITH_TOP(reg, 16)
    .globl mpy_code_timed_rdx, mpy_code_timed_r10, mpy_code_timed_end
    .hidden mpy_code_timed_rdx, mpy_code_timed_r10, mpy_code_timed_end
mpy_code_timed_rdx:
    UNTIL(rdx)
mpy_code_timed_r10:
    UNTIL(r10)
mpy_code_timed_end:
/* The same for a wait of a certain length that a checkpoint has interrupted (stop.c): r11 is the time at which it is
 * over. LEFT makes a copy of the length, in which stop.c puts what is left when the wait is interrupted again. For
 * LEFT_MS the length is in the register itself. */
#define LEFT(reg) \
    BEGIN; \
    pushq %reg; \
    pushq %r11; \
    pushq 8(%reg); \
    pushq (%reg); \
    CALL_WITH_TOP(reg, 24)
#define LEFT_MS(reg) \
    BEGIN; \
    pushq %reg; \
    pushq %r11; \
    call masked_call; \
    leaq 8(%rsp), %rsp; \
    popq %reg; \
    ret $128
    .globl mpy_code_left_rdi, mpy_code_left_rdx, mpy_code_left_r10
    .hidden mpy_code_left_rdi, mpy_code_left_rdx, mpy_code_left_r10
    .globl mpy_code_left_ms_rdx, mpy_code_left_ms_r10, mpy_code_left_end
    .hidden mpy_code_left_ms_rdx, mpy_code_left_ms_r10, mpy_code_left_end
mpy_code_left_rdi:
    LEFT(rdi)
mpy_code_left_rdx:
    LEFT(rdx)
mpy_code_left_r10:
    LEFT(r10)
mpy_code_left_ms_rdx:
    LEFT_MS(rdx)
mpy_code_left_ms_r10:
    LEFT_MS(r10)
mpy_code_left_end:
masked_call:
    syscall
mpy_code_masked_done:
    ret
mpy_code_end:

    .section .note.GNU-stack,"",@progbits

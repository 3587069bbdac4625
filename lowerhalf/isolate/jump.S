/* jump.S - see jump.h. The head of each function has its register contract. */
/* void mpy_jump(uint64_t entry, uint64_t stack): starts the upper half as the kernel starts a program. */
    .text
    .globl mpy_jump
    .hidden mpy_jump
    .type mpy_jump, @function
mpy_jump:
    movq %rsi, %rsp
    xorl %eax, %eax
    wrfsbase %rax
    xorl %ebx, %ebx
    xorl %ecx, %ecx
    xorl %edx, %edx
    xorl %ebp, %ebp
    xorl %esi, %esi
    xorl %r8d, %r8d
    xorl %r9d, %r9d
    xorl %r10d, %r10d
    xorl %r11d, %r11d
    xorl %r12d, %r12d
    xorl %r13d, %r13d
    xorl %r14d, %r14d
    xorl %r15d, %r15d
    movq %rdi, %rax
    xorl %edi, %edi
    jmp *%rax
    .size mpy_jump, .-mpy_jump

/* int mpy_on_stack(int (*fn)(void *), void *arg, uint64_t stack_top): calls fn(arg) on another stack. */
    .globl mpy_on_stack
    .hidden mpy_on_stack
    .type mpy_on_stack, @function
mpy_on_stack:
    pushq %rbp
    movq %rsp, %rbp
    movq %rdi, %rax
    movq %rsi, %rdi
    movq %rdx, %rsp
    andq $-16, %rsp
    call *%rax
    movq %rbp, %rsp
    popq %rbp
    ret
    .size mpy_on_stack, .-mpy_on_stack

/* void mpy_sigreturn(uint64_t ucontext): continues at a saved signal frame. */
    .globl mpy_sigreturn
    .hidden mpy_sigreturn
    .type mpy_sigreturn, @function
mpy_sigreturn:
    movq %rdi, %rsp
    movl $15, %eax
    syscall
    ud2
    .size mpy_sigreturn, .-mpy_sigreturn

/* long mpy_clone(const long args[5], void (*fn)(void *), void *arg): clone(2). The child calls fn(arg), which never
 * returns, on the stack that the arguments specify (16-aligned). Returns the child's id, or -errno. */
    .globl mpy_clone
    .hidden mpy_clone
    .type mpy_clone, @function
mpy_clone:
    pushq %rbx
    pushq %rbp
    movq %rsi, %rbx
    movq %rdx, %rbp
    movl $56, %eax
    movq 8(%rdi), %rsi
    movq 16(%rdi), %rdx
    movq 24(%rdi), %r10
    movq 32(%rdi), %r8
    movq (%rdi), %rdi
    syscall
    testq %rax, %rax
    jz 1f
    popq %rbp
    popq %rbx
    ret
1:  movq %rbp, %rdi
    xorl %ebp, %ebp
    call *%rbx
    ud2
    .size mpy_clone, .-mpy_clone

/* void mpy_sleep_stackless(volatile uint32_t *asleep): sleeps for ever. It stores 1 at `asleep`, and uses no stack
 * after that. */
    .globl mpy_sleep_stackless
    .hidden mpy_sleep_stackless
    .type mpy_sleep_stackless, @function
mpy_sleep_stackless:
    movl $1, (%rdi)
1:  movl $34, %eax /* pause */
    syscall
    jmp 1b
    .size mpy_sleep_stackless, .-mpy_sleep_stackless

    .section .note.GNU-stack,"",@progbits

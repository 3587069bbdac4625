/* preload.S - dlsym and dlvsym in front of libc's, for programs that open libibverbs by dlopen and would otherwise
 * bypass us (preload.c).
 *
 * With RTLD_NEXT (-1) libc determines the caller from the return address. So then we must leave by a jump, with the
 * caller's stack unchanged.
 */
    .text
    .globl dlsym
    .type dlsym, @function
dlsym:
    endbr64
    cmp $-1, %rdi
    jne shift_dlsym
    mov shift_next_dlsym(%rip), %rax
    test %rax, %rax
    jnz 1f
    push %rdi
    push %rsi
    sub $8, %rsp
    call shift_find_libc
    add $8, %rsp
    pop %rsi
    pop %rdi
    mov shift_next_dlsym(%rip), %rax
1:  jmp *%rax
    .size dlsym, .-dlsym

    .globl dlvsym
    .type dlvsym, @function
dlvsym:
    endbr64
    cmp $-1, %rdi
    jne shift_dlvsym
    mov shift_next_dlvsym(%rip), %rax
    test %rax, %rax
    jnz 1f
    push %rdi
    push %rsi
    push %rdx
    call shift_find_libc
    pop %rdx
    pop %rsi
    pop %rdi
    mov shift_next_dlvsym(%rip), %rax
1:  jmp *%rax
    .size dlvsym, .-dlvsym

    .section .note.GNU-stack, "", @progbits

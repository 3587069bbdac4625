/* jump.h - changes of the stack, and of the thread's whole state, that C cannot express. See jump.S.
 *
 * Half: lower; on either half's TLS, and without libc.
 */
#ifndef MANAPY_JUMP_H
#define MANAPY_JUMP_H
#include <stdint.h>

/* Starts the upper half as the kernel starts a program. */
void mpy_jump(uint64_t entry, uint64_t stack) __attribute__((noreturn));
/* Calls fn(arg) on another stack. */
int mpy_on_stack(int (*fn)(void *), void *arg, uint64_t stack_top);
/* Continues at a saved signal frame. */
void mpy_sigreturn(uint64_t ucontext) __attribute__((noreturn));
/* clone(2). The child calls fn(arg), which never returns, on the stack that the arguments specify (16-aligned). Returns
 * the child's id, or -errno. */
long mpy_clone(const long args[5], void (*fn)(void *), void *arg);
/* Sleeps for ever. Stores 1 at `asleep`, and uses no stack after that. */
void mpy_sleep_stackless(volatile uint32_t *asleep) __attribute__((noreturn));
#endif

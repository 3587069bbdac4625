/* fold_stubs.c - until fold.c is there: ends the job with a line that says what is missing. */
void mpy_unsupported(const char *function) __attribute__((noreturn, visibility("hidden")));

#define STUB(NAME) \
    __attribute__((weak, visibility("hidden"))) void mpy_fold_##NAME(void); \
    void mpy_fold_##NAME(void) { mpy_unsupported("MPI_" #NAME " with an operation of the program"); }

STUB(Iallreduce)
STUB(Iallreduce_c)
STUB(Iexscan)
STUB(Iexscan_c)
STUB(Ireduce)
STUB(Ireduce_c)
STUB(Ireduce_scatter)
STUB(Ireduce_scatter_c)
STUB(Ireduce_scatter_block)
STUB(Ireduce_scatter_block_c)
STUB(Iscan)
STUB(Iscan_c)

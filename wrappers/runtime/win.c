/* win.c - windows. Not there yet: only the hooks. */
#include "objects.h"

int mpy_win_rebuild(char *error, uint64_t n) {
    (void)error, (void)n;
    return 0;
}
int mpy_win_drain(char *error, uint64_t n) {
    (void)error, (void)n;
    return 0;
}
int mpy_win_resume(char *error, uint64_t n) {
    (void)error, (void)n;
    return 0;
}

/* fortran_callbacks.c - registers procedures of fortran_connected.f90: Fortran has no weak symbols. */
#include <manapy.h>

extern int leave(void *data), come_back(void *data);

int register_callbacks(void) {
    return manapy_before_checkpoint(leave, 0) + manapy_after_checkpoint(come_back, 0) +
           manapy_after_restart(come_back, 0);
}

void poll_callbacks(void) { manapy_poll(); }

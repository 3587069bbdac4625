/* session.h - sessions, emulated on the world. See session.c. */
#ifndef MANAPY_SESSION_H
#define MANAPY_SESSION_H

#include "core/objects.h"

typedef struct mpy_session {
    mpy_object_t obj;
    int errhandler;
    int info;             /* as given to MPI_Session_init, or MPI_INFO_NULL */
    char level[24];       /* the thread level that the library has given it then, in words; may be empty */
    int strict;           /* can't be finalized while an object made from it exists */
    struct mpy_buffer *buffer; /* MPI_Session_attach_buffer */
} mpy_session_t;
MPY_HIDDEN mpy_session_t *mpy_session(int handle); /* NULL for 0 and for any other value that is not a session */
MPY_HIDDEN bool mpy_session_any(void);             /* is a session open? */
MPY_HIDDEN int mpy_session_error(mpy_session_t *session_or_null, int code, const char *function);
MPY_HIDDEN int mpy_session_rebuild(char *error, uint64_t n);

#endif

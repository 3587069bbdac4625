/* cxx.c - symbols inside Open MPI's library that its C++ library (libmpi_cxx.so.40) needs.
 *
 * Programs that mpicxx links need that library, whether or not they use MPI's C++ bindings. It is loaded with the
 * program, and its constructors only copy handles. Of the bindings, those work that call functions of C. The functions
 * here end the job with one line: callbacks of C++, which the library stores inside Open MPI's objects.
 */
#include "openmpi.h"

/* The C++ library throws if a communicator has this error handler. */
extern EXPORTED front_object_t ompi_mpi_errors_throw_exceptions;
front_object_t ompi_mpi_errors_throw_exceptions = {0x54000002, -1}; /* MPICH's MPI::ERRORS_THROW_EXCEPTIONS */

#define INSIDE(NAME) \
    EXPORTED void NAME(void) __attribute__((noreturn)); \
    void NAME(void) { mpy_core_unsupported(#NAME " (C++ bindings of Open MPI)"); }
INSIDE(ompi_attr_create_keyval)
INSIDE(ompi_errhandler_create)
INSIDE(ompi_errhandler_invoke)
INSIDE(ompi_op_set_cxx_callback)

/* Open MPI's own lists of errors and data representations; read only by functions above and by failed calls. */
extern EXPORTED int ompi_errcode_intern_lastused;
extern EXPORTED void *ompi_errcodes_intern[16], *ompi_registered_datareps[16];
int ompi_errcode_intern_lastused;
void *ompi_errcodes_intern[16], *ompi_registered_datareps[16];

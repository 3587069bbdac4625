/* fortran.c - what Open MPI's own Fortran library (libmpi_mpifh.so.40) takes from libmpi.so.40 besides MPI, and besides
 * what cxx.c has. It runs in the upper half, unchanged, on top of this library.
 *
 * Invariants
 *  1. ompi_mpi_param_check is 0: these libraries then never look at ompi_mpi_state, and the core checks arguments.
 *  2. The constants of mpif.h are common blocks. Only their addresses count, and a program has them in its own memory.
 *  3. Some of Open MPI's Fortran functions read or write fields of the object behind a handle: MPI_X_get_attr,
 *     MPI_X_set_attr, MPI_Attr_get, MPI_Attr_put, MPI_Alltoallw, MPI_Ialltoallw, MPI_Op_create, MPI_Grequest_start and
 *     the constructors of error handlers. They are not supported. On a predefined object most of them get to a function
 *     that ends the job with a line. The handle of a created object is no address, so there they end with SIGSEGV.
 */
#include "openmpi.h"

#include <stdlib.h>
#include <string.h>

#pragma GCC visibility push(default)

/* Constants (invariant 2); the types are those of mpif.h. */
int mpi_fortran_bottom_, mpi_fortran_in_place_, mpi_fortran_unweighted_, mpi_fortran_weights_empty_;
int mpi_fortran_errcodes_ignore_;
char mpi_fortran_argv_null_, mpi_fortran_argvs_null_;
double mpi_fortran_status_ignore_, mpi_fortran_statuses_ignore_;

bool ompi_mpi_param_check = false;
int ompi_mpi_state;
front_status_t ompi_status_empty = {.source = OPENMPI_ANY_SOURCE, .tag = OPENMPI_ANY_TAG};

void mpi_conversion_fn_null_(void);
int ompi_fortran_string_f2c(const char *fortran, int length, char **c);
int ompi_fortran_string_c2f(const char *c, char *fortran, int length);
int ompi_fortran_argv_blank_f2c(const char *array, int length, int advance, char ***argv);
int ompi_fortran_argv_count_f2c(const char *array, int count, int length, int advance, char ***argv);
int ompi_fortran_multiple_argvs_f2c(int commands, const char *array, int length, char ****argvs);
front_handle_t ompi_datatype_match_size(int size, uint16_t kind, uint16_t language);

/* Never called: its address says that a data representation has no conversion. */
void mpi_conversion_fn_null_(void) {}

/* ---- texts: padded with blanks in Fortran ---- */

int ompi_fortran_string_f2c(const char *fortran, int length, char **c) {
    int first = 0, end = length;
    while (first < length && fortran[first] == ' ') first++;
    while (end > first && fortran[end - 1] == ' ') end--;
    *c = strndup(fortran + first, (size_t)(end - first));
    return *c != NULL ? MPI_SUCCESS : OPENMPI_ERR_NO_MEM;
}

int ompi_fortran_string_c2f(const char *c, char *fortran, int length) {
    size_t n = strnlen(c, (size_t)length);
    memcpy(fortran, c, n);
    memset(fortran + n, ' ', (size_t)length - n);
    return MPI_SUCCESS;
}

/* An array of `count` texts, or one that ends with a blank text (count < 0). The list ends with NULL; the library frees
 * it with opal_argv_free. */
static int texts(const char *array, int count, int length, int advance, char ***argv) {
    int n = 0;
    *argv = calloc(1, sizeof **argv);
    while (*argv != NULL && (count < 0 || n < count)) {
        char **longer = realloc(*argv, ((size_t)n + 2) * sizeof **argv);
        if (longer == NULL) break;
        *argv = longer;
        longer[n] = longer[n + 1] = NULL;
        if (ompi_fortran_string_f2c(array + (ptrdiff_t)n * advance, length, &longer[n]) != MPI_SUCCESS) break;
        if (count < 0 && longer[n][0] == 0) {
            free(longer[n]);
            longer[n] = NULL;
            return MPI_SUCCESS;
        }
        n++;
    }
    return n == count ? MPI_SUCCESS : OPENMPI_ERR_NO_MEM;
}

int ompi_fortran_argv_blank_f2c(const char *array, int length, int advance, char ***argv) {
    return texts(array, -1, length, advance, argv);
}

int ompi_fortran_argv_count_f2c(const char *array, int count, int length, int advance, char ***argv) {
    return texts(array, count, length, advance, argv);
}

/* A matrix of texts in Fortran's order: those of a command stand `commands` texts apart. */
int ompi_fortran_multiple_argvs_f2c(int commands, const char *array, int length, char ****argvs) {
    int rc = MPI_SUCCESS;
    *argvs = calloc((size_t)commands + 1, sizeof **argvs);
    if (*argvs == NULL) return OPENMPI_ERR_NO_MEM;
    for (int i = 0; i < commands && rc == MPI_SUCCESS; i++)
        rc = ompi_fortran_argv_blank_f2c(array + (ptrdiff_t)i * length, length, commands * length, &(*argvs)[i]);
    return rc;
}

/* ---- datatypes ---- */

/* kind: a flag of Open MPI's datatypes. */
front_handle_t ompi_datatype_match_size(int size, uint16_t kind, uint16_t language) {
    enum { INTEGER = 0x1000, REAL = 0x2000, COMPLEX = 0x3000 };
    int class = kind == REAL ? MPI_TYPECLASS_REAL : kind == COMPLEX ? MPI_TYPECLASS_COMPLEX : MPI_TYPECLASS_INTEGER;
    int core = MPI_DATATYPE_NULL;
    (void)language;
    MPY_CORE(Type_match_size)(class, size, &core);
    return front_handle(FRONT_DATATYPE, core);
}

/* ---- what is not supported (invariant 3) ---- */

#define NOT_FROM_FORTRAN(NAME, FUNCTIONS) \
    void NAME(void); \
    void NAME(void) { mpy_core_unsupported(FUNCTIONS " (Fortran of Open MPI)"); }
NOT_FROM_FORTRAN(ompi_attr_create_keyval_fint, "MPI_Keyval_create")
NOT_FROM_FORTRAN(ompi_attr_create_keyval_aint, "MPI_X_create_keyval")
NOT_FROM_FORTRAN(ompi_attr_get_fint, "MPI_Attr_get")
NOT_FROM_FORTRAN(ompi_attr_get_aint, "MPI_X_get_attr")
NOT_FROM_FORTRAN(ompi_attr_set_fint, "MPI_Attr_put")
NOT_FROM_FORTRAN(ompi_attr_set_aint, "MPI_X_set_attr")
NOT_FROM_FORTRAN(ompi_mpi_errors_are_fatal_comm_handler, "an error handler")

#pragma GCC visibility pop

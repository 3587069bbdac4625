/* own.c - what the back for the standard ABI has of its own: texts of errors, events of MPI_T. See standard.h. */
#include "standard.h"

#include <string.h>

/* Intel MPI 2021.18 has values of its own for some constants: for MPI_ERRORS_RETURN that of MPI_ERRORS_ABORT and the
 * other way round, and these. */
static const struct { mpy_group_t group; int ours, theirs; } intels[] = {
    {MPY_GROUP_SEEK, MPI_SEEK_SET, 401},
    {MPY_GROUP_SEEK, MPI_SEEK_CUR, 402},
    {MPY_GROUP_SEEK, MPI_SEEK_END, 403},
    {MPY_GROUP_KEYVAL, MPI_UNIVERSE_SIZE, 505},
    {MPY_GROUP_KEYVAL, MPI_APPNUM, 506},
    {MPY_GROUP_KEYVAL, MPI_LASTUSEDCODE, 507},
};

/* The default of files is MPI_ERRORS_RETURN. */
void mpy_up(void) {
    void **predefined = mpy_predefined[MPY_KIND_ERRHANDLER], *returns = NULL;
    void **first = &predefined[MPI_ERRORS_RETURN & 0xff], **second = &predefined[MPI_ERRORS_ABORT & 0xff];
    int rc = MPY_THEIRS(File_get_errhandler, mpy_file_null, &returns);
    if (rc != 0 || returns != *second) return;
    *second = *first;
    *first = returns;
    for (size_t i = 0; i < sizeof intels / sizeof *intels; i++)
        mpy_number_set(intels[i].group, intels[i].ours, intels[i].theirs);
}

const char *mpy_own_text(int class) {
    (void)class;
    return NULL;
}

/* MPICH 5.0's MPI_Error_string gives the texts of MPICH's classes, as if they were not those of the standard. */
static bool takes_mpichs_classes(void) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPY_THEIRS(Error_string, BACK_ERR_KEYVAL, text, &length);
    return strcasestr(text, "keyval") == NULL;
}

int mpy_text_code(int class) {
    static int known; /* 1: the standard's classes; 2: MPICH's */
    if (known == 0) known = takes_mpichs_classes() ? 2 : 1;
    return known == 2 ? class : mpy_code_in(class);
}

static int event_get_info(int index, char *name, int *name_length, int *verbosity, MPI_Datatype types[],
                          MPI_Aint displacements[], int *n, void *enumtype, MPI_Info *info, char *text,
                          int *text_length, int *bind) {
    void *o_info = mpy_null[MPY_KIND_INFO];
    mpy_arrays_t arrays;
    mpy_arrays_begin(&arrays, false);
    int room = types != NULL && n != NULL && *n > 0 ? *n : 0;
    void **o_types = mpy_arrays_take(&arrays, (size_t)room * sizeof *o_types);
    int rc = MPY_THEIRS(T_event_get_info, index, name, name_length, verbosity, types != NULL ? o_types : NULL,
                        displacements, n, enumtype, info != NULL ? &o_info : NULL, text, text_length, bind);
    if (rc == 0) {
        int given = n != NULL && *n < room ? *n : room;
        for (int i = 0; i < given; i++) types[i] = mpy_out(MPY_KIND_DATATYPE, o_types[i]);
        if (info != NULL) *info = mpy_out(MPY_KIND_INFO, o_info);
        if (verbosity != NULL) *verbosity = mpy_number_out(MPY_GROUP_T_VERBOSITY, *verbosity);
        if (bind != NULL) *bind = mpy_number_out(MPY_GROUP_T_BIND, *bind);
    }
    mpy_arrays_end(&arrays);
    return mpy_code_out(rc);
}

static const mpy_ours_t own[] = {OURS(T_event_get_info, T_event_get_info, event_get_info)};

bool mpy_own_open(void **functions, char *error, size_t n) {
    (void)error, (void)n;
    mpy_fill(functions, own, sizeof own / sizeof *own);
    return true;
}

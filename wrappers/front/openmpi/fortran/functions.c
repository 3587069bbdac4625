/* functions.c - functions whose arguments in Fortran aren't those in C, and those that only Fortran has. */
#include "fortran.h"

#include <stdlib.h>
#include <string.h>

/* ---- start, and what has other arguments than in C ---- */

void fortran_Init(MPI_Fint *ierror) { *ierror = front_Init(NULL, NULL); }

void fortran_Init_thread(MPI_Fint *required, MPI_Fint *provided, MPI_Fint *ierror) {
    *ierror = front_Init_thread(NULL, NULL, *required, provided);
}

void fortran_Info_create_env(MPI_Fint *info, MPI_Fint *ierror) {
    front_handle_t own = 0;
    *ierror = front_Info_create_env(0, NULL, &own);
    if (own != 0) *info = front_fortran(FRONT_INFO, own);
}

void fortran_Pcontrol(MPI_Fint *level) { front_Pcontrol(*level); }

/* Lets the compiler think that a variable may have changed. */
void fortran_F_sync_reg(void *variable) { (void)variable; }

/* The address of the buffer means nothing in Fortran (MPI-4 3.6). */
void fortran_Buffer_detach(void *buffer, MPI_Fint *size, MPI_Fint *ierror) {
    void *address;
    (void)buffer;
    *ierror = front_Buffer_detach(&address, size);
}

/* ---- texts whose length is an argument: without a zero at the end ---- */

static void put_text(int rc, const char *text, int *given, int needed, char *to, int length) {
    if (rc != MPI_SUCCESS) return;
    int wanted = *given < length ? *given : length;
    if (wanted > 0) fortran_text_put(to, length, text);
    *given = needed > 0 ? needed - 1 : needed;
}

void fortran_Info_get_string(MPI_Fint *info, const char *key, MPI_Fint *buflen, char *value, MPI_Fint *flag,
                             MPI_Fint *ierror, int key_length, int length) {
    char *own_key = fortran_text(key, key_length), text[TEXT_SIZE] = "";
    int size = *buflen < TEXT_SIZE ? *buflen + 1 : TEXT_SIZE;
    int rc = front_Info_get_string(front_of_fortran(FRONT_INFO, *info), own_key, &size, text, flag);
    if (rc == MPI_SUCCESS && *flag) put_text(rc, text, buflen, size, value, length);
    free(own_key);
    *ierror = rc;
}

void fortran_Session_get_nth_pset(MPI_Fint *session, MPI_Fint *info, MPI_Fint *n, MPI_Fint *pset_len, char *name,
                                  MPI_Fint *ierror, int length) {
    char text[TEXT_SIZE] = "";
    int size = *pset_len == 0 ? 0 : *pset_len < TEXT_SIZE ? *pset_len + 1 : TEXT_SIZE;
    int rc = front_Session_get_nth_pset(front_of_fortran(FRONT_SESSION, *session), front_of_fortran(FRONT_INFO, *info),
                                        *n, &size, text);
    put_text(rc, text, pset_len, size, name, length);
    *ierror = rc;
}

/* ---- datatypes ---- */

void fortran_Type_get_contents(MPI_Fint *datatype, MPI_Fint *max_integers, MPI_Fint *max_addresses,
                               MPI_Fint *max_datatypes, MPI_Fint *integers, MPI_Aint *addresses, MPI_Fint *datatypes,
                               MPI_Fint *ierror) {
    int n = *max_datatypes > 0 ? *max_datatypes : 0;
    front_handle_t *own = calloc((size_t)n + 1, sizeof *own);
    if (own == NULL) abort();
    *ierror = front_Type_get_contents(front_of_fortran(FRONT_DATATYPE, *datatype), *max_integers, *max_addresses,
                                      *max_datatypes, integers, addresses, own);
    for (int i = 0; i < n && own[i] != 0; i++) datatypes[i] = front_fortran(FRONT_DATATYPE, own[i]);
    free(own);
}

/* ---- processes. Only the root's commands, arguments and infos mean something. ---- */

static bool is_root(front_handle_t comm, int root) {
    int rank = -1;
    return front_Comm_rank(comm, &rank) == MPI_SUCCESS && rank == root;
}

static int *errcodes(MPI_Fint *codes) { return codes != &mpi_fortran_errcodes_ignore_ ? codes : NULL; }

void fortran_Comm_spawn(const char *command, const char *argv, MPI_Fint *maxprocs, MPI_Fint *info, MPI_Fint *root,
                        MPI_Fint *comm, MPI_Fint *intercomm, MPI_Fint *codes, MPI_Fint *ierror, int command_length,
                        int argv_length) {
    front_handle_t own_comm = front_of_fortran(FRONT_COMM, *comm), made = 0;
    bool ours = is_root(own_comm, *root);
    char *own_command = ours ? fortran_text(command, command_length) : NULL, **own_argv = NULL;
    if (ours && argv != &mpi_fortran_argv_null_) own_argv = fortran_texts(argv, -1, argv_length, argv_length);
    *ierror = front_Comm_spawn(own_command, own_argv, *maxprocs, front_of_fortran(FRONT_INFO, *info), *root, own_comm,
                               &made, errcodes(codes));
    if (made != 0) *intercomm = front_fortran(FRONT_COMM, made);
    free(own_command);
    fortran_texts_free(own_argv);
}

/* A row of the matrix argvs is a command's list, so its texts stand `count` texts apart. */
void fortran_Comm_spawn_multiple(MPI_Fint *count, const char *commands, const char *argvs, MPI_Fint *maxprocs,
                                 MPI_Fint *infos, MPI_Fint *root, MPI_Fint *comm, MPI_Fint *intercomm, MPI_Fint *codes,
                                 MPI_Fint *ierror, int commands_length, int argvs_length) {
    front_handle_t own_comm = front_of_fortran(FRONT_COMM, *comm), made = 0, local[LOCAL_ITEMS], *own_infos = local;
    int n = is_root(own_comm, *root) && *count > 0 ? *count : 0;
    char **own_commands = fortran_texts(commands, n, commands_length, commands_length), ***own_argvs = NULL;
    if (argvs != &mpi_fortran_argvs_null_) {
        own_argvs = calloc((size_t)n + 1, sizeof *own_argvs);
        if (own_argvs == NULL) abort();
        for (int i = 0; i < n; i++)
            own_argvs[i] = fortran_texts(argvs + (ptrdiff_t)i * argvs_length, -1, argvs_length,
                                         (ptrdiff_t)n * argvs_length);
    }
    own_infos = fortran_handles(FRONT_INFO, infos, n, local);
    *ierror = front_Comm_spawn_multiple(*count, own_commands, own_argvs, maxprocs, own_infos, *root, own_comm, &made,
                                        errcodes(codes));
    if (made != 0) *intercomm = front_fortran(FRONT_COMM, made);
    fortran_handles_free(own_infos, local);
    fortran_texts_free(own_commands);
    for (int i = 0; i < n && own_argvs != NULL; i++) fortran_texts_free(own_argvs[i]);
    free(own_argvs);
}

/* file_view.c - what the program sets on a file and queries: view, hints, atomicity, mode; data representations.
 *
 * Upper half, no libc.
 */
#include "file.h"
#include "core/abi.h"
#include "datatype/datatype.h"
#include "environment/info.h"

/* ---- the types of a view ---- */

mpy_view_type_t mpy_view_type(int handle) {
    mpy_view_type_t v = {.derived = mpy_datatype(handle)};
    if (v.derived != NULL)
        mpy_object_ref(&v.derived->obj);
    else
        v.predefined = mpy_abi_standard(MPY_ABI_DATATYPE, handle);
    return v;
}

void mpy_view_type_drop(mpy_view_type_t *v) {
    if (v->derived != NULL) mpy_object_unref(MPY_DATATYPE, &v->derived->obj);
}

int mpy_view_type_real(const mpy_view_type_t *v) {
    return v->derived != NULL ? v->derived->obj.real : mpy_abi_mpich(MPY_ABI_DATATYPE, v->predefined);
}

/* For the program: a derived type is returned as a committed duplicate, which the program frees. In the lower half. */
static int duplicate(const mpy_view_type_t *v, MPI_Datatype *handle) {
    if (v->derived == NULL || v->derived->permanent) {
        *handle = v->derived != NULL ? v->derived->obj.handle : mpy_abi_mpich(MPY_ABI_DATATYPE, v->predefined);
        return MPI_SUCCESS;
    }
    mpy_datatype_t *d = mpy_datatype_blank(MPI_COMBINER_DUP, false, 0, 0, 0, 1);
    d->bases[0] = v->derived;
    mpy_object_ref(&v->derived->obj);
    int rc = mpy_datatype_construct(d);
    if (rc == 0) rc = MPY_REAL(Type_commit)(&d->obj.real);
    d->committed = true;
    if (rc == 0)
        *handle = mpy_datatype_add(d);
    else
        mpy_datatype_destroy(d);
    return rc;
}

/* ---- the view ---- */

/* The displacement that MPI_DISPLACEMENT_CURRENT means. The real file isn't in sequential mode (invariant 4 of file.h).
 * So this reads the shared file pointer, between two synchronizing calls, because setting the view resets it. In the
 * lower half. */
static int current_displacement(mpy_file_t *f, MPI_Offset *disp) {
    MPI_Offset position;
    MPY_REAL(Barrier)(f->real_comm);
    int rc = MPY_REAL(File_get_position_shared)(f->real, &position);
    MPY_REAL(Barrier)(f->real_comm);
    return rc == 0 ? MPY_REAL(File_get_byte_offset)(f->real, position, disp) : rc;
}

static void record_view(mpy_file_t *f, MPI_Offset disp, int etype, int filetype, const char *datarep, int info) {
    mpy_view_type_t old[2] = {f->etype, f->filetype};
    f->disp = disp;
    f->etype = mpy_view_type(etype);
    f->filetype = mpy_view_type(filetype);
    /* all other representations are native */
    f->external32 = mpy_text_equal(datarep, "external32") || mpy_text_equal(datarep, "EXTERNAL32");
    mpy_info_merge(&f->info, info);
    mpy_view_type_drop(&old[0]);
    mpy_view_type_drop(&old[1]);
}

int PMPI_File_set_view(MPI_File fh, MPI_Offset disp, MPI_Datatype etype, MPI_Datatype filetype, const char *datarep,
                       MPI_Info info) {
    mpy_file_call_t call = mpy_file_enter(fh);
    int rc = MPI_SUCCESS;
    if (call.f != NULL && call.f->sequential)
        rc = disp == MPI_DISPLACEMENT_CURRENT ? current_displacement(call.f, &disp) : MPI_ERR_ARG;
    if (rc == 0)
        rc = MPY_REAL(File_set_view)(mpy_real_file(call.f), disp, mpy_real_datatype(etype), mpy_real_datatype(filetype),
                                     datarep, mpy_real_info(info));
    if (rc == 0) record_view(call.f, disp, etype, filetype, datarep, info);
    mpy_file_leave(call, rc);
    return MPY_LIKELY(rc == 0) ? 0 : mpy_file_error(call.f, rc, "MPI_File_set_view");
}

int PMPI_File_get_view(MPI_File fh, MPI_Offset *disp, MPI_Datatype *etype, MPI_Datatype *filetype, char *datarep) {
    const mpy_file_t *f = mpy_file(fh);
    if (f == NULL) return mpy_file_error(f, MPI_ERR_FILE, "MPI_File_get_view");
    mpy_thread_t *t = mpy_self();
    mpy_cross_in(t);
    int rc = duplicate(&f->etype, etype);
    if (rc == 0) rc = duplicate(&f->filetype, filetype);
    mpy_cross_out(t);
    *disp = f->disp;
    mpy_text_format(datarep, MPI_MAX_DATAREP_STRING, "%s", f->external32 ? "external32" : "native");
    return MPY_LIKELY(rc == 0) ? 0 : mpy_file_error(f, rc, "MPI_File_get_view");
}

/* ---- hints, atomicity, mode ---- */

int PMPI_File_set_info(MPI_File fh, MPI_Info info) {
    mpy_file_call_t call = mpy_file_enter(fh);
    int rc = MPY_REAL(File_set_info)(mpy_real_file(call.f), mpy_real_info(info));
    if (rc == 0) mpy_info_merge(&call.f->info, info);
    mpy_file_leave(call, rc);
    return MPY_LIKELY(rc == 0) ? 0 : mpy_file_error(call.f, rc, "MPI_File_set_info");
}

int PMPI_File_set_atomicity(MPI_File fh, int flag) {
    mpy_file_call_t call = mpy_file_enter(fh);
    int rc = MPY_REAL(File_set_atomicity)(mpy_real_file(call.f), flag);
    if (rc == 0) call.f->atomic = flag != 0;
    mpy_file_leave(call, rc);
    return MPY_LIKELY(rc == 0) ? 0 : mpy_file_error(call.f, rc, "MPI_File_set_atomicity");
}

int PMPI_File_get_amode(MPI_File fh, int *amode) {
    const mpy_file_t *f = mpy_file(fh);
    if (f == NULL) return mpy_file_error(NULL, MPI_ERR_FILE, "MPI_File_get_amode");
    *amode = f->amode;
    return MPI_SUCCESS;
}

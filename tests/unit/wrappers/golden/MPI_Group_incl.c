int PMPI_Group_incl(MPI_Group group, int n, const int ranks[], MPI_Group *newgroup) {
    mpy_thread_t *t = mpy_self();
    int real_newgroup;
    mpy_cross_in(t);
    int rc = MPY_REAL(Group_incl)(mpy_real_group(group), n, ranks, newgroup != NULL ? &real_newgroup : NULL);
    if (rc == 0) *newgroup = mpy_group_adopt(real_newgroup, mpy_group_session(group));
    mpy_or_null(rc, newgroup, MPI_GROUP_NULL);
    mpy_cross_out(t);
    return MPY_LIKELY(rc == 0) ? 0 : mpy_error(NULL, rc, "MPI_Group_incl");
}

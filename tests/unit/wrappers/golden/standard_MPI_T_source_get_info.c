int front_T_source_get_info(int source_index, char *name, int *name_len, char *desc, int *desc_len, void *ordering, MPI_Count *ticks_per_second, MPI_Count *max_ticks, front_handle_t *info) {
    int info_core = 0;
    int rc = MPY_CORE(T_source_get_info)(source_index, name, name_len, desc, desc_len, (int *)ordering, ticks_per_second, max_ticks, info != NULL ? &info_core : NULL);
    if (rc == MPI_SUCCESS && (int *)ordering != NULL) *(int *)ordering = front_t_order(*(int *)ordering);
    if (LIKELY(info_core != 0)) *info = front_handle(FRONT_INFO, info_core);
    return front_error(rc);
}

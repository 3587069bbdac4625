/* An attribute of communicators for programs in the frame of checkpointed.h. Its value is a pointer: a copy points one
 * byte further. Copies and deletions are counted. */
#ifndef COUNTED_ATTRIBUTE_H
#define COUNTED_ATTRIBUTE_H

static int keyval, copies, deletions;

static int on_copy(MPI_Comm comm, int key, void *extra, void *in, void *out, int *flag) {
    (void)comm, (void)key;
    CHECK(extra == &copies);
    copies++;
    *(char **)out = (char *)in + 1;
    *flag = 1;
    return MPI_SUCCESS;
}

static int on_delete(MPI_Comm comm, int key, void *value, void *extra) {
    (void)comm, (void)key, (void)value, (void)extra;
    deletions++;
    return MPI_SUCCESS;
}

static void counted_attribute_create(void) { MPI_Comm_create_keyval(on_copy, on_delete, &keyval, &copies); }

#endif

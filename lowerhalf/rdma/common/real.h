/* real.h - the real libibverbs. The program loads it (linked or by dlopen). We only look up its functions, at the first
 * verb. Verbs that are inline in verbs.h (ibv_post_send ...) go through the tables of the context and need no entry
 * here. */
#ifndef MANAPY_RDMA_REAL_H
#define MANAPY_RDMA_REAL_H

#include <infiniband/verbs.h>

/* in verbs.h these are macros over functions of the same name */
#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

/* Verbs that we interpose (verbs/), by name without "ibv_". */
#define SHIFT_INTERPOSED(X)                                                                                            \
    X(open_device)                                                                                                     \
    X(close_device) X(alloc_pd) X(dealloc_pd) X(reg_mr) X(reg_mr_iova) X(reg_mr_iova2) X(reg_dmabuf_mr) X(rereg_mr)    \
        X(dereg_mr) X(create_cq) X(resize_cq) X(destroy_cq) X(get_cq_event) X(create_srq) X(modify_srq) X(destroy_srq) \
            X(create_qp) X(modify_qp) X(query_qp) X(destroy_qp) X(get_async_event)

/* Verbs that we only call. */
#define SHIFT_CALLED(X)                                                                                                \
    X(get_device_list)                                                                                                 \
    X(free_device_list) X(create_comp_channel) X(destroy_comp_channel) X(ack_cq_events) X(ack_async_event)             \
        X(query_gid) X(query_device) X(query_srq) X(qp_to_qp_ex)

typedef struct shift_real {
#define X(name) __typeof__(ibv_##name) *name;
    SHIFT_INTERPOSED(X)
    SHIFT_CALLED(X)
#undef X
    __typeof__(_ibv_query_gid_ex) *query_gid_ex;
} shift_real_t;

/* Looks the functions up once. Aborts, with a message, if a verb is called and no libibverbs is loaded: the program
 * can't have called it then. */
const shift_real_t *shift_real(void);

/* libc's own dlsym and dlvsym, which preload.S replaces. NULL until shift_find_libc. For preload.c and preload.S. */
extern __attribute__((visibility("hidden"))) void *(*shift_next_dlsym)(void *, const char *);
extern __attribute__((visibility("hidden"))) void *(*shift_next_dlvsym)(void *, const char *, const char *);
__attribute__((visibility("hidden"))) void shift_find_libc(void);

/* libc's own dlsym. */
void *shift_libc_dlsym(void *handle, const char *name);

/* Like ibv_query_port of verbs.h, which needs libibverbs at link time. Returns 0 or an errno. */
int shift_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr);

#endif

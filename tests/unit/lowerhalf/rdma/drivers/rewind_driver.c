/* rewind_driver.c - plays a process that asks a backend of rewind.h which requests are outstanding on a queue pair
 * whose queues are files.
 *
 *   rewind_driver rxe  SENDS RECVS SEND_WR RECV_WR SEND_SGE RECV_SGE INLINE OBJECT...
 *   rewind_driver mlx5 SENDS RECVS SEND_WR RECV_WR SEND_SGE RECV_SGE INLINE QPN SEND_BLOCKS SENDS_POSTED RECV_STRIDE
 *                 RECV_SLOTS RECVS_POSTED
 *
 * RECVS is - for a queue pair with a shared receive queue. An OBJECT is a provider's queue pair object after its
 * ibv_qp, one character per word: s and r point to the rings, x points into one, u points nowhere, . is NULL. All
 * objects are attached in turn, and the last one is asked. Prints the result of each attach ("none": no backend serves
 * the device). Then it prints, for each command from standard input, the result, followed by the journal (show_work.h):
 *
 *   journal DEPTH SGE INLINE | sends N WR_ID... | recvs N WR_ID... | psn N (the result is followed by the number) |
 *   failed | fenced
 */
#include "fake_mlx5.h"
#include "requests/rewind.h"
#include "show_work.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { IDS = 65536 };

static struct ibv_device device = {.ibdev_path = "/nonexistent"};
static struct ibv_context context = {.device = &device};
static struct ibv_srq srq;
static struct ibv_qp_init_attr made = {.qp_type = IBV_QPT_RC};
static uint32_t depth, max_sge, max_inline;

static void *map(const char *path) {
    struct stat st;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st))
        exit(2);
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return p;
}

static struct ibv_qp *object(const char *words, char *sends, char *recvs) {
    size_t n = strlen(words);
    struct ibv_qp *qp = calloc(1, sizeof *qp + n * sizeof(void *));
    void **tail = (void **)(qp + 1);
    for (size_t i = 0; i < n; i++)
        tail[i] = words[i] == 's'   ? sends
                  : words[i] == 'r' ? recvs
                  : words[i] == 'x' ? sends + 4096
                  : words[i] == 'u' ? (void *)4096
                                    : NULL;
    qp->context = &context;
    qp->qp_type = IBV_QPT_RC;
    return qp;
}

static uint64_t number(void) {
    uint64_t value;
    if (scanf("%" SCNu64, &value) != 1)
        exit(2);
    return value;
}

static void ask(const shift_rewind_t *backend, void *state, bool for_sends) {
    static uint64_t ids[IDS];
    uint32_t n = (uint32_t)number();
    for (uint32_t i = 0; i < n; i++)
        ids[i] = number();
    shift_journal_t journal;
    if (for_sends ? shift_journal_sends(&journal, depth, max_sge, max_inline)
                  : shift_journal_recvs(&journal, depth, max_sge))
        exit(2);
    printf("%d\n", (for_sends ? backend->sends : backend->recvs)(state, ids, n, &journal));
    show_journal(&journal, for_sends);
    shift_journal_free(&journal);
}

static void answer(const shift_rewind_t *backend, void *state) {
    char command[16];
    while (scanf("%15s", command) == 1) {
        if (!strcmp(command, "journal")) {
            depth = (uint32_t)number(), max_sge = (uint32_t)number(), max_inline = (uint32_t)number();
        } else if (!strcmp(command, "psn")) {
            uint32_t psn = 0, n = (uint32_t)number();
            int rc = backend->first_psn ? backend->first_psn(state, n, &psn) : -ENOTSUP;
            printf("%d %u\n", rc, psn);
        } else if (!strcmp(command, "failed")) {
            printf("%u\n", backend->failed(state));
        } else if (!strcmp(command, "fenced")) {
            backend->fenced(state);
            printf("0\n");
        } else {
            ask(backend, state, !strcmp(command, "sends"));
        }
    }
}

static int rxe(char **objects, char *sends, char *recvs) {
    void *state = NULL;
    int rc = -1;
    for (; *objects; objects++) {
        struct ibv_qp *qp = object(*objects, sends, recvs);
        if (state)
            shift_rewind_rxe.detach(state);
        state = NULL;
        rc = shift_rewind_rxe.attach(qp, &made, &state);
        printf("%d\n", rc);
        free(qp);
    }
    if (!rc) {
        answer(&shift_rewind_rxe, state);
        shift_rewind_rxe.detach(state);
    }
    return 0;
}

static int mlx5(char **argv, char *sends, char *recvs) {
    __be32 doorbell[2] = {htobe32((uint32_t)atoi(argv[5])), htobe32((uint32_t)atoi(argv[2]))};
    fake_mlx5 = (struct mlx5dv_qp){.dbrec = doorbell,
                                   .sq = {sends, (uint32_t)atoi(argv[1]), 64},
                                   .rq = {recvs, (uint32_t)atoi(argv[4]), (uint32_t)atoi(argv[3])}};
    struct ibv_qp *qp = object("", sends, recvs);
    qp->qp_num = (uint32_t)strtoul(argv[0], NULL, 0);
    void *state;
    const shift_rewind_t *backend = shift_rewind_for(qp, &made, &state);
    printf("%s\n", backend ? "0" : "none");
    free(qp);
    if (backend) {
        answer(backend, state);
        backend->detach(state);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 9)
        return 2;
    char *send_queue = map(argv[2]), *recv_queue = strcmp(argv[3], "-") ? map(argv[3]) : NULL;
    made.srq = recv_queue ? NULL : &srq;
    made.cap = (struct ibv_qp_cap){(uint32_t)atoi(argv[4]), (uint32_t)atoi(argv[5]), (uint32_t)atoi(argv[6]),
                                   (uint32_t)atoi(argv[7]), (uint32_t)atoi(argv[8])};
    depth = made.cap.max_send_wr > made.cap.max_recv_wr ? made.cap.max_send_wr : made.cap.max_recv_wr;
    max_sge = made.cap.max_send_sge > made.cap.max_recv_sge ? made.cap.max_send_sge : made.cap.max_recv_sge;
    max_inline = made.cap.max_inline_data;
    return strcmp(argv[1], "rxe") ? mlx5(argv + 9, send_queue, recv_queue) : rxe(argv + 9, send_queue, recv_queue);
}

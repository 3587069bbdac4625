/* work_driver.c - plays the owner of a journal. It reads commands, one per line, and answers each with a line:
 *
 *   sends DEPTH SGE INLINE, or
 *   recvs DEPTH SGE              make the journal; the answer is its capacity
 *   send WR_ID OPCODE FLAGS EXTRA ADDR RKEY ADD SWAP N (ADDR LENGTH KEY)*, or
 *   recv WR_ID N (ADDR LENGTH KEY)*
 *                                put an entry; the answer is its sequence number, or -
 *   drop N                       the answer is the number of the oldest entry
 *   show                         the answer is every entry (show_work.h)
 *
 * An element of an inline send holds LENGTH bytes of the value ADDR % 256. All arguments are overwritten before the
 * answer.
 */
#include "show_work.h"

#include <errno.h>
#include <string.h>

enum { ELEMENTS = 64, BYTES = 4096 };

static shift_journal_t journal;
static bool sends;
static struct ibv_sge list[ELEMENTS];
static unsigned char data[BYTES];

static uint64_t number(void) {
    uint64_t value;
    if (scanf("%" SCNu64, &value) != 1)
        exit(2);
    return value;
}

static int scatter(bool bytes) {
    int n = (int)number();
    unsigned char *to = data;
    for (int i = 0; i < n; i++) {
        list[i].addr = number(), list[i].length = (uint32_t)number(), list[i].lkey = (uint32_t)number();
        if (bytes) {
            memset(to, (int)(list[i].addr % 256), list[i].length);
            list[i].addr = (uintptr_t)to;
            to += list[i].length;
        }
    }
    return n;
}

static void answer(const shift_journal_t *j, uint64_t before, const void *entry) {
    memset(list, 0xee, sizeof list);
    memset(data, 0xee, sizeof data);
    if (entry && entry != shift_journal_at(j, before))
        exit(1);
    if (entry)
        printf("%" PRIu64 "\n", before);
    else
        printf("-\n");
}

static void append_send(void) {
    struct ibv_send_wr another, wr = {.next = &another, .sg_list = list};
    wr.wr_id = number();
    wr.opcode = (enum ibv_wr_opcode)number();
    wr.send_flags = (unsigned)number();
    wr.invalidate_rkey = (uint32_t)number();
    uint64_t address = number(), key = number(), add = number(), swap = number();
    if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = address, wr.wr.atomic.rkey = (uint32_t)key;
        wr.wr.atomic.compare_add = add, wr.wr.atomic.swap = swap;
    } else {
        wr.wr.rdma.remote_addr = address, wr.wr.rdma.rkey = (uint32_t)key;
    }
    wr.num_sge = scatter(wr.send_flags & IBV_SEND_INLINE);
    uint64_t before = journal.next;
    answer(&journal, before, shift_journal_send(&journal, &wr));
}

static void append_recv(void) {
    struct ibv_recv_wr another, wr = {.next = &another, .sg_list = list};
    wr.wr_id = number();
    wr.num_sge = scatter(false);
    uint64_t before = journal.next;
    answer(&journal, before, shift_journal_recv(&journal, &wr));
}

static void make(const char *command) {
    sends = !strcmp(command, "sends");
    uint32_t depth = (uint32_t)number(), sge = (uint32_t)number();
    int rc = sends ? shift_journal_sends(&journal, depth, sge, (uint32_t)number())
                   : shift_journal_recvs(&journal, depth, sge);
    printf("%" PRIu64 "\n", rc ? 0 : (uint64_t)journal.mask + 1);
}

int main(void) {
    char command[16];
    while (scanf("%15s", command) == 1) {
        if (!strcmp(command, "sends") || !strcmp(command, "recvs")) {
            make(command);
        } else if (!strcmp(command, "send")) {
            append_send();
        } else if (!strcmp(command, "recv")) {
            append_recv();
        } else if (!strcmp(command, "drop")) {
            shift_journal_drop(&journal, number());
            printf("%" PRIu64 "\n", journal.first);
        } else {
            show_journal(&journal, sends);
        }
    }
    shift_journal_free(&journal);
    shift_journal_free(&journal); /* a second time is harmless */
    return 0;
}

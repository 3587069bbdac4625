/* show_work.h - prints journals as JSON, one line per entry, oldest first; the tests of lowerhalf/rdma compare them. */
#ifndef SHOW_WORK_H
#define SHOW_WORK_H

#include "requests/work.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Elements as [address, length, key]; inline data as a string of hexadecimal digits. Ends the test if the list isn't
 * the entry's own. */
static void show_scatter(const shift_journal_t *j, const char *entry, const struct ibv_sge *list, int n, bool bytes) {
    const char *end = entry + j->stride;
    if ((const char *)list < entry + j->head_size || (const char *)(list + n) > end) {
        fprintf(stderr, "a scatter list outside of its entry\n");
        exit(1);
    }
    printf("\"sge\": [");
    for (int i = 0; i < n && !bytes; i++)
        printf("%s[%" PRIu64 ", %u, %u]", i ? ", " : "", (uint64_t)list[i].addr, list[i].length, list[i].lkey);
    printf("], \"inline\": \"");
    if (bytes) {
        const unsigned char *data = (const unsigned char *)(uintptr_t)list->addr;
        if (n != 1 || (const char *)data < (const char *)(list + 1) || (const char *)data + list->length > end) {
            fprintf(stderr, "inline data outside of its entry\n");
            exit(1);
        }
        for (uint32_t i = 0; i < list->length; i++)
            printf("%02x", data[i]);
    }
    printf("\"");
}

static void show_send(const shift_journal_t *j, const shift_send_t *e) {
    bool atomic = e->wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || e->wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    printf("{\"wr_id\": %" PRIu64 ", \"opcode\": %d, \"flags\": %u, \"extra\": %u, \"length\": %" PRIu64
           ", \"first_psn\": %u, \"packets\": %u, ",
           e->wr.wr_id, e->wr.opcode, e->wr.send_flags, e->wr.invalidate_rkey, e->length, e->first_psn, e->packets);
    printf("\"remote\": [%" PRIu64 ", %u], \"operands\": [%" PRIu64 ", %" PRIu64 "], ", e->wr.wr.rdma.remote_addr,
           atomic ? e->wr.wr.atomic.rkey : e->wr.wr.rdma.rkey, atomic ? e->wr.wr.atomic.compare_add : 0,
           atomic ? e->wr.wr.atomic.swap : 0);
    show_scatter(j, (const char *)e, e->wr.sg_list, e->wr.num_sge, e->wr.send_flags & IBV_SEND_INLINE);
    printf(", \"next\": %s}\n", e->wr.next ? "true" : "false");
}

static void show_recv(const shift_journal_t *j, const shift_recv_t *e) {
    printf("{\"wr_id\": %" PRIu64 ", \"length\": %" PRIu64 ", ", e->wr.wr_id, e->length);
    show_scatter(j, (const char *)e, e->wr.sg_list, e->wr.num_sge, false);
    printf(", \"next\": %s}\n", e->wr.next ? "true" : "false");
}

static void show_journal(const shift_journal_t *j, bool sends) {
    for (uint64_t i = j->first; i != j->next; i++)
        if (sends)
            show_send(j, shift_journal_at(j, i));
        else
            show_recv(j, shift_journal_at(j, i));
}

#endif

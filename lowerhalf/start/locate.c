/* locate.c - where the image of this rank is, if the checkpoint may be on local storage of the hosts.
 *
 * Half: lower; libc; still one thread.
 *
 * Invariants
 *  1. Only the coordinator decides which checkpoint is continued and which image is read: it knows where all ranks are
 *     (manapy/ckpt/coordinator/levels/fetch.py). So all ranks continue the same one.
 *  2. The image is checked as any other one is (continue.c).
 */
#include "lower.h"
#include <errno.h>
#include <limits.h>
#include <manapy/image_path.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/io/host.h"
#include "base/reason.h"
#include "join/manager/pmi.h"
#include "wire/wire.h"

enum { TRIES = 100, PAUSE_MS = 50, CONNECT_MS = 5000, ANSWER_MS = 60000 };

static char located[PATH_MAX];

const char *mpy_image_located(void) { return located[0] ? located : NULL; }

static bool ask(mpy_wire_t *w, const mpy_job_t *job) {
    char host[MPY_HOST_NAME];
    mpy_text_t line = {0};
    mpy_hostname(host, sizeof host);
    mpy_text_add(&line, "FETCH %d ", job->rank);
    mpy_text_add_encoded(&line, host);
    mpy_text_add(&line, "\n");
    bool sent = mpy_wire_send(w, line.data, line.length);
    mpy_text_free(&line);
    return sent;
}

/* The coordinator may be busy with the connections of many ranks. */
static bool reach(mpy_wire_t *w, const mpy_job_t *job, char *error, size_t n) {
    for (int tries = 0; tries < TRIES; tries++) {
        mpy_wire_open(w, mpy_wire_connect(job->host, job->port, CONNECT_MS));
        if (!w->closed && mpy_wire_authenticate(w, "command", job->secret, ANSWER_MS, error, n)) return ask(w, job);
        if (w->closed) mpy_reason(error, n, "the coordinator at %s port %d does not answer", job->host, job->port);
        mpy_wire_close(w);
        usleep(PAUSE_MS * 1000);
    }
    return false;
}

static bool take_answer(char *line, char checkpoint[PATH_MAX], const char *command, char *error, size_t n) {
    char *kind = mpy_field(&line), *first = mpy_field(&line), *second = mpy_field(&line), *remark = mpy_field(&line);
    if (kind == NULL || second == NULL || !mpy_wire_decode(second))
        return mpy_refuse(error, n, "the coordinator gave an unknown answer");
    if (strcmp(kind, "RESULT") == 0) return mpy_refuse(error, n, "%s", second);
    if (!mpy_wire_decode(first) || strlen(first) >= PATH_MAX || strlen(second) >= sizeof located)
        return mpy_refuse(error, n, "the coordinator gave an unknown answer");
    strcpy(checkpoint, first);
    strcpy(located, second);
    if (remark != NULL && mpy_wire_decode(remark)) dprintf(2, "%s: %s\n", command, remark);
    return true;
}

const char *mpy_locate(const mpy_job_t *job, const char *checkpoint) {
    static char found[PATH_MAX];
    char error[2048] = "";
    mpy_wire_t wire;
    if (!mpy_has_local_images(checkpoint)) return checkpoint;
    bool ok = reach(&wire, job, error, sizeof error);
    if (ok) {
        char *line = NULL;
        while (!wire.closed && line == NULL) line = mpy_wire_wait_line(&wire, ANSWER_MS); /* for the slowest rank */
        ok = line != NULL && take_answer(line, found, mpy_options.command, error, sizeof error);
        if (line == NULL) snprintf(error, sizeof error, "the coordinator has ended (see %s/coordinator.log)", job->dir);
        mpy_wire_close(&wire);
    }
    if (ok) return found;
    if (job->rank == 0) mpy_fail(1, "%s", error);
    mpy_pmi_let_rank0_speak(job->manager, job->rank);
    _exit(1);
}

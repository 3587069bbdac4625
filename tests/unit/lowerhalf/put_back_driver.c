/* put_back_driver.c - what waits in a pseudo-terminal or a pipe is still there after it could not be saved, because
 * memory has run out. realloc and tee are wrapped: the former fails from one call on, the latter always. Prints how
 * often saving failed and succeeded. */
#include "check.h"
#include "process/fds/fds.h"
#include "process/fds/fds_table.h"

#include <errno.h>
#include <fcntl.h>
#include <pty.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

enum { TRIES = 24, WAITING = 3000 };

static int calls_left = -1; /* -1: no end */

void *__real_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n) {
    if (calls_left == 0)
        return NULL;
    if (calls_left > 0)
        calls_left--;
    return __real_realloc(p, n);
}

ssize_t __wrap_tee(int from, int to, size_t n, unsigned flags) {
    (void)from, (void)to, (void)n, (void)flags;
    errno = EPERM;
    return -1;
}

static int same(int id) {
    return id;
}

static void fill(char *text, char first) {
    for (int i = 0; i < WAITING; i++)
        text[i] = (char)(first + i % 26);
}

static void expect(int fd, const char *text, const char *what, int tries) {
    char got[WAITING + 1];
    ssize_t n = 0, all = 0;
    while (all < WAITING && (n = read(fd, got + all, sizeof got - (size_t)all)) > 0)
        all += n;
    if (all != WAITING || memcmp(got, text, WAITING))
        printf("FAILED %s: %zd bytes are left after %d calls\n", what, all, tries);
}

static int save_terminal(int calls) {
    char in[WAITING], out[WAITING], error[256] = "";
    int master, slave, waiting = 0;
    struct termios raw;
    mpy_blob_t b;
    CHECK(openpty(&master, &slave, NULL, NULL, NULL) == 0);
    CHECK(tcgetattr(slave, &raw) == 0);
    cfmakeraw(&raw);
    CHECK(tcsetattr(slave, TCSANOW, &raw) == 0);
    fill(in, 'a'), fill(out, 'A');
    CHECK(write(master, in, WAITING) == WAITING && write(slave, out, WAITING) == WAITING);
    while (waiting < WAITING) ioctl(slave, FIONREAD, &waiting);
    mpy_blob_init(&b);
    CHECK(mpy_blob_reserve(&b, 1 << 16) == 0);
    calls_left = calls;
    int bad = mpy_tty_save(master, &b, error, sizeof error);
    calls_left = -1;
    CHECK(!bad == !error[0]);
    fcntl(slave, F_SETFL, O_NONBLOCK), fcntl(master, F_SETFL, O_NONBLOCK);
    usleep(1000);
    expect(slave, in, "input", calls), expect(master, out, "output", calls);
    mpy_blob_free(&b);
    close(slave), close(master);
    return bad != 0;
}

static int save_pipe(int calls) {
    char text[WAITING], error[256] = "";
    int ends[2];
    mpy_blob_t b;
    CHECK(pipe(ends) == 0);
    fill(text, 'a');
    CHECK(write(ends[1], text, WAITING) == WAITING);
    mpy_blob_init(&b);
    calls_left = calls;
    int bad = mpy_fds_save(&b, same, error, sizeof error) || b.failed;
    calls_left = -1;
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    expect(ends[0], text, "pipe", calls);
    mpy_blob_free(&b);
    close(ends[0]), close(ends[1]);
    return bad;
}

int main(void) {
    int failed[2] = {0};
    mpy_fds_note_inherited();
    for (int calls = 0; calls < TRIES; calls++)
        failed[0] += save_terminal(calls), failed[1] += save_pipe(calls);
    for (int i = 0; i < 2; i++)
        printf("%s\n", failed[i] > 0 && failed[i] < TRIES ? "both" : failed[i] ? "never saved" : "never failed");
    return 0;
}

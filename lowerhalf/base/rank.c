/* rank.c - see rank.h.
 *
 * Half: lower; libc may be called, except in mpy_lower_secret and mpy_lower_attempt.
 */
#include "rank.h"
#include <limits.h>
#include <manapy/fnv.h>
#include <manapy/proc_exe.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

mpy_options_t mpy_options = {.command = "manapy-launch", .trace = true};
void (*mpy_rank_on_failure)(int code);

static uint8_t secret[MPY_SECRET_BYTES];
static uint64_t job_hash, host_hash, job_port;

static void print(const char *format, va_list args) {
    char line[2048];
    vsnprintf(line, sizeof line, format, args);
    dprintf(2, "%s: %s\n", mpy_options.command, line);
}

void mpy_say(const char *format, ...) {
    va_list args;
    va_start(args, format);
    print(format, args);
    va_end(args);
}

void mpy_fail(int code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    print(format, args);
    va_end(args);
    if (mpy_rank_on_failure) mpy_rank_on_failure(code);
    exit(code);
}

void mpy_rank_found(const uint8_t of_job[MPY_SECRET_BYTES], const char *host, int port) {
    memcpy(secret, of_job, sizeof secret);
    job_hash = mpy_fnv1a(secret, sizeof secret);
    host_hash = mpy_fnv1a(host, strlen(host));
    job_port = (uint64_t)port;
}

const uint8_t *mpy_lower_secret(void) { return secret; }

/* Each run has a coordinator of its own, at another port. */
uint64_t mpy_lower_attempt(void) {
    return mpy_fnv1a_words(job_hash, host_hash, job_port << 32 | MPY_LOWER->generation);
}

const char *mpy_self_path(void) {
    static char path[PATH_MAX];
    if (!path[0] && !mpy_proc_exe(0, path))
        mpy_fail(1, "cannot read /proc/self/exe: is /proc mounted?");
    return path;
}

const char *mpy_upper_dir(void) {
    static char dir[PATH_MAX];
    if (!dir[0]) {
        snprintf(dir, sizeof dir, "%s", mpy_self_path());
        *strrchr(dir, '/') = 0; /* <prefix>/bin */
        char *slash = strrchr(dir, '/');
        snprintf(slash, sizeof dir - (size_t)(slash - dir), "/lib/manapy/upper");
    }
    return dir;
}

/* cuda.c - what the program has on NVIDIA's GPUs is saved with it.
 *
 * Upper half, upper TLS; saved with the program; a part of libdmtcp.so. callbacks.c calls it on the main thread, at a
 * safe point, as the last callback before a checkpoint and the first one after it. The driver's own library brings what
 * is on the GPUs into the program's memory, closes its devices, and later brings everything back: CUDA Driver API,
 * "CUDA Checkpointing" (cuCheckpointProcess*), which drivers have since version 570.
 *
 * Invariants
 *  1. The driver's library is never loaded here: without it the program has nothing on a GPU. Whatever else keeps a
 *     device open is found, and named, when manapy looks for what cannot be saved.
 *  2. From mpy_cuda_leave to mpy_cuda_return all calls of CUDA wait, in all threads. So nothing here may need a lock
 *     that a thread in a call of CUDA can have (the loader's), and a program whose GPU cannot come back is ended.
 *  3. The end is announced immediately, but comes later if the GPU may come back: another process may have its memory
 *     for a moment; and the image may still be written beside the program, which would end with it.
 */
#define _GNU_SOURCE
#include "cuda.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <manapy/boundary.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef MPY_GPUS
#define MPY_GPUS "/proc/driver/nvidia/gpus" /* a folder for each GPU of the host, by its address on the bus */
#endif

#ifndef MPY_GPU
#define MPY_GPU "/dev/nvidia%d"
#endif

enum { MOST = 64 }; /* GPUs of a host */
enum { OUT_OF_MEMORY = 2, AGAIN_MS = 500, TRIES = 120 };

typedef struct { uint8_t bytes[16]; } uuid_t; /* CUuuid */
typedef struct { uuid_t from, to; } pair_t;   /* CUcheckpointGpuPair */
typedef struct { uint32_t timeout_ms, reserved[15]; } lock_t; /* CUcheckpointLockArgs */
typedef struct {                              /* CUcheckpointRestoreArgs */
    pair_t *pairs;
    uint32_t count;
    char reserved[64 - sizeof(pair_t *) - sizeof(uint32_t)];
} restore_t;

typedef struct {
    int (*get_error_string)(int, const char **);
    int (*get_count)(int *);
    int (*get)(int *, int);
    int (*get_uuid)(uuid_t *, int);
    int (*lock)(int, lock_t *), (*checkpoint)(int, void *), (*restore)(int, restore_t *), (*unlock)(int, void *);
} driver_t;

typedef struct { int count; uuid_t uuids[MOST]; } gpus_t;

static driver_t driver;            /* found before calls wait */
static gpus_t of_host, of_program; /* at the checkpoint */

/* Returns whether the program has loaded the driver's library. Functions that it lacks are NULL. */
static bool find(driver_t *d) {
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL) return false;
    const struct { void *pointer; const char *name; } functions[] = {
        {&d->get_error_string, "cuGetErrorString"}, {&d->get_count, "cuDeviceGetCount"},
        {&d->get, "cuDeviceGet"}, {&d->get_uuid, "cuDeviceGetUuid"},
        {&d->lock, "cuCheckpointProcessLock"}, {&d->checkpoint, "cuCheckpointProcessCheckpoint"},
        {&d->restore, "cuCheckpointProcessRestore"}, {&d->unlock, "cuCheckpointProcessUnlock"},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        *(void **)functions[i].pointer = dlsym(library, functions[i].name);
    dlclose(library); /* the program has it */
    return true;
}

static void explain(const driver_t *d, int result, char *text, size_t n) {
    const char *meaning = NULL;
    if (d->get_error_string != NULL) d->get_error_string(result, &meaning);
    snprintf(text, n, "failed: %s (CUDA error %d)", meaning != NULL ? meaning : "unknown", result);
}

/* ---- which GPUs ---- */

static bool read_uuid(const char *text, uuid_t *uuid) {
    int digits = 0;
    for (; digits < 32 && *text != '\0'; text++) {
        char digit[2] = {*text, '\0'}, *end;
        uint8_t value = (uint8_t)strtoul(digit, &end, 16), *byte = &uuid->bytes[digits / 2];
        if (*text == '-') continue;
        if (*end != '\0') return false;
        *byte = (uint8_t)(digits++ % 2 ? *byte | value : value << 4);
    }
    return digits == 32;
}

/* May the program use it? A batch system allows it those of its allocation. */
static bool is_allowed(int minor) {
    char path[512];
    snprintf(path, sizeof path, MPY_GPU, minor);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

/* The GPUs of this host that the program may use, in the order of their addresses. None if they cannot be told. */
static void read_host(gpus_t *gpus) {
    struct dirent **folders;
    gpus->count = 0;
    int n = scandir(MPY_GPUS, &folders, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char path[512], line[256], *text;
        int minor = -1, has_uuid = 0;
        snprintf(path, sizeof path, "%s/%s/information", MPY_GPUS, folders[i]->d_name);
        FILE *file = fopen(path, "re");
        while (file != NULL && gpus->count < MOST && fgets(line, sizeof line, file) != NULL)
            if (!strncmp(line, "GPU UUID:", 9) && (text = strstr(line, "GPU-")) != NULL)
                has_uuid = read_uuid(text + 4, &gpus->uuids[gpus->count]);
            else
                sscanf(line, "Device Minor: %d", &minor);
        if (file != NULL) fclose(file);
        gpus->count += has_uuid && is_allowed(minor);
        free(folders[i]);
    }
    if (n >= 0) free(folders);
}

/* Returns -1 if the program has not initialized CUDA. */
static int read_program(const driver_t *d, gpus_t *gpus) {
    int count, device;
    gpus->count = 0;
    if (d->get_count == NULL || d->get == NULL || d->get_uuid == NULL || d->get_count(&count) != 0) return -1;
    for (int i = 0; i < count && i < MOST; i++)
        if (d->get(&device, i) == 0 && d->get_uuid(&gpus->uuids[gpus->count], device) == 0) gpus->count++;
    return 0;
}

static int position(const gpus_t *gpus, const uuid_t *uuid) {
    for (int i = 0; i < gpus->count; i++)
        if (!memcmp(&gpus->uuids[i], uuid, sizeof *uuid)) return i;
    return -1;
}

/* Elsewhere the program's GPUs are those that have the places of the old ones, among those that it may use. Returns the
 * number of pairs. */
static int pair_up(const gpus_t *now, pair_t pairs[MOST]) {
    int moved = 0, n = 0;
    for (int i = 0; i < of_program.count; i++) {
        const uuid_t *old = &of_program.uuids[i];
        int place = position(&of_host, old);
        if (position(now, old) < 0) moved = 1;
        if (place >= 0 && place < now->count) pairs[n++] = (pair_t){*old, now->uuids[place]};
    }
    return moved ? n : 0;
}

/* ---- the steps ---- */

enum { LINE = 320 };

static const char *sentence(char line[LINE], const char *what, int result, const char *end) {
    char why[160];
    explain(&driver, result, why, sizeof why);
    snprintf(line, LINE, "%s: it %s%s", what, why, end);
    return line;
}

static void end(const char *what, int result) {
    char line[LINE];
    MPY_LOWER->svc->die(sentence(line, what, result, ""), 1);
}

static int unlock_and_fail(void) {
    int result = driver.unlock(getpid(), NULL);
    if (result != 0) end("CUDA does not go on after a checkpoint that has failed", result);
    return -1;
}

int mpy_cuda_leave(char *text, size_t n) {
    mpy_callbacks_t *callbacks = &MPY_UPPER->callbacks;
    lock_t limit = {.timeout_ms = callbacks->limit_ms};
    driver_t *d = &driver;
    if (!find(d) || read_program(d, &of_program) < 0) return 0;
    if (d->lock == NULL || d->checkpoint == NULL || d->restore == NULL || d->unlock == NULL) {
        snprintf(text, n, "is not possible: the NVIDIA driver is too old; version 570 and later can save what is on a "
                          "GPU");
        return -1;
    }
    read_host(&of_host);
    int result = d->lock(getpid(), &limit);
    if (result != 0) return explain(d, result, text, n), -1;
    if (callbacks->end != MPY_CALL_OPEN) { /* the checkpoint was given up meanwhile */
        snprintf(text, n, "came too late");
        return unlock_and_fail();
    }
    callbacks->gpu = 1;
    result = d->checkpoint(getpid(), NULL);
    if (result == 0) return 0;
    callbacks->gpu = 0;
    explain(d, result, text, n);
    return unlock_and_fail();
}

static const char not_back[] = "what was on the GPU cannot be brought back";

void mpy_cuda_return(int restarted) {
    mpy_callbacks_t *callbacks = &MPY_UPPER->callbacks;
    gpus_t now;
    pair_t pairs[MOST];
    int result, tries = 0;
    if (!callbacks->gpu) return;
    read_host(&now);
    restore_t to = {.pairs = pairs, .count = (uint32_t)pair_up(&now, pairs)};
    while ((result = driver.restore(getpid(), to.count > 0 ? &to : NULL)) != 0 && tries < TRIES &&
           (result == OUT_OF_MEMORY || !restarted)) {
        char line[LINE];
        if (tries++ == 0) MPY_LOWER->svc->say(sentence(line, not_back, result, "; trying again for a minute"));
        usleep(1000 * AGAIN_MS);
    }
    if (result == 0) result = driver.unlock(getpid(), NULL);
    if (result != 0) end(not_back, result);
    callbacks->gpu = 0;
}

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
 *  2. From mpy_cuda_leave to mpy_cuda_return all calls of CUDA wait, in all threads. So a program whose GPU cannot come
 *     back is ended, with one line.
 */
#define _GNU_SOURCE
#include "cuda.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
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

enum { MOST = 64 }; /* GPUs of a host */

typedef struct { uint8_t bytes[16]; } uuid_t; /* CUuuid */
typedef struct { uuid_t from, to; } pair_t;   /* CUcheckpointGpuPair */
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
    int (*lock)(int, void *), (*checkpoint)(int, void *), (*restore)(int, restore_t *), (*unlock)(int, void *);
} driver_t;

typedef struct { int count; uuid_t uuids[MOST]; } gpus_t;

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

/* The GPUs of this host, in the order of their addresses. None if they cannot be told. */
static void read_host(gpus_t *gpus) {
    struct dirent **folders;
    gpus->count = 0;
    int n = scandir(MPY_GPUS, &folders, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char path[512], line[256], *uuid;
        snprintf(path, sizeof path, "%s/%s/information", MPY_GPUS, folders[i]->d_name);
        FILE *file = fopen(path, "re");
        while (file != NULL && gpus->count < MOST && fgets(line, sizeof line, file) != NULL)
            if (!strncmp(line, "GPU UUID:", 9) && (uuid = strstr(line, "GPU-")) != NULL &&
                read_uuid(uuid + 4, &gpus->uuids[gpus->count]))
                gpus->count++;
        if (file != NULL) fclose(file);
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

/* On another host the program's GPUs are those that have the places of the old ones. Returns the number of pairs. */
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

int mpy_cuda_leave(char *text, size_t n) {
    driver_t d = {0};
    if (!find(&d) || read_program(&d, &of_program) < 0) return 0;
    if (d.lock == NULL || d.checkpoint == NULL || d.restore == NULL || d.unlock == NULL) {
        snprintf(text, n, "is not possible: the NVIDIA driver is too old; version 570 and later can save what is on a "
                          "GPU");
        return -1;
    }
    read_host(&of_host);
    int result = d.lock(getpid(), NULL);
    if (result != 0) return explain(&d, result, text, n), -1;
    result = d.checkpoint(getpid(), NULL);
    if (result != 0) {
        explain(&d, result, text, n);
        d.unlock(getpid(), NULL);
        return -1;
    }
    MPY_UPPER->callbacks.gpu = 1;
    return 0;
}

void mpy_cuda_return(void) {
    driver_t d = {0};
    gpus_t now;
    pair_t pairs[MOST];
    char why[160], line[320];
    if (!MPY_UPPER->callbacks.gpu || !find(&d)) return;
    read_host(&now);
    restore_t to = {.pairs = pairs, .count = (uint32_t)pair_up(&now, pairs)};
    int result = d.restore(getpid(), to.count > 0 ? &to : NULL);
    if (result == 0) result = d.unlock(getpid(), NULL);
    if (result != 0) {
        explain(&d, result, why, sizeof why);
        snprintf(line, sizeof line, "what was on the GPU cannot be brought back: it %s; it needs a GPU of the same "
                                    "kind with as much free memory", why);
        MPY_LOWER->svc->die(line, 1);
    }
    MPY_UPPER->callbacks.gpu = 0;
}

/* restart.c - manapy-restart: becomes a new lower half of one rank and continues a checkpoint above it (continue.c).
 *
 * Half: lower; runs once, on the process's own stack.
 */
#include "lower.h"
#include "options/options.h"
#include "preload.h"
#include "process/fds/fds.h"
#include "stack.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <manapy/image.h>
#include <manapy/image_path.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The highest number among the published checkpoints ckpt-NNNNNN of a job directory; -1 if there is none. */
static long newest(const char *job) {
    long highest = -1;
    DIR *d = opendir(job);
    for (struct dirent *e; d && (e = readdir(d));) {
        char manifest[PATH_MAX], *end;
        if (strncmp(e->d_name, "ckpt-", 5)) continue;
        long number = strtol(e->d_name + 5, &end, 10);
        snprintf(manifest, sizeof manifest, "%s/%s/manifest.json", job, e->d_name);
        if (!*end && number > highest && access(manifest, R_OK) == 0) highest = number;
    }
    if (d) closedir(d);
    return highest;
}

/* The checkpoint directory: as given (exact); or the newest one of a job directory: `latest`, or, if somebody has
 * removed that checkpoint, the one with the highest number (as latest() in manapy/ckpt/store/publish.py). */
static const char *checkpoint_path(const char *given, bool *exact) {
    static char path[PATH_MAX];
    char inside[PATH_MAX];
    snprintf(inside, sizeof inside, "%s/manifest.json", given);
    *exact = access(inside, R_OK) == 0;
    /* before `latest` is read: NFS asks for a link's target when its directory is opened */
    const long highest = *exact ? -1 : newest(given);
    if (!*exact) snprintf(inside, sizeof inside, "%s/latest/manifest.json", given);
    if (access(inside, R_OK)) snprintf(inside, sizeof inside, "%s/ckpt-%06ld/manifest.json", given, highest);
    if (access(inside, R_OK))
        mpy_fail(1, "%s is neither a checkpoint nor a job directory with a checkpoint (see `manapy list`)", given);
    *strrchr(inside, '/') = 0;
    if (!realpath(inside, path)) mpy_fail(1, "%s: %s", inside, strerror(errno));
    return path;
}

/* The number of ranks, from the header of rank 0's image. The header of our own image is checked in full later. If
 * images are on local storage, rank 0's may be on another host. */
static int count_ranks(const char *checkpoint) {
    if (mpy_has_local_images(checkpoint)) return mpy_count_folders(checkpoint);
    char path[PATH_MAX + MPY_IMAGE_PATH_MORE];
    mpy_image_header_t header = {0};
    mpy_image_path(path, sizeof path, checkpoint, 0);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) mpy_fail(1, "%s: %s", path, errno == ENOENT ? "the image is missing" : strerror(errno));
    if (read(fd, &header, sizeof header) < (ssize_t)offsetof(mpy_image_header_t, host) ||
        memcmp(header.magic, MPY_IMAGE_MAGIC, sizeof header.magic) || header.size < 1)
        mpy_fail(1, "%s is not a complete image", path);
    close(fd);
    return header.size;
}

int main(int argc, char **argv, char **envp) {
    mpy_initial_environ = envp;
    mpy_options.command = "manapy-restart";
    mpy_preload_leave(argv);
    mpy_options_t options;
    int first = mpy_options_parse(argc, argv, &options);
    bool exact;
    const char *checkpoint = checkpoint_path(argv[first], &exact);
    int ranks = count_ranks(checkpoint);

    mpy_fds_note_inherited();
    mpy_blocks_map();
    mpy_continue(mpy_lower_join(argv + first, checkpoint, exact, ranks, 1));
}

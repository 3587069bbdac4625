/* image_path.h - where in a checkpoint the image of a rank lies. Header only; libc of either half.
 *
 * The images of a job on one host lie in the checkpoint's directory itself. With several hosts, each has a folder there
 * for its ranks, and the file `folders` names the folder of each rank: MPY_FOLDER_WIDTH bytes, "node-NNNNN\n". So a
 * rank reads only its own entry. manapy/ckpt/store/folders.py writes them.
 *
 * If there is a file `local`, the images may be on local storage of the hosts. Then the coordinator says where each
 * image is (manapy/ckpt/store/levels.py), and `folders` exists always.
 */
#ifndef MANAPY_IMAGE_PATH_H
#define MANAPY_IMAGE_PATH_H

#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum {
    MPY_FOLDER_WIDTH = 11,
    MPY_IMAGE_PATH_MORE = 40 /* what mpy_image_path adds at most to the checkpoint's path */
};

/* Is it "node-" and digits? */
static inline int mpy_is_folder(const char entry[MPY_FOLDER_WIDTH]) {
    return !strncmp(entry, "node-", 5) && strspn(entry + 5, "0123456789") == MPY_FOLDER_WIDTH - 6;
}

static inline int mpy_has_local_images(const char *checkpoint) {
    char path[4096];
    snprintf(path, sizeof path, "%s/local", checkpoint);
    return access(path, F_OK) == 0;
}

/* The number of ranks, by the list of folders; 0 without one. */
static inline int mpy_count_folders(const char *checkpoint) {
    char path[4096];
    struct stat st;
    snprintf(path, sizeof path, "%s/folders", checkpoint);
    return stat(path, &st) == 0 ? (int)(st.st_size / MPY_FOLDER_WIDTH) : 0;
}

/* The image of a process of a rank, in the directory of the rank's image. index 0: the rank's own (image.h, TREE). */
static inline void mpy_image_member_path(char *path, size_t n, const char *directory, int rank, unsigned index) {
    if (index) snprintf(path, n, "%s/rank-%05d.%u.img", directory, rank, index);
    else snprintf(path, n, "%s/rank-%05d.img", directory, rank);
}

/* An entry that is missing or damaged gives the path of a job on one host, where no image will be found. */
static inline void mpy_image_path(char *path, size_t n, const char *checkpoint, int rank) {
    char entry[MPY_FOLDER_WIDTH + 1] = "";
    snprintf(path, n, "%s/folders", checkpoint);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : pread(fd, entry, MPY_FOLDER_WIDTH, (off_t)rank * MPY_FOLDER_WIDTH);
    if (fd >= 0) close(fd);
    entry[MPY_FOLDER_WIDTH - 1] = '\0';
    if (got == MPY_FOLDER_WIDTH && mpy_is_folder(entry))
        snprintf(path, n, "%s/%s/rank-%05d.img", checkpoint, entry, rank);
    else snprintf(path, n, "%s/rank-%05d.img", checkpoint, rank);
}

#endif

/* image.h - format of an image file: the upper half of one rank. Read by the restore (C), by libmanapy_image.so and,
 * through manapy/ckpt/store/image.py (a mirror that a test compares with this file), by Python.
 *
 * Layout: header page | page data in ascending address order, 4 KiB aligned unless compressed | sections (each 8-byte
 * aligned). All integers little-endian. The writer streams the data, then writes the sections, then the header, then
 * fsyncs: a file whose header is missing or whose header_crc is wrong was interrupted.
 *
 * Sections
 *   REGIONS  mpy_image_region_t[count]  the mappings of the upper half, ascending
 *   RUNS     mpy_image_run_t[count]     contents of the pages of the regions, ascending; pages in no run and not
 *                                       kept are zero
 *   FILES    mpy_image_file_t[count]    mapped files that regions refer to by index
 *   STRINGS  bytes                      NUL-terminated strings referred to by offset
 *   THREADS  mpy_image_thread_t[count]  upper threads; [0] becomes the restarted process's main thread
 *   PROCESS, FDS                        blobs (lowerhalf/process/blob.h) of process-wide state and of descriptors
 *   KEPT     mpy_image_kept_t[count]    only in an incremental image: pages whose content is that of the parent image
 *                                       at the same address, ascending
 *   TREE     mpy_image_member_t[count]  only if the rank was a tree of processes (lowerhalf/tree): first the process
 *                                       that uses MPI, whose image this is; then the others. Those have images of their
 *                                       own beside this one, rank-NNNNN.INDEX.img, without this section
 *
 * An incremental image names its parent, which may have a parent, too: a chain. It ends in a full image, which has no
 * parent. The images of a chain are of the same rank and the same generation.
 *
 * A folded image is a full one that has taken the place of an incremental one: it has the same content, and all of the
 * memory (lowerhalf/image/fold). What names an image by seal and checksum - a child, a tree, a manifest - names those
 * with which it was first written, its identity. A folded image contains its identity.
 *
 * Invariants
 *  1. Every byte is covered by a checksum (CRC-32C): header_crc, section crc, run crc. The bytes that only align data
 *     or sections are an exception.
 *  2. A run of kind FILE stands for pages of a privately mapped file that the program has not changed. Its crc is that
 *     of their content. The restore compares it with the file that it finds. This proves that the file is still the
 *     same.
 *  3. The format changes only together with MPY_IMAGE_VERSION.
 *  4. Checksums detect damage. Seals prove that the job has written the image; their keys come from the job's secret
 *     (lowerhalf/image/file/seal.h). Each run with data in the image has a seal over its kind, its address, its lengths
 *     and that data. The header has a seal over all sections, which contain the runs' seals, and over itself. It
 *     contains the identity of its parent. So the seal of an image covers its whole chain.
 *  5. The data of a ZIPPED run is one zstd frame (RFC 8878) that contains exactly `bytes` bytes. Checksum and seal are
 *     of the frame: nothing is expanded before it has been checked, and checking needs no libzstd.
 *  6. A member of the tree has the seal of its image, so the seal of the rank's image covers those of the whole tree.
 *  7. A kept page is in a run with data of the parent, or kept there, too. Pages of FILE runs are never kept.
 */
#ifndef MANAPY_IMAGE_H
#define MANAPY_IMAGE_H

#include <stdint.h>

#define MPY_IMAGE_MAGIC "MANAPYIM"
#define MPY_IMAGE_VERSION 11u
#define MPY_IMAGE_PAGE 4096u
#define MPY_RUN_MAX (2u << 20) /* maximum length of a run: a lazy restart reads a run as a whole */
#define MPY_FRAME_MAX (1u << 20) /* maximum length of a ZIPPED run in memory */

#define MPY_CHAIN_MAX 100 /* images of a chain */

enum { MPY_IMAGE_SEAL = 32, MPY_RUN_SEAL = 16, MPY_PARENT_PATH = 128 };
enum {
    MPY_SECTION_REGIONS = 1,
    MPY_SECTION_RUNS,
    MPY_SECTION_FILES,
    MPY_SECTION_STRINGS,
    MPY_SECTION_THREADS,
    MPY_SECTION_PROCESS,
    MPY_SECTION_FDS,
    MPY_SECTION_KEPT,
    MPY_SECTION_TREE,
    MPY_SECTIONS_MAX = 16
};

typedef struct mpy_image_section {
    uint32_t kind;
    uint32_t crc;
    uint64_t offset; /* in the file */
    uint64_t bytes;
    uint64_t count;
} mpy_image_section_t;

typedef struct mpy_image_header {
    char magic[8];
    uint32_t version;
    uint32_t boundary_version;
    uint64_t table_hash; /* MPI function table of the wrapper library */
    int32_t rank;
    int32_t size;
    uint32_t generation; /* of the process that wrote it */
    uint32_t nsections;
    uint64_t created_ns; /* CLOCK_REALTIME */
    uint64_t file_bytes;
    uint64_t memory_bytes; /* bytes in runs, and kept */
    uint64_t cpu_features[8]; /* lowerhalf/process/cpu.h: features that the program may have detected and may use */
    uint64_t xsave_bytes;     /* size of the extended state in signal frames */
    char host[64];
    char program[256];
    char parent[MPY_PARENT_PATH]; /* path, relative to the directory of this image; "": none */
    uint8_t parent_seal[MPY_IMAGE_SEAL]; /* of the parent's header, or what it was before the parent was folded */
    uint32_t parent_crc;
    uint32_t folded_crc;                 /* of the incremental image that this one replaces; 0: none */
    uint8_t folded_seal[MPY_IMAGE_SEAL];
    mpy_image_section_t sections[MPY_SECTIONS_MAX];
    uint32_t local_size; /* ranks on its host; 1 if unknown */
    uint32_t gpu;        /* the memory has what was on the program's GPUs */
    uint8_t seal[MPY_IMAGE_SEAL]; /* of the sections and this struct up to here */
    uint32_t header_crc; /* of this struct up to here */
} mpy_image_header_t;

enum { /* mpy_image_region_t.flags */
    MPY_REGION_SHARED = 1,  /* MAP_SHARED */
    MPY_REGION_FILE = 2,    /* mapped from files[file] at file_offset */
    MPY_REGION_GROWSDOWN = 4,
    /* The program's advice to the kernel about the region (lowerhalf/process/memory/advice.c) */
    MPY_REGION_LOCKED = 8,
    MPY_REGION_LOCKED_ON_FAULT = 16,
    MPY_REGION_HUGE = 32,
    MPY_REGION_NO_HUGE = 64,
    MPY_REGION_DONT_FORK = 128,
    MPY_REGION_WIPE_ON_FORK = 256,
    MPY_REGION_DONT_DUMP = 512,
    MPY_REGION_SEQUENTIAL = 1024,
    MPY_REGION_RANDOM = 2048,
    MPY_REGION_MERGEABLE = 4096,
    /* Of a file whose content is only in memory (process/memory/files.h), and in the image: POSIX shared memory, or one
     * without a name, which is used at several places. The path of the latter is "". */
    MPY_REGION_MEMORY_FILE = 8192,
    /* Such a file, which other ranks of the host use, too */
    MPY_REGION_OF_RANKS = 16384,
    MPY_REGION_MAY_WRITE = 32768, /* the program may make it writable */
};

typedef struct mpy_image_region {
    uint64_t lo, hi;
    uint32_t prot; /* PROT_* */
    uint32_t flags;
    uint32_t file; /* index into FILES */
    uint32_t policy; /* NUMA policy, MPOL_*; 0: the region has none of its own */
    uint64_t file_offset;
    uint64_t nodes; /* nodes of the policy, among the first 64 */
} mpy_image_region_t;

enum { MPY_RUN_DATA = 1, MPY_RUN_FILE = 2, MPY_RUN_ZIPPED = 3 };

typedef struct mpy_image_run {
    uint64_t address;
    uint64_t bytes;  /* of memory */
    uint64_t stored; /* bytes of the image. DATA: as many as of memory; ZIPPED: fewer; FILE: 0 */
    uint64_t offset; /* DATA, ZIPPED: in the image; FILE: in the mapped file */
    uint32_t kind;
    uint32_t crc;
    uint8_t seal[MPY_RUN_SEAL]; /* only for DATA and ZIPPED */
} mpy_image_run_t;

typedef struct mpy_image_kept {
    uint64_t address, bytes;
} mpy_image_kept_t;

/* One process of a tree. The ids are those that the program knows. */
typedef struct mpy_image_member {
    uint32_t index;  /* of its image; 0: the image that contains this section */
    int32_t pid;
    int32_t parent;  /* of no member: the first process of the tree */
    int32_t group;   /* process group; of no member: that of the first process at the restart */
    int32_t session; /* its own id, or that of its parent's session */
    uint8_t seal[MPY_IMAGE_SEAL]; /* index > 0: of its image's identity */
} mpy_image_member_t;

typedef struct mpy_image_file {
    uint64_t path; /* offset into STRINGS */
    uint64_t device, inode, bytes;
    uint64_t mtime_ns;
} mpy_image_file_t;

typedef struct mpy_image_thread {
    uint64_t ucontext; /* address of the signal frame's ucontext on the thread's stack */
    uint64_t fs_base, gs_base;
    uint64_t clear_tid;   /* PR_GET_TID_ADDRESS */
    uint64_t robust_list; /* get_robust_list */
    uint64_t robust_bytes;
    int32_t tid;          /* as the program knows it */
    uint32_t mpi_slot;    /* index into mpy_upper_t.threads, or 0xffffffff */
    char name[16];
} mpy_image_thread_t;

_Static_assert(sizeof(mpy_image_header_t) <= MPY_IMAGE_PAGE, "header larger than its page");

#endif

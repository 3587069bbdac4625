/* options.c - the command lines of manapy-launch and manapy-restart.
 *
 * Invariants
 *  1. Parsing stops at the first word that is not an option. This word and everything after it belong to the program.
 */
#include "image/dirty/dirty.h"
#include "lower.h"
#include <limits.h>
#include <manapy/image.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_HOSTS = 64 }; /* BLOCKS_MAX of manapy/ckpt/redundancy/code.py */

static const char launch_usage[] =
    "usage: mpirun -n N manapy-launch [options] PROGRAM [ARGUMENTS...]\n"
    "  --interval TIME     take a checkpoint every TIME (30s, 10m, 2h)\n"
    "  --dir DIRECTORY     job directory (default: manapy-<id>/ in the working directory)\n"
    "  --keep K            keep the K newest checkpoints (default: all)\n"
    "  --mpi PATH          the real MPI: a library file, or the prefix of an installation\n"
    "  --child-grace TIME  how long a checkpoint waits for child processes to end (default 5s)\n"
    "  --callback-timeout TIME\n"
    "                      how long a checkpoint waits for callbacks of the program (default 30s)\n"
    "  --background auto|off\n"
    "                      auto (default): a checkpoint that the job survives writes its images beside the running\n"
    "                      program, if there is enough free memory for a copy of it; off: while the program stands\n"
    "  --compress auto|on|off\n"
    "                      compress images with zstd. auto: while compressing takes less time than writing the bytes\n"
    "                      that it saves, and if libzstd is installed; on: everything that shrinks; off (default)\n"
    "  --dirty auto|pagemap|soft-dirty|hash|off\n"
    "                      a checkpoint writes only pages that have changed since the last one. pagemap: the kernel\n"
    "                      says which (Linux 6.7 or newer); soft-dirty: the older way of some kernels; hash: a hash of\n"
    "                      each page finds them; auto (default): the first of these that is possible; off: all pages\n"
    "  --full-every K      unless --dirty off: at most K checkpoints build on each other; then the newest one is made\n"
    "                      full beside the program, or the next one writes all pages (default 10, at most 100)\n"
    "  --local DIRECTORY   write images to DIRECTORY on each host, such as /nvme, not to the job directory\n"
    "  --flush TIME|off    with --local: copy checkpoints to the job directory, at most one every TIME (default 0s:\n"
    "                      each one)\n"
    "  --redundancy none|partner|xor|rs:K+M\n"
    "                      with --local: what survives the loss of hosts. partner: any one host; the images of each\n"
    "                      host are copied to another one. xor: any one host; each group of up to 8 hosts has spare\n"
    "                      blocks, 1/7 of the images. rs:K+M: any M hosts; groups of up to K+M hosts, M/K of the\n"
    "                      images (Reed-Solomon; needs the Python package zfec). none (default): no host\n"
    "  --failure-groups FILE\n"
    "                      with --redundancy: hosts that fail together (a power supply, a switch). The loss of one such\n"
    "                      group loses no checkpoint. FILE has a line for each: NAME: HOST HOST ...\n"
    "  --protocol cc|2pc   how a checkpoint interrupts collectives: the collective clock (default), or, to compare,\n"
    "                      two-phase commit: a barrier before every blocking collective, no nonblocking collectives\n"
    "  --shift auto|off|require\n"
    "                      protect MPI over RDMA (RoCE, InfiniBand): when an RNIC fails, traffic moves to another.\n"
    "                      auto (default): if the host has several RNICs; require: fail if there is no protection\n"
    "  --on-failover continue|checkpoint\n"
    "                      what to do when an RNIC fails: continue (default), or take a checkpoint at once, too\n"
    "  --no-trace          do not record MPI calls. By default /dev/shm has the newest calls of each thread, for\n"
    "                      `manapy why` and `manapy trace`\n"
    "  --version, --help\n";
static const char restart_usage[] =
    "usage: mpirun -n N manapy-restart [options] CHECKPOINT\n"
    "  CHECKPOINT          a checkpoint directory, or a job directory (its latest checkpoint is used)\n"
    "  --interval, --keep, --mpi, --child-grace, --callback-timeout, --background, --compress, --dirty, --full-every,\n"
    "  --local, --flush, --redundancy, --failure-groups, --shift, --on-failover, --no-trace   as for manapy-launch\n"
    "  --lazy              let the program run before all of its memory has been read: pages come when they are\n"
    "                      touched, and one after the other\n"
    "  --unsigned          restart although the job's secret is lost, so that nothing proves that the job has\n"
    "                      written the checkpoint\n"
    "  --version, --help\n";

static void usage(const char *why, const char *what) __attribute__((noreturn));
static void usage(const char *why, const char *what) {
    fprintf(stderr, "%s: %s%s (see --help)\n", mpy_options.command, why, what);
    exit(2);
}

static double seconds(const char *option, const char *text) {
    char *end;
    double v = strtod(text, &end);
    if (end != text && v >= 0) {
        if (!strcmp(end, "") || !strcmp(end, "s")) return v;
        if (!strcmp(end, "ms")) return v / 1000;
        if (!strcmp(end, "m")) return v * 60;
        if (!strcmp(end, "h")) return v * 3600;
    }
    char why[256];
    snprintf(why, sizeof why, "%s needs a time such as 30s, 10m or 2h, not: ", option);
    usage(why, text);
}

static mpy_protocol_t protocol(const char *text) {
    if (!strcmp(text, "cc")) return MPY_PROTOCOL_CC;
    if (!strcmp(text, "2pc")) return MPY_PROTOCOL_2PC;
    usage("--protocol needs cc or 2pc, not ", text);
}

static const char *shift(const char *text) {
    if (strcmp(text, "auto") && strcmp(text, "off") && strcmp(text, "require"))
        usage("--shift needs auto, off or require, not ", text);
    return text;
}

static bool background(const char *text) {
    if (strcmp(text, "auto") && strcmp(text, "off")) usage("--background needs auto or off, not ", text);
    return text[0] == 'a';
}

static const char *compress(const char *text) {
    if (strcmp(text, "auto") && strcmp(text, "on") && strcmp(text, "off"))
        usage("--compress needs auto, on or off, not ", text);
    return text;
}

static const char *dirty(const char *text) {
    static const char *const ways[] = {"auto", "pagemap", "soft-dirty", "hash"};
    if (!strcmp(text, "off")) return NULL;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (strcmp(text, ways[i])) continue;
        if (!mpy_dirty_way(text)) usage("this kernel cannot find changed pages; use --dirty auto, not ", text);
        return text;
    }
    usage("--dirty needs auto, pagemap, soft-dirty, hash or off, not ", text);
}

static int count(const char *why, const char *text, int most) {
    char *end;
    long n = strtol(text, &end, 10);
    if (end == text || *end || n < 1 || n > most) usage(why, text);
    return (int)n;
}

static const char *local(const char *text) {
    if (text[0] != '/') usage("--local needs an absolute path, not ", text);
    return text;
}

static double flush(const char *option, const char *text) {
    return strcmp(text, "off") ? seconds(option, text) : -1;
}

static const char *redundancy(const char *text) {
    int data, spare, end = 0;
    bool rs = sscanf(text, "rs:%2d+%2d%n", &data, &spare, &end) == 2 && !text[end] && data > 0 && spare > 0;
    if (rs && data + spare > MOST_HOSTS) usage("--redundancy rs:K+M needs at most 64 hosts in a group, not ", text);
    if (!rs && strcmp(text, "none") && strcmp(text, "partner") && strcmp(text, "xor"))
        usage("--redundancy needs none, partner, xor or rs:K+M, not ", text);
    return strcmp(text, "none") ? text : NULL;
}

static const char *on_failover(const char *text) {
    if (strcmp(text, "continue") && strcmp(text, "checkpoint"))
        usage("--on-failover needs continue or checkpoint, not ", text);
    return text;
}

int mpy_options_parse(int argc, char **argv, mpy_options_t *out) {
    int restart = !strcmp(mpy_options.command, "manapy-restart");
    *out = (mpy_options_t){.command = mpy_options.command,
                           .child_grace_ms = 5000,
                           .callback_timeout = "30s",
                           .full_every = 10,
                           .background = true,
                           .dirty = "auto",
                           .shift = "auto",
                           .compress = "off",
                           .on_failover = "continue",
                           .trace = true};
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        const char *option = argv[i];
        if (!strcmp(option, "--")) { i++; break; }
        if (!strcmp(option, "--help") || !strcmp(option, "-h")) {
            fputs(restart ? restart_usage : launch_usage, stdout);
            exit(0);
        }
        if (!strcmp(option, "--version")) { puts("manapy " MPY_VERSION); exit(0); }
        if (!strcmp(option, "--no-trace")) { out->trace = false; continue; }
        if (restart && !strcmp(option, "--lazy")) { out->lazy = true; continue; }
        if (restart && !strcmp(option, "--unsigned")) { out->is_unsigned = true; continue; }
        static const char *const known[] = {"--interval", "--dir",         "--keep",       "--mpi",  "--child-grace",
                                            "--shift",    "--on-failover", "--background", "--exec", "--rejoin",
                                            "--protocol", "--dirty",       "--full-every", "--compress",
                                            "--local",    "--flush",       "--redundancy", "--failure-groups",
                                            "--tree",     "--callback-timeout"};
        enum { KNOWN = sizeof known / sizeof *known };
        size_t k = 0, length = strcspn(option, "=");
        while (k < KNOWN && (strlen(known[k]) != length || strncmp(option, known[k], length))) k++;
        if (k == KNOWN || (restart && (k == 1 || (k >= 8 && k <= 10) || k == 18))) usage("unknown option ", option);
        const char *value = option[length] ? option + length + 1 : i + 1 < argc ? argv[++i] : NULL;
        if (!value) usage("a value is missing after ", option);
        switch (k) {
        case 0: out->interval_s = seconds(option, value); break;
        case 1: out->dir = value; break;
        case 2: out->keep = count("--keep needs a number of at least 1, not ", value, INT_MAX); break;
        case 3: out->mpi = value; break;
        case 4: out->child_grace_ms = (int)(seconds(option, value) * 1000); break;
        case 5: out->shift = shift(value); break;
        case 6: out->on_failover = on_failover(value); break;
        case 7: out->background = background(value); break;
        case 8: out->exec_path = value; break;
        case 9: out->rejoin = value; break;
        case 10: out->protocol = protocol(value); break;
        case 11: out->dirty = dirty(value); break;
        case 12: out->full_every = count("--full-every needs a number up to 100, not ", value, MPY_CHAIN_MAX); break;
        case 13: out->compress = compress(value); break;
        case 14: out->local = local(value); break;
        case 15: out->flush_s = flush(option, value); break;
        case 16: out->redundancy = redundancy(value); break;
        case 17: out->failure_groups = value; break;
        case 18: out->tree = value; break;
        case 19: out->callback_timeout = value; break;
        }
    }
    out->callback_ms = (int)(seconds("--callback-timeout", out->callback_timeout) * 1000);
    if (out->redundancy && !out->local) usage("--redundancy needs ", "--local");
    if (out->failure_groups && !out->redundancy) usage("--failure-groups needs ", "--redundancy");
    if (i >= argc) { fputs(restart ? restart_usage : launch_usage, stderr); exit(2); }
    mpy_options = *out;
    return i;
}

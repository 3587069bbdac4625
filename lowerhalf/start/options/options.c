/* options.c - the options of manapy-launch and manapy-restart: from the command line, or else from files (config.c).
 *
 * Invariants
 *  1. Parsing stops at the first word that is not an option. This word and everything after it belong to the program.
 *  2. An option has the same effect in a file as on the command line, which replaces it: both only choose a text, which
 *     is read afterwards.
 *  3. A process that an exec has started (trap_exec.c) reads no files: it gets what the rank's first process has.
 */
#include "options.h"
#include "base/reason.h"
#include "config.h"
#include "image/dirty/dirty.h"
#include "join/manager/pmi.h"
#include <limits.h>
#include <manapy/image.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_HOSTS = 64 }; /* BLOCKS_MAX of manapy/ckpt/redundancy/code.py */

static const char launch_usage[] =
    "usage: mpirun -n N manapy-launch [options] PROGRAM [ARGUMENTS...]\n"
    "  --interval TIME     take a checkpoint every TIME (30s, 10m, 2h)\n"
    "  --dir DIR           the job's directory, which is also its name (default: a new manapy-<id>/ in the working\n"
    "                      directory)\n"
    "  --keep K            keep the K newest checkpoints (default: all)\n"
    "  --mpi PATH          the real MPI: a library file, or the prefix of an installation\n"
    "  --child-grace TIME  how long a checkpoint waits for child processes to end (default 5s)\n"
    "  --callback-timeout TIME\n"
    "                      how long a checkpoint waits for callbacks of the program (default 30s)\n"
    "  --ignore-child NAMES\n"
    "                      children with such a name need not be saved: a restart shows them as killed. NAMES are\n"
    "                      names of programs or shell patterns, with commas between them: 'ssh,monitor*'\n"
    "  --drop-sockets      connections to processes outside the job do not prevent a checkpoint: a restart resets\n"
    "                      them (ECONNRESET), as if the other side had been restarted\n"
    "  --background auto|off\n"
    "                      auto (default): if the job continues after the checkpoint, images are written while it\n"
    "                      runs, if there is enough free memory for a copy of it; off: while it is paused\n"
    "  --compress auto|on|off\n"
    "                      compress images with zstd. auto: while compressing takes less time than writing the bytes\n"
    "                      that it saves, and if libzstd is installed; on: all data that becomes smaller; off\n"
    "                      (default)\n"
    "  --dirty auto|pagemap|soft-dirty|hash|off\n"
    "                      a checkpoint writes only pages that have changed since the last one. pagemap: the kernel\n"
    "                      reports them (Linux 6.7 or newer); soft-dirty: an older interface of some kernels; hash:\n"
    "                      manapy compares a hash of each page; auto (default): the first of these that is possible;\n"
    "                      off: all pages are written\n"
    "  --full-every K      unless --dirty off: at most K checkpoints build on each other; then manapy makes the\n"
    "                      newest one full while the program runs, or the next one writes all pages (default 10, at\n"
    "                      most 100)\n"
    "  --local DIRECTORY   write images to DIRECTORY on each host, such as /nvme, not to the job directory\n"
    "  --flush TIME|off    with --local: copy checkpoints to the job directory, at most one every TIME (default 0s:\n"
    "                      each one)\n"
    "  --redundancy none|partner|xor|rs:K+M\n"
    "                      with --local: which losses of hosts a checkpoint survives. partner: any one host; the\n"
    "                      images of each host are copied to another one. xor: any one host; each group of up to 8\n"
    "                      hosts has spare blocks, 1/7 of the images. rs:K+M: any M hosts; each group of up to K+M\n"
    "                      hosts has spare blocks, M/K of the images (Reed-Solomon; needs the Python package zfec).\n"
    "                      none (default): no host\n"
    "  --failure-groups FILE\n"
    "                      with --redundancy: hosts that fail together (a power supply, a switch). The loss of one\n"
    "                      such group loses no checkpoint. FILE has a line for each: NAME: HOST HOST ...\n"
    "  --protocol cc|2pc   how a checkpoint interrupts collectives. cc (default): the collective clock. 2pc:\n"
    "                      two-phase commit, for comparison: a barrier before every blocking collective, and no\n"
    "                      nonblocking collectives\n"
    "  --shift auto|off|require\n"
    "                      protect MPI over RDMA (RoCE, InfiniBand): when an RNIC fails, traffic moves to another.\n"
    "                      auto (default): if the host has several RNICs; require: fail if there is no protection\n"
    "  --on-failover continue|checkpoint\n"
    "                      what to do when an RNIC fails: continue (default), or also take a checkpoint immediately\n"
    "  --no-trace          do not record MPI calls. By default the newest calls of each thread are recorded in\n"
    "                      /dev/shm, for `manapy why` and `manapy trace`\n"
    "  --version, --help\n";
static const char restart_usage[] =
    "usage: mpirun -n N manapy-restart [options] CHECKPOINT\n"
    "  CHECKPOINT          the path of a checkpoint's directory, or of a job's (its latest checkpoint is used); only\n"
    "                      `manapy restart` also takes names\n"
    "  --interval, --keep, --mpi, --child-grace, --callback-timeout, --ignore-child, --drop-sockets, --background,\n"
    "  --compress, --dirty, --full-every, --local, --flush, --redundancy, --failure-groups, --shift, --on-failover,\n"
    "  --no-trace   as for manapy-launch\n"
    "  --lazy              let the program run before all of its memory has been read: pages are read when the\n"
    "                      program first uses them, and the others meanwhile\n"
    "  --unsigned          restart although the job's secret is lost. The seals are not checked, so nothing proves\n"
    "                      that the job has written the checkpoint\n"
    "  --version, --help\n";

typedef enum option {
    INTERVAL, DIR, KEEP, MPI, CHILD_GRACE, CALLBACK_TIMEOUT, IGNORE_CHILD, DROP_SOCKETS, BACKGROUND, COMPRESS, DIRTY,
    FULL_EVERY, LOCAL, FLUSH, REDUNDANCY, FAILURE_GROUPS, PROTOCOL, SHIFT, ON_FAILOVER, NO_TRACE, LAZY, UNSIGNED,
    EXEC, REJOIN, TREE, DOOR, BELOW_MPI, NO_CONFIG, SETTINGS, OPTIONS,
} option_t;

enum { LAUNCH = 1, RESTART = 2, BOTH = LAUNCH | RESTART, FLAG = 4, INTERNAL = 8 };

static const struct {
    const char *name, *normally;
    int kind;
} known[OPTIONS] = {
    [INTERVAL] = {"--interval", NULL, BOTH},
    [DIR] = {"--dir", NULL, LAUNCH},
    [KEEP] = {"--keep", NULL, BOTH},
    [MPI] = {"--mpi", NULL, BOTH},
    [CHILD_GRACE] = {"--child-grace", "5s", BOTH},
    [CALLBACK_TIMEOUT] = {"--callback-timeout", "30s", BOTH},
    [IGNORE_CHILD] = {"--ignore-child", NULL, BOTH},
    [DROP_SOCKETS] = {"--drop-sockets", "false", BOTH | FLAG},
    [BACKGROUND] = {"--background", "auto", BOTH},
    [COMPRESS] = {"--compress", "off", BOTH},
    [DIRTY] = {"--dirty", "auto", BOTH},
    [FULL_EVERY] = {"--full-every", "10", BOTH},
    [LOCAL] = {"--local", NULL, BOTH},
    [FLUSH] = {"--flush", "0s", BOTH},
    [REDUNDANCY] = {"--redundancy", "none", BOTH},
    [FAILURE_GROUPS] = {"--failure-groups", NULL, BOTH},
    [PROTOCOL] = {"--protocol", "cc", LAUNCH},
    [SHIFT] = {"--shift", "auto", BOTH},
    [ON_FAILOVER] = {"--on-failover", "continue", BOTH},
    [NO_TRACE] = {"--no-trace", "false", BOTH | FLAG},
    [LAZY] = {"--lazy", "false", RESTART | FLAG},
    [UNSIGNED] = {"--unsigned", "false", RESTART | FLAG},
    [EXEC] = {"--exec", NULL, LAUNCH | INTERNAL},
    [REJOIN] = {"--rejoin", NULL, LAUNCH | INTERNAL},
    [TREE] = {"--tree", NULL, LAUNCH | INTERNAL},
    [DOOR] = {"--door", NULL, LAUNCH | INTERNAL},
    [BELOW_MPI] = {"--below-mpi", "false", LAUNCH | FLAG | INTERNAL},
    [NO_CONFIG] = {"--no-config", "false", BOTH | FLAG | INTERNAL}, /* `manapy restart` has read the files */
    [SETTINGS] = {"--settings", "false", BOTH | FLAG | INTERNAL},   /* print what the files set, for `manapy config` */
};

/* What has been chosen; file: NULL on the command line. */
static struct {
    const char *text, *file;
} chosen[OPTIONS];

static bool is_restart(void) { return !strcmp(mpy_options.command, "manapy-restart"); }

/* The first rank of a host speaks for all: they have the same files. */
static void refuse_files(const char *why) __attribute__((noreturn));
static void refuse_files(const char *why) {
    static const char *const names[] = {"MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"};
    const char *place = NULL;
    for (size_t i = 0; !place && i < sizeof names / sizeof *names; i++) place = getenv(names[i]);
    if (place && atoi(place) && !chosen[SETTINGS].text)
        mpy_pmi_let_rank0_speak(getenv("PMIX_RANK") ? MPY_MANAGER_PMIX : MPY_MANAGER_PMI, atoi(place));
    else fprintf(stderr, "%s: %s\n", mpy_options.command, why);
    exit(2);
}

static const char *reading; /* the file whose text is being read, or NULL */

static void usage(const char *why, const char *what) __attribute__((noreturn));
static void usage(const char *why, const char *what) {
    char line[4096];
    snprintf(line, sizeof line, "%s: %s%s", reading ? reading : "", why, what);
    if (reading) refuse_files(line);
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
    static const char *const ways[] = {"pagemap", "soft-dirty", "hash"};
    if (!strcmp(text, "off")) return NULL;
    if (!strcmp(text, "auto")) return text; /* to look for a way costs time and descriptors: not at the start */
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (strcmp(text, ways[i])) continue;
        if (!chosen[SETTINGS].text && !mpy_dirty_way(text)) /* with --settings the job runs elsewhere */
            usage("this kernel cannot find changed pages; use --dirty auto, not ", text);
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

static bool truth(option_t option) { return !strcmp(chosen[option].text, "true"); }

static bool is_ours(size_t option) { return known[option].kind & (is_restart() ? RESTART : LAUNCH); }

/* The option that a word names, up to its "="; *is_off: it is the opposite of a flag. OPTIONS: none. */
static size_t find(const char *word, bool *is_off) {
    size_t length = strcspn(word, "=");
    for (size_t i = 0; i < OPTIONS; i++) {
        const char *name = known[i].name;
        char opposite[32];
        bool is_flag = known[i].kind & FLAG, is_no = !strncmp(name, "--no-", 5);
        snprintf(opposite, sizeof opposite, "--%s%s", is_no ? "" : "no-", name + (is_no ? 5 : 2));
        if (!is_ours(i) || (is_flag && word[length])) continue;
        *is_off = is_flag && !(known[i].kind & INTERNAL) && !strcmp(word, opposite);
        if (*is_off || (strlen(name) == length && !strncmp(word, name, length))) return i;
    }
    return OPTIONS;
}

/* Fills chosen[]; returns the index of the first word that is not an option. */
static int choose(int argc, char **argv) {
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        const char *word = argv[i], *value;
        if (!strcmp(word, "--")) return i + 1;
        if (!strcmp(word, "--help") || !strcmp(word, "-h")) {
            fputs(is_restart() ? restart_usage : launch_usage, stdout);
            exit(0);
        }
        if (!strcmp(word, "--version")) { puts("manapy " MPY_VERSION); exit(0); }
        bool is_off;
        size_t option = find(word, &is_off), length = strcspn(word, "=");
        if (option == OPTIONS) usage("unknown option ", word);
        if (known[option].kind & FLAG) value = is_off ? "false" : "true";
        else value = word[length] ? word + length + 1 : i + 1 < argc ? argv[++i] : NULL;
        if (!value) usage("a value is missing after ", word);
        chosen[option].text = value;
    }
    return i;
}

static bool from_file(const mpy_config_entry_t *entry, char *error, size_t n) {
    static const char *const others[] = {"mpirun"}; /* `manapy restart` takes it */
    const char *table = is_restart() ? "restart" : "launch";
    for (size_t i = 0; is_restart() && i < sizeof others / sizeof *others; i++)
        if (!strcmp(entry->key, others[i])) return true;
    size_t i = 0;
    while (i < OPTIONS && (!is_ours(i) || known[i].kind & INTERNAL || strcmp(entry->key, known[i].name + 2))) i++;
    if (i == OPTIONS) return mpy_refuse(error, n, "%s: [%s] %s: no such option", entry->file, table, entry->key);
    if (chosen[i].file == entry->file)
        return mpy_refuse(error, n, "%s: [%s] %s is there twice", entry->file, table, entry->key);
    if (entry->is_jobs && is_restart() && (i == MPI || i == UNSIGNED))
        return mpy_refuse(error, n, "%s: [%s] %s: not allowed in a file of the working directory, because it decides "
                                    "what runs", entry->file, table, entry->key);
    if (known[i].kind & FLAG ? !entry->is_truth : entry->is_truth)
        return mpy_refuse(error, n, "%s: [%s] %s: %s, not %s", entry->file, table, entry->key,
                          known[i].kind & FLAG ? "needs true or false" : "needs a text or a number", entry->text);
    if (chosen[i].text && !chosen[i].file) return true; /* the command line */
    chosen[i].text = entry->text, chosen[i].file = entry->file;
    return true;
}

static void read_option(option_t option, mpy_options_t *out) {
    mpy_checkpoint_options_t *checkpoints = &out->checkpoints;
    const char *name = known[option].name, *text = chosen[option].text;
    reading = chosen[option].file;
    switch (option) {
    case INTERVAL: checkpoints->interval_s = text ? seconds(name, text) : 0; break;
    case DIR: out->dir = text; break;
    case KEEP: checkpoints->keep = text ? count("--keep needs a number of at least 1, not ", text, INT_MAX) : 0; break;
    case MPI: out->mpi = text; break;
    case CHILD_GRACE: checkpoints->child_grace_ms = (int)(seconds(name, text) * 1000); break;
    case CALLBACK_TIMEOUT:
        out->callback_timeout = text;
        out->callback_ms = (int)(seconds(name, text) * 1000);
        break;
    case IGNORE_CHILD: out->ignore_child = text; break;
    case DROP_SOCKETS: out->drop_sockets = truth(option); break;
    case BACKGROUND: checkpoints->background = background(text); break;
    case COMPRESS: out->compress = compress(text); break;
    case DIRTY: checkpoints->dirty = dirty(text); break;
    case FULL_EVERY:
        checkpoints->full_every = count("--full-every needs a number up to 100, not ", text, MPY_CHAIN_MAX);
        break;
    case LOCAL: checkpoints->local = text ? local(text) : NULL; break;
    case FLUSH: checkpoints->flush_s = flush(name, text); break;
    case REDUNDANCY: checkpoints->redundancy = redundancy(text); break;
    case FAILURE_GROUPS: checkpoints->failure_groups = text; break;
    case PROTOCOL: out->protocol = protocol(text); break;
    case SHIFT: out->shift = shift(text); break;
    case ON_FAILOVER: out->on_failover = on_failover(text); break;
    case NO_TRACE: out->trace = !truth(option); break;
    case LAZY: out->lazy = truth(option); break;
    case UNSIGNED: out->is_unsigned = truth(option); break;
    case EXEC: out->exec_path = text; break;
    case REJOIN: out->rejoin = text; break;
    case TREE: out->tree = text; break;
    case DOOR: out->door = text; break;
    case BELOW_MPI: out->below_mpi = truth(option); break;
    case NO_CONFIG: case SETTINGS: case OPTIONS: break;
    }
    reading = NULL;
}

/* For `manapy config`: a line for each option, with its value and the file that sets it, between tabs. */
static void print_settings(void) __attribute__((noreturn));
static void print_settings(void) {
    for (size_t i = 0; i < OPTIONS; i++)
        if (is_ours(i) && !(known[i].kind & INTERNAL))
            printf("%s\t%s\t%s\n", known[i].name + 2, chosen[i].text ? chosen[i].text : "",
                   chosen[i].file ? chosen[i].file : "");
    exit(0);
}

int mpy_options_parse(int argc, char **argv, mpy_options_t *out) {
    char error[4096];
    *out = (mpy_options_t){.command = mpy_options.command};
    int first = choose(argc, argv);
    if (!chosen[EXEC].text && !chosen[NO_CONFIG].text && /* invariant 3 */
        !mpy_config_read(is_restart() ? "restart" : "launch", from_file, error, sizeof error))
        refuse_files(error);
    for (option_t i = 0; i < OPTIONS; i++) {
        if (!chosen[i].text) chosen[i].text = known[i].normally;
        read_option(i, out);
    }
    const mpy_checkpoint_options_t *checkpoints = &out->checkpoints;
    if (checkpoints->redundancy && !checkpoints->local) usage("--redundancy needs ", "--local");
    if (checkpoints->failure_groups && !checkpoints->redundancy) usage("--failure-groups needs ", "--redundancy");
    if (truth(SETTINGS)) print_settings();
    if (first >= argc) { fputs(is_restart() ? restart_usage : launch_usage, stderr); exit(2); }
    mpy_options = *out;
    return first;
}

/* config.c - defaults of options from files.
 *
 * Half: lower, before anything else has been started.
 *
 * The files: /etc/manapy.toml (the site's), manapy.toml in $XDG_CONFIG_HOME or ~/.config (the user's), and manapy.toml
 * in the working directory (the job's). Mirror of manapy/cli/shared/configuration.py.
 *
 * Invariants
 *  1. Each line of a file is empty, a comment, [table] or key = value. A value is true, false, a number or a string in
 *     one line. This is a part of TOML (toml.io/en/v1.0.0), and both readers refuse the rest of it.
 *  2. A file that another user can have written is not used, and opening a file never blocks (a pipe of that name).
 *  3. If there are no files, this costs three calls of open(2).
 */
#include "config.h"
#include "base/reason.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <manapy/own.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIGITS "0123456789"
#define NAME DIGITS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-"

enum { BYTES_MAX = 65536 }; /* LARGEST of configuration.py */

typedef struct file {
    const char *path;
    bool is_jobs;
    const char *wanted; /* the table whose entries are taken */
    char table[128];    /* the current one; "" before the first */
    bool had;           /* has the wanted table begun? */
} file_t;

/* All tables that a file may have; test_configuration.py compares them with the commands. */
static const char *const tables[] = {
    "launch", "restart", "run", "slurm", "checkpoint", "stop", "list", "inspect", "verify", "drop", "prune", "status",
    "why", "trace", "history", "rdma", "fcdp", "doctor", "bench", "config",
    "completion", "clean",
};

static char *blanks(char *p) { return p + strspn(p, " \t"); }

static bool is_control(char c) { return ((unsigned char)c < ' ' && c != '\t') || c == 0x7f; }

/* Is the rest of a line empty or a comment? */
static bool is_end(char *p) {
    p = blanks(p);
    if (*p && *p != '#') return false;
    while (*p && !is_control(*p)) p++;
    return !*p;
}

/* A string; *after is what follows it. NULL: it does not end, or has something that is not allowed. */
static char *quoted(char *p, char **after) {
    char quote = *p++, *text = malloc(strlen(p) + 1), *out = text;
    while (text && *p != quote) {
        if (quote == '"' && *p == '\\' && *++p != '"' && *p != '\\') break;
        if (is_control(*p)) break;
        *out++ = *p++;
    }
    if (!text || *p != quote) return free(text), NULL;
    *out = 0;
    *after = p + 1;
    return text;
}

static bool is_number(const char *text) {
    size_t whole = strspn(text, DIGITS);
    if (!whole || (whole > 1 && text[0] == '0')) return false;
    if (!text[whole]) return true;
    size_t part = strspn(text + whole + 1, DIGITS);
    return text[whole] == '.' && part && !text[whole + 1 + part];
}

/* A value as text. NULL: it is none. */
static char *value(char *p, char **after, bool *is_truth) {
    *is_truth = false;
    if (*p == '"' || *p == '\'') return quoted(p, after);
    size_t length = strspn(p, NAME ".");
    char *text = strndup(p, length);
    *after = p + length;
    if (!text) return NULL;
    *is_truth = !strcmp(text, "true") || !strcmp(text, "false");
    return *is_truth || is_number(text) ? text : (free(text), NULL);
}

/* [table] or [table.subtable]; the names are joined by points. */
static bool header(char *p, char *table, size_t n) {
    size_t used = 0;
    do {
        p = blanks(p + 1);
        size_t length = strspn(p, NAME);
        if (!length || used + length + 2 > n) return false;
        if (used) table[used++] = '.';
        memcpy(table + used, p, length);
        table[used += length] = 0;
        p = blanks(p + length);
    } while (*p == '.');
    return *p == ']' && is_end(p + 1);
}

static bool begin_table(file_t *f, char *line, int number, char *error, size_t n) {
    if (!header(line, f->table, sizeof f->table)) return mpy_refuse(error, n, "%s: line %d: not a [table]", f->path,
                                                                    number);
    size_t i = 0, count = sizeof tables / sizeof *tables, length = strcspn(f->table, ".");
    while (i < count && (strlen(tables[i]) != length || strncmp(f->table, tables[i], length))) i++;
    bool is_sub = !strncmp(f->table, f->wanted, length) && f->wanted[length] == 0 && f->table[length];
    if (i == count || is_sub) return mpy_refuse(error, n, "%s: [%s]: no such command", f->path, f->table);
    if (strcmp(f->table, f->wanted)) return true;
    if (f->had) return mpy_refuse(error, n, "%s: line %d: a second table [%s]", f->path, number, f->table);
    return f->had = true;
}

static bool take_line(file_t *f, char *line, int number, mpy_config_take_t *take, char *error, size_t n) {
    line = blanks(line);
    if (*line == '[') return begin_table(f, line, number, error, n);
    if (is_end(line)) return true;
    mpy_config_entry_t entry = {.file = f->path, .is_jobs = f->is_jobs};
    char *after = line + strspn(line, NAME), *end = after;
    bool ok = after > line && *(after = blanks(after)) == '=' &&
              (entry.text = value(blanks(after + 1), &after, &entry.is_truth)) && is_end(after);
    if (!ok)
        return mpy_refuse(error, n, "%s: line %d: not key = value, where a value is \"text\" (with no escapes but \\\" "
                                    "and \\\\), 'text', a number, true or false", f->path, number);
    *end = 0;
    entry.key = line;
    if (!f->table[0]) return mpy_refuse(error, n, "%s: %s stands before the first [table]", f->path, entry.key);
    return strcmp(f->table, f->wanted) || take(&entry, error, n);
}

static bool take_lines(file_t *f, char *text, size_t bytes, mpy_config_take_t *take, char *error, size_t n) {
    if (strlen(text) != bytes) return mpy_refuse(error, n, "%s: not a text", f->path);
    int number = 0;
    for (char *line; (line = strsep(&text, "\n"));) {
        size_t length = strlen(line);
        if (text && length && line[length - 1] == '\r') line[length - 1] = 0; /* "\r\n" ends a line, too */
        if (!take_line(f, line, ++number, take, error, n)) return false;
    }
    return true;
}

/* Is there no such file? None of ours is in a folder that we may not enter (after su, $HOME may be another user's). */
static bool is_absent(const char *path) {
    struct stat st;
    return errno == ENOENT || errno == ENOTDIR || (errno == EACCES && stat(path, &st) && errno == EACCES);
}

/* Invariant 2 */
static bool take_file(file_t *f, mpy_config_take_t *take, char *error, size_t n) {
    int fd = open(f->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && is_absent(f->path)) return true;
    struct stat st;
    char *text = NULL;
    ssize_t got = -1;
    bool ok = fd >= 0 && !fstat(fd, &st) && (text = calloc(1, BYTES_MAX + 2)) && S_ISREG(st.st_mode);
    if (!ok) mpy_reason(error, n, "%s: %s", f->path, text ? "not a file" : strerror(errno));
    else if (mpy_own_check(f->path, &st, 022, error, n)) ok = false;
    else if ((got = read(fd, text, BYTES_MAX + 1)) < 0 || got > BYTES_MAX)
        ok = mpy_refuse(error, n, "%s: %s", f->path, got < 0 ? strerror(errno) : "more than 64 kB");
    ok = ok && take_lines(f, text, (size_t)got, take, error, n);
    free(text);
    if (fd >= 0) close(fd);
    return ok;
}

bool mpy_config_read(const char *table, mpy_config_take_t *take, char *error, size_t n) {
    static char users[PATH_MAX];
    const char *home = getenv("HOME"), *config = getenv("XDG_CONFIG_HOME"), *how = getenv("MANAPY_CONFIG");
    if (how && !strcmp(how, "off")) return true;
    if (how && *how) return mpy_refuse(error, n, "MANAPY_CONFIG may only be off, not %s", how);
    if (config && config[0] == '/') snprintf(users, sizeof users, "%s/manapy.toml", config);
    else if (home && home[0] == '/') snprintf(users, sizeof users, "%s/.config/manapy.toml", home);
    file_t files[] = {{.path = "/etc/manapy.toml"}, {.path = users}, {.path = "manapy.toml", .is_jobs = true}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        files[i].wanted = table;
        if (files[i].path[0] && !take_file(&files[i], take, error, n)) return false;
    }
    return true;
}

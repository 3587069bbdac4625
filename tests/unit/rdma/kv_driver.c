/* kv_driver.c - plays a program with RNICs. It reads calls of kv.h as lines from standard input, and writes results as
 * lines to standard output.
 *
 *   put KEY HEX | get KEY | find KEY,KEY... | del KEY | event JSON | connect | command | fd | timeout MS | many N |
 *   note N | wait MS | fork | linger SECONDS (the child's pid) | cut | quit
 * Answers: the time that the call took, in ms; the return value; then the value, command or reason, if there is one.
 */
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/hex.h"
#include "base/now.h"
#include "kv/kv.h"

static size_t unhex(const char *hex, unsigned char *out) {
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) out[i] = (unsigned char)mpy_hex_byte(hex + 2 * i);
    return n;
}

int main(void) {
    static char line[100000], text[4096];
    static unsigned char value[50000];
    shift_kv_t *kv = shift_kv_open();
    if (kv == NULL) {
        perror("shift_kv_open");
        return 1;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *rest = strchr(line, ' ');
        if (rest != NULL) *rest++ = '\0';
        else rest = line + strlen(line);
        int64_t begin = mpy_now_ms();
        int rc = 0;
        text[0] = '\0';
        if (strcmp(line, "put") == 0) {
            char *hex = strchr(rest, ' ');
            if (hex == NULL) hex = "";
            else *hex++ = '\0';
            rc = shift_kv_put(kv, rest, value, unhex(hex, value));
        } else if (strcmp(line, "get") == 0) {
            rc = shift_kv_get(kv, rest, value, SHIFT_KV_VALUE);
            for (int i = 0; i < rc; i++) sprintf(text + 2 * i, "%02x", value[i]);
        } else if (strcmp(line, "find") == 0) { /* one value after the other, or "-" */
            static shift_kv_found_t asked[2 * SHIFT_KV_BATCH];
            int n = 0, at = 0;
            for (char *key = strtok(rest, ","); key != NULL; key = strtok(NULL, ","))
                snprintf(asked[n++].key, sizeof asked->key, "%s", key);
            rc = shift_kv_find(kv, asked, n);
            for (int k = 0; rc == 0 && k < n; k++) {
                at += sprintf(text + at, k > 0 ? " %s" : "%s", asked[k].size > 0 ? "" : "-");
                for (uint32_t i = 0; i < asked[k].size; i++) at += sprintf(text + at, "%02x", asked[k].value[i]);
            }
        } else if (strcmp(line, "note") == 0) {
            /* puts so many keys noted/0..., deletes every third one, and flushes all; the result is the number of
             * flushes */
            for (int i = 0; i < 2 * atoi(rest); i++) {
                char key[64];
                bool second = i >= atoi(rest);
                snprintf(key, sizeof key, "noted/%d", i % atoi(rest));
                if (second && i % atoi(rest) % 3 != 0) continue;
                if (shift_kv_note(kv, key, &i, second ? 0 : sizeof i) != 0) return 1;
            }
            for (int left = 1; left > 0; rc++) {
                left = shift_kv_flush(kv);
                if (left < 0) rc = left - 1;
            }
        } else if (strcmp(line, "del") == 0) {
            rc = shift_kv_note(kv, rest, NULL, 0);
            if (rc == 0) rc = shift_kv_connect(kv);
        } else if (strcmp(line, "event") == 0) {
            rc = shift_kv_event(kv, rest);
        } else if (strcmp(line, "connect") == 0) {
            rc = shift_kv_connect(kv);
        } else if (strcmp(line, "command") == 0) {
            rc = shift_kv_command(kv, text, sizeof text);
        } else if (strcmp(line, "fd") == 0) {
            rc = shift_kv_fd(kv);
        } else if (strcmp(line, "timeout") == 0) {
            shift_kv_set_timeout(kv, atoi(rest));
        } else if (strcmp(line, "wait") == 0) {
            struct pollfd p = {.fd = shift_kv_fd(kv), .events = POLLIN};
            rc = poll(&p, 1, atoi(rest));
        } else if (strcmp(line, "many") == 0) {
            /* puts and gets so many keys, each with its own value; the result is the number that came back right */
            for (int i = 0; i < atoi(rest); i++) {
                char key[64];
                int n = sprintf((char *)value, "value %d", i);
                snprintf(key, sizeof key, "many/%d", i);
                if (shift_kv_put(kv, key, value, (size_t)n) != 0) break;
                unsigned char back[SHIFT_KV_VALUE];
                rc += shift_kv_get(kv, key, back, sizeof back) == n && memcmp(back, value, (size_t)n) == 0;
            }
        } else if (strcmp(line, "fork") == 0) { /* the child's results of a put, and of closing its copy */
            int status;
            pid_t child = fork();
            if (child == 0) {
                rc = shift_kv_put(kv, "child", "x", 1);
                shift_kv_close(kv);
                _exit(-rc);
            }
            waitpid(child, &status, 0);
            rc = -WEXITSTATUS(status);
        } else if (strcmp(line, "linger") == 0) { /* a child that outlives us and keeps our descriptors */
            rc = fork();
            if (rc == 0) {
                close(1);
                sleep((unsigned)atoi(rest));
                _exit(0);
            }
        } else if (strcmp(line, "cut") == 0) {
            rc = shutdown(shift_kv_fd(kv), SHUT_RDWR);
        } else if (strcmp(line, "quit") == 0) {
            break;
        } else {
            return 2;
        }
        printf("%d %d %s\n", (int)(mpy_now_ms() - begin), rc,
               text[0] != '\0' ? text
               : rc < 0        ? shift_kv_reason(kv)
                               : "");
    }
    shift_kv_close(kv);
    return 0;
}

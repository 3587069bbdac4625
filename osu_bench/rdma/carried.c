/* carried.c - bytes that network interfaces receive over time: carried MS INTERFACE...
 *
 * Prints one line every MS milliseconds, until it is ended: seconds (CLOCK_MONOTONIC), then the bytes that each
 * interface has received since it was created.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int argc, char **argv) {
    if (argc < 3 || atoi(argv[1]) < 1) {
        fputs("carried MS INTERFACE...\n", stderr);
        return 2;
    }
    struct timespec next;
    clock_gettime(CLOCK_MONOTONIC, &next);
    for (;;) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        printf("%.6f", (double)now.tv_sec + (double)now.tv_nsec * 1e-9);
        for (int i = 2; i < argc; i++) {
            char path[256];
            unsigned long long bytes = 0;
            snprintf(path, sizeof path, "/sys/class/net/%s/statistics/rx_bytes", argv[i]);
            FILE *f = fopen(path, "r");
            if (!f || fscanf(f, "%llu", &bytes) != 1) {
                fprintf(stderr, "carried: no interface %s\n", argv[i]);
                return 1;
            }
            fclose(f);
            printf(" %llu", bytes);
        }
        putchar('\n');
        fflush(stdout);
        next.tv_nsec += 1000000L * atoi(argv[1]);
        next.tv_sec += next.tv_nsec / 1000000000L;
        next.tv_nsec %= 1000000000L;
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
    }
}

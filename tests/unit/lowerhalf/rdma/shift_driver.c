/* shift_driver.c - plays the owner of a queue pair's states and of a map, for test_shift_parts.py.
 *
 * "states E E ...": the events (numbers) one after the other from the default states; prints both states after each. Aborts as the library does.
 * "map": lines "put K V", "remove K", "get K" from standard input; one answer per "get" (0: none). */
#include "map.h"
#include "states.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int states(int argc, char **argv)
{
    shift_states_t s = {SHIFT_SQ_DEFAULT, SHIFT_RQ_DEFAULT};
    for (int i = 2; i < argc; i++) {
        shift_transition(&s, (shift_event_t)atoi(argv[i]));
        printf("%s %s\n", shift_sq_name(s.sq), shift_rq_name(s.rq));
        fflush(stdout);
    }
    return 0;
}

static int map(void)
{
    shift_map_t m = SHIFT_MAP_INIT;
    char word[16];
    unsigned long long key, value;
    while (scanf("%15s %llu", word, &key) == 2) {
        if (strcmp(word, "put") == 0) {
            if (scanf("%llu", &value) != 1 || shift_map_put(&m, key, (void *)(uintptr_t)value) != 0)
                return 1;
        } else if (strcmp(word, "remove") == 0) {
            shift_map_remove(&m, key);
        } else {
            printf("%llu\n", (unsigned long long)(uintptr_t)shift_map_get(&m, key));
        }
    }
    shift_map_free(&m);
    return 0;
}

int main(int argc, char **argv) { return argc > 1 && strcmp(argv[1], "states") == 0 ? states(argc, argv) : map(); }

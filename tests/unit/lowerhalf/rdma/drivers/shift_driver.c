/* shift_driver.c - plays the owner of a queue pair's states, of a map and of a path's back-off, for
 * test_shift_parts.py.
 *
 *   states E E ...   applies the events (numbers) one after the other, beginning with the default states; prints both
 *                    states after each. Aborts as the library does.
 *   map              reads lines "put K V", "remove K" and "get K"; one answer per "get" (0: none)
 *   churn            puts and removes a million keys, two at a time, in a guarded map; prints the number of slots
 *   sections         a thread ends within sections; prints whether it seems to be in one of them, before and after
 *   backoff          reads lines "up MS", "failed MS" (the time) or "silent 0"; after each line prints the ms until
 *                    which the path isn't probed
 */
#include "common/map.h"
#include "common/sections.h"
#include "links/backoff.h"
#include "objects/states.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int states(int argc, char **argv) {
    shift_states_t s = {SHIFT_SQ_DEFAULT, SHIFT_RQ_DEFAULT};
    for (int i = 2; i < argc; i++) {
        shift_transition(&s, (shift_event_t)atoi(argv[i]));
        printf("%s %s\n", shift_sq_name(s.sq), shift_rq_name(s.rq));
        fflush(stdout);
    }
    return 0;
}

static int map(void) {
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

static int backoff(void) {
    shift_backoff_t b = {0};
    char word[16];
    unsigned long long ms;
    while (scanf("%15s %llu", word, &ms) == 2) {
        if (strcmp(word, "up") == 0)
            shift_backoff_up(&b, ms * 1000000);
        else if (strcmp(word, "failed") == 0)
            shift_backoff_failed(&b, ms * 1000000);
        else
            shift_backoff_silent(&b);
        printf("%llu\n", (unsigned long long)b.until / 1000000);
    }
    return 0;
}

static int churn(void) {
    shift_map_t m = SHIFT_MAP_INIT;
    m.guarded = true;
    int older = 0;
    for (uint64_t key = 1; key < 1000000; key++) {
        if (shift_map_put(&m, key, &m) != 0)
            return 1;
        shift_map_remove(&m, key - 1);
    }
    for (const shift_slots_t *s = m.slots->older; s; s = s->older)
        older++;
    printf("%u %d\n", m.slots->mask + 1, older);
    shift_map_free(&m);
    return 0;
}

static void *ends_within(void *objects) {
    for (int i = 0; i <= SHIFT_NESTED; i++)
        shift_enter((char *)objects + i);
    printf("%d ", shift_inside(objects));
    return NULL;
}

static int sections(void) {
    char objects[SHIFT_NESTED + 1];
    pthread_t thread;
    if (pthread_create(&thread, NULL, ends_within, objects) != 0 || pthread_join(thread, NULL) != 0)
        return 1;
    shift_barrier();
    printf("%d\n", shift_inside(objects));
    return 0;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "states") == 0)
        return states(argc, argv);
    if (strcmp(what, "churn") == 0)
        return churn();
    if (strcmp(what, "sections") == 0)
        return sections();
    return strcmp(what, "backoff") == 0 ? backoff() : map();
}

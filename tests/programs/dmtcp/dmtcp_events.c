/* dmtcp_events.c - a program without MPI that registers two plugins of DMTCP, and prints their events. It takes one
 * checkpoint by dmtcp_checkpoint. One more plugin is for an interface that nobody knows. */
#include <stdio.h>

#define WEAK __attribute__((weak))
typedef struct {
    const char *interface, *version, *name, *author, *email, *description;
    void (*hook)(int event, void *data);
} descriptor_t;
void dmtcp_register_plugin(descriptor_t) WEAK;
int dmtcp_checkpoint(void) WEAK;

static void say(const char *plugin, int event) {
    static const char *const names[] = {"PRESUSPEND", "PRECHECKPOINT", "RESUME", "RESTART", "RUNNING"};
    printf("%s %s\n", plugin, event >= 15 && event <= 19 ? names[event - 15] : "?");
    fflush(stdout);
}

static void one(int event, void *data) { say(data ? "data" : "one", event); }
static void two(int event, void *data) { say(data ? "data" : "two", event); }

int main(void) {
    if (dmtcp_register_plugin) {
        dmtcp_register_plugin((descriptor_t){"3", "4.2.0", "one", "-", "-", "-", one});
        dmtcp_register_plugin((descriptor_t){"3", "4.2.0", "two", "-", "-", "-", two});
        dmtcp_register_plugin((descriptor_t){"99", "99.0", "three", "-", "-", "-", one});
    }
    printf("returned %d\n", dmtcp_checkpoint ? dmtcp_checkpoint() : 3);
    return 0;
}

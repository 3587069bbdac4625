/* dmtcp_plugins.c - dmtcp_register_plugin: events of DMTCP at checkpoints, as callbacks (callbacks.c).
 *
 * Upper half, upper TLS; saved with the program; a part of libdmtcp.so. dmtcp.h declares the function as a weak symbol,
 * so a program can call it. The original loads plugins from libraries, too, and has many more events (exec, threads,
 * files): those are for parts of its own engine, and are not served.
 *
 * Invariants
 *  1. The numbers of the events, and the descriptor, are those of the plugin interfaces 3 and 4 (DMTCP 3.0.0 to 4.2.0
 *     and its development version of 2026). Another interface gets one line and no events: its numbers differ.
 *  2. As in the original, plugins get PRESUSPEND, PRECHECKPOINT and RUNNING in the order of their registration, and
 *     RESUME and RESTART in reverse order. `data` is NULL.
 *  3. A hook has no answer, so it refuses a checkpoint only with manapy_refuse() of manapy.h.
 */
#include "callbacks.h"

#include <manapy/boundary.h>
#include <stdio.h>
#include <string.h>

#define API __attribute__((visibility("default")))

enum { PRESUSPEND = 15, PRECHECKPOINT = 16, RESUME = 17, RESTART = 18, RUNNING = 19 }; /* DmtcpEvent_t */
enum { MOST = 64 };

typedef struct descriptor { /* DmtcpPluginDescriptor_t */
    const char *interface, *version, *name, *author, *email, *description;
    void (*hook)(int event, void *data);
} descriptor_t;

static void (*hooks[MOST])(int event, void *data);
static int count;

static void in_order(int event) {
    for (int i = 0; i < count; i++) hooks[i](event, NULL);
}

static void in_reverse(int event) {
    for (int i = count - 1; i >= 0; i--) hooks[i](event, NULL);
}

static int before_checkpoint(void *unused) {
    (void)unused;
    in_order(PRESUSPEND);
    in_order(PRECHECKPOINT);
    return manapy_reason_given();
}

static int after_checkpoint(void *unused) {
    (void)unused;
    in_reverse(RESUME);
    in_order(RUNNING);
    return 0;
}

static int after_restart(void *unused) {
    (void)unused;
    in_reverse(RESTART);
    in_order(RUNNING);
    return 0;
}

/* Returns why not, or NULL. */
static const char *add(const descriptor_t *plugin) {
    static int (*const functions[MANAPY_MOMENTS])(void *) = {before_checkpoint, after_checkpoint, after_restart};
    if (strcmp(plugin->interface, "3") != 0 && strcmp(plugin->interface, "4") != 0) return "it is for another DMTCP";
    if (count == MOST) return "there are too many plugins";
    for (int moment = 0; count == 0 && moment < MANAPY_MOMENTS; moment++)
        if (manapy_register(moment, functions[moment], NULL, "DMTCP plugins") != MANAPY_REGISTERED)
            return "there are too many callbacks";
    hooks[count++] = plugin->hook;
    return NULL;
}

API void dmtcp_register_plugin(descriptor_t plugin) {
    char line[256];
    if (!manapy_present() || plugin.hook == NULL) return;
    const char *why = add(&plugin);
    if (why == NULL) return;
    snprintf(line, sizeof line, "the DMTCP plugin '%s' gets no events: %s", plugin.name ? plugin.name : "?", why);
    MPY_LOWER->svc->say(line);
}

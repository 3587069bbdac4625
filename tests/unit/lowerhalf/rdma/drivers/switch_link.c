/* switch_link.c - the link of drivers that test no links: connects this process with itself, on all paths at all
 * times. */
#include "switch_frame.h"
#include "check.h"
#include "objects/device.h"

enum { MESSAGES = 1024 };
shift_link_t ourselves = {.connected = true};
uint32_t rkeys[SHIFT_PATHS] = {1, 1};
unsigned downs[SHIFT_PATHS];
static shift_message_t messages[MESSAGES];
static unsigned first_message, next_message;

shift_link_t *shift_link_find(shift_device_t *d, uint64_t peer, shift_receive_t *receive) {
    ourselves.device = d;
    ourselves.peer = peer;
    ourselves.receive = receive;
    for (int p = 0; p < SHIFT_PATHS; p++)
        ourselves.on[p].connected = ourselves.on[p].up = true;
    return &ourselves;
}

void shift_link_send(shift_link_t *l, const shift_message_t *m) {
    CHECK(next_message - first_message < MESSAGES);
    messages[next_message++ % MESSAGES] = *m;
    shift_wake(l->device);
}

void shift_link_poll(shift_device_t *d, int path) {
    (void)d;
    while (path == 0 && first_message != next_message) {
        shift_message_t m = messages[first_message++ % MESSAGES];
        ourselves.receive(&ourselves, &m);
    }
}

void shift_link_step(shift_link_t *l) { (void)l; }
void shift_link_flush(shift_link_t *l) { (void)l; }
void shift_link_down(shift_link_t *l, int path, bool tell) { (void)l, downs[path] += tell; }
bool shift_link_alive(const shift_link_t *l) { return l->connected; }
bool shift_link_lost(const shift_link_t *l) { return !l->connected; }
const uint32_t *shift_link_rkey(shift_link_t *l, uint32_t rkey) { return l && rkey == 1 ? rkeys : NULL; }
void shift_links_free(shift_device_t *d) { (void)d; }

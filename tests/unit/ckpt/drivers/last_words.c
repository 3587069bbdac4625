/* last_words.c - a peer says why it goes, and closes its end although our lines for it are unread. We notice that when
 * we send. Prints what is read then. "local" or "network": the kind of socket. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "wire/wire.h"

static void connect_over_network(int ends[2]) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof here;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&here, n) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&here, &n) == 0);
    CHECK(connect(ends[0], (struct sockaddr *)&here, n) == 0);
    ends[1] = accept(listener, NULL, NULL);
}

int main(int argc, char **argv) {
    int ends[2];
    if (argc > 1 && strcmp(argv[1], "network") == 0) connect_over_network(ends);
    else CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    mpy_wire_t w;
    mpy_wire_open(&w, ends[0]);
    CHECK(mpy_wire_send(&w, "STATE 1", 7));
    CHECK(write(ends[1], "UNLED\n", 6) == 6 && close(ends[1]) == 0);
    while (mpy_wire_send(&w, "STATE 2", 7)) {} /* a network needs a moment to refuse */
    for (char *line; (line = mpy_wire_wait_line(&w, -1)) != NULL;) puts(line);
    CHECK(w.closed);
    return 0;
}

#include "bridge.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { CHUNK = 262144 };

/* One direction. Its buffer is filled only when empty. */
struct direction {
    int from, to;
    size_t start, end;
    uint8_t bytes[CHUNK];
};

static struct direction in, out;

/* False: this side has ended. The descriptors may be blocking or not: they are used only when poll says so. */
static bool move_bytes(struct direction *d, short readable, short writable) {
    if (d->start == d->end && readable) {
        ssize_t n = read(d->from, d->bytes, sizeof d->bytes);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
        d->start = 0;
        d->end = n > 0 ? (size_t)n : 0;
        writable = 1; /* try at once: mostly there is room */
    }
    if (d->start < d->end && writable) {
        /* A blocking pipe takes at most what poll promised without waiting: one page. A socket is asked not to wait. */
        ssize_t n = send(d->to, d->bytes + d->start, d->end - d->start, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == ENOTSOCK) n = write(d->to, d->bytes + d->start, d->end - d->start);
        if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
        d->start += n > 0 ? (size_t)n : 0;
    }
    return true;
}

int bridge_main(const char *abstract_name) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(abstract_name);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (length >= sizeof address.sun_path) return 2;
    memcpy(address.sun_path + 1, abstract_name, length);
    if (connect(fd, (struct sockaddr *)&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length)) != 0) {
        dprintf(2, "sbxd bridge: no sbxd answers in this sandbox: %s\n", strerror(errno));
        return 1;
    }
    in.to = out.from = fd;
    out.to = 1;
    for (;;) {
        bool in_full = in.start < in.end, out_full = out.start < out.end;
        struct pollfd p[3] = {
            {.fd = in_full ? -1 : 0, .events = POLLIN},
            {.fd = fd, .events = (short)((in_full ? POLLOUT : 0) | (out_full ? 0 : POLLIN))},
            {.fd = out_full ? 1 : -1, .events = POLLOUT},
        };
        if (poll(p, 3, -1) < 0 && errno != EINTR) return 1;
        if (!move_bytes(&in, p[0].revents, p[1].revents & POLLOUT)) return 0;
        if (!move_bytes(&out, p[1].revents & (short)~POLLOUT, p[2].revents)) return 0;
    }
}

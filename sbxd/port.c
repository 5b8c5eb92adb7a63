/* Byte streams to sockets: to a port on the sandbox's loopback, and from the unix socket inside to the host. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "conn.h"
#include "files.h"
#include "loop.h"
#include "ops.h"

enum { MAX_SERVER_STREAMS = 256, PAUSE_MS = 100 };

struct pipe_end {
    struct source source;
    struct stream *stream;
    struct buf input; /* from the host, not yet taken by the socket */
    uint16_t port;
    bool connecting, second_try, server, readable, read_over, write_over;
};

static uint32_t last_server_id;
static int server_streams;
static struct source server_socket;
static struct timer server_pause;

static void pipe_ready(struct source *source, uint32_t events);

static void want(struct pipe_end *p) {
    bool writes = p->connecting || buf_len(&p->input);
    source_want(&p->source, (writes ? EPOLLOUT : 0u) | (p->readable || p->read_over || p->connecting ? 0u : EPOLLIN));
}

static bool connect_to(struct pipe_end *p) {
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(p->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(p->port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(p->second_try ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return false;
    int rc = p->second_try ? connect(fd, (struct sockaddr *)&v6, sizeof v6) : connect(fd, (struct sockaddr *)&v4, sizeof v4);
    if (rc != 0 && errno != EINPROGRESS) {
        close(fd);
        return false;
    }
    p->connecting = true;
    return source_open(&p->source, fd, EPOLLOUT, pipe_ready);
}

static void connected(struct pipe_end *p) {
    struct buf b = {0};
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(p->source.fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error) {
        source_close(&p->source);
        if (!p->second_try && (p->second_try = true) && connect_to(p)) return;
        stream_error(p->stream, "refused", error, "nothing listens on port %d inside", p->port);
        return;
    }
    p->connecting = false;
    json_begin(&b, NULL, '{');
    json_string(&b, "event", "connected");
    json_end(&b, '}');
    stream_event(p->stream, &b);
    if (p->write_over) shutdown(p->source.fd, SHUT_WR);
    want(p);
}

/* False: the stream is closed. */
static bool flush(struct pipe_end *p) {
    size_t sent = 0;
    while (buf_len(&p->input) && !p->connecting) {
        ssize_t n = send(p->source.fd, buf_at(&p->input), buf_len(&p->input), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno != EAGAIN) {
            stream_errno(p->stream, errno, "sending to the socket inside");
            return false;
        }
        if (n < 0) break;
        buf_take(&p->input, (size_t)n);
        sent += (size_t)n;
    }
    if (sent) stream_consumed(p->stream, sent);
    if (!buf_len(&p->input)) buf_free(&p->input);
    bool written = p->write_over && !p->connecting && !buf_len(&p->input);
    if (written) shutdown(p->source.fd, SHUT_WR);
    if (written && p->read_over) {
        stream_close(p->stream, NULL);
        return false;
    }
    want(p);
    return true;
}

static void pipe_ready(struct source *source, uint32_t events) {
    struct pipe_end *p = (struct pipe_end *)source;
    if (p->connecting) {
        connected(p);
        return;
    }
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR) && !p->read_over) {
        p->readable = true;
        stream_ready(p->stream);
    }
    if (!flush(p)) return;
    /* Both directions gone while the host still may send: watching on would only report the hang-up for ever. */
    if (events & (EPOLLHUP | EPOLLERR) && p->read_over) source_want(source, 0);
}

static size_t pipe_fill(struct stream *s, uint8_t *to, size_t room, uint8_t *channel) {
    struct pipe_end *p = s->subject;
    (void)channel;
    if (p->read_over || p->connecting) return 0;
    ssize_t n = recv(p->source.fd, to, room, MSG_DONTWAIT);
    if (n > 0) return (size_t)n;
    p->readable = false;
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        want(p);
    } else if (n < 0) {
        stream_errno(s, errno, "receiving from the socket inside");
    } else {
        p->read_over = true;
        stream_send_eof(s, 0);
        flush(p);
    }
    return 0;
}

static void pipe_data(struct stream *s, const uint8_t *bytes, size_t n) {
    struct pipe_end *p = s->subject;
    buf_put(&p->input, bytes, n);
    flush(p);
}

static void pipe_eof(struct stream *s) {
    struct pipe_end *p = s->subject;
    p->write_over = true;
    flush(p);
}

static void pipe_close(struct stream *s) {
    struct pipe_end *p = s->subject;
    source_close(&p->source);
    buf_free(&p->input);
    server_streams -= p->server;
    free(p);
}

static const struct stream_ops pipe_ops = {.fill = pipe_fill, .data = pipe_data, .eof = pipe_eof, .end = pipe_close};

void op_port(struct stream *s, const struct json *request) {
    bool bad = false;
    int64_t port = json_get_int(request, "port", 1, 65535, 0, &bad);
    if (bad || !port) {
        stream_error(s, "invalid", 0, "port is 1 to 65535");
        return;
    }
    struct pipe_end *p = xalloc(sizeof *p);
    p->source.fd = -1;
    p->stream = s;
    p->port = (uint16_t)port;
    stream_bind(s, &pipe_ops, p);
    if (connect_to(p)) return;
    p->second_try = true;
    if (!connect_to(p)) stream_errno(s, errno, "connecting");
}

uint32_t server_last_id(void) { return last_server_id; }

static void resume_listening(struct timer *t) {
    (void)t;
    source_want(&server_socket, EPOLLIN);
}

static void server_knock(struct source *listener, uint32_t events) {
    static const char request[] = "{\"op\":\"server\"}";
    (void)events;
    int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && errno != EAGAIN && errno != EINTR) { /* out of descriptors, say: the queue waits a little */
        source_want(listener, 0);
        timer_set(&server_pause, PAUSE_MS, resume_listening);
    }
    if (fd < 0) return;
    if (!conn_live() || server_streams >= MAX_SERVER_STREAMS || last_server_id > UINT32_MAX - 4) {
        close(fd);
        return;
    }
    struct stream *s = stream_open(last_server_id += 2);
    struct pipe_end *p = xalloc(sizeof *p);
    server_streams++;
    p->server = true;
    p->stream = s;
    stream_bind(s, &pipe_ops, p);
    conn_send(FRAME_OPEN, s->id, request, sizeof request - 1);
    source_open(&p->source, fd, EPOLLIN, pipe_ready);
}

void server_listen(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) return;
    strcpy(address.sun_path, path);
    parents_make(path);
    unlink(path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return;
    /* Any user inside may connect; the host decides what for. */
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || chmod(path, 0666) != 0 || listen(fd, 64) != 0 ||
        !source_open(&server_socket, fd, EPOLLIN, server_knock)) close(fd);
}

#include "conn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "frame.h"
#include "loop.h"
#include "ops.h"
#include "proof.h"
#include "stream.h"

enum { PROTOCOL = 1, MAX_UNPROVEN = 4, PROOF_MS = 5000, MAX_HELLO = 4096, MAX_UNSENT = 1 << 20, MAX_STREAMS = 1024 };

struct conn {
    struct source source; /* first: events give us this address */
    struct timer deadline;
    struct buf in, out;
    uint8_t nonce[32];
    uint32_t last_host_id;
    bool stdio, blocked;
};

static struct conn *live;
static int unproven;
static bool secured;
static uint8_t boot[16], secret[32];

static void random_bytes(void *to, size_t n) {
    while (getrandom(to, n, 0) != (ssize_t)n)
        if (errno != EINTR) _exit(73);
}

void conn_init(void) { random_bytes(boot, sizeof boot); }

bool conn_live(void) { return live != NULL; }

static void conn_drop(struct conn *c) {
    if (c == live) {
        live = NULL;
        streams_end();
    } else if (!c->stdio) {
        unproven--;
    }
    timer_cancel(&c->deadline);
    shutdown(c->source.fd, SHUT_RDWR); /* stdio has a second descriptor: closing one would not tell the host */
    source_close(&c->source);
    buf_free(&c->in);
    buf_free(&c->out);
    free(c);
}

static void put_frame(struct buf *out, uint8_t type, uint8_t channel, uint32_t stream, const void *payload, size_t n) {
    frame_write_header(buf_reserve(out, FRAME_HEADER + n), type, channel, stream, (uint32_t)n);
    out->end += FRAME_HEADER;
    buf_put(out, payload, n);
}

void conn_send(uint8_t type, uint32_t stream, const void *payload, size_t n) {
    if (live) put_frame(&live->out, type, 0, stream, payload, n);
}

void conn_send_eof(uint32_t stream, uint8_t channel) {
    if (live) put_frame(&live->out, FRAME_EOF, channel, stream, NULL, 0);
}

bool conn_congested(void) { return live && buf_len(&live->out) > MAX_UNSENT / 2; }

static void listen_for(struct conn *c) {
    source_want(&c->source, (c->blocked ? EPOLLOUT : 0u) | (buf_len(&c->out) < MAX_UNSENT ? EPOLLIN : 0u));
}

/* False: the connection is broken. */
static bool flush(struct conn *c) {
    while (buf_len(&c->out) && !c->blocked) {
        ssize_t n = send(c->source.fd, buf_at(&c->out), buf_len(&c->out), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) buf_take(&c->out, (size_t)n);
        else if (n < 0 && errno == EAGAIN) c->blocked = true;
        else if (n == 0 || errno != EINTR) return false;
    }
    listen_for(c);
    return true;
}

bool conn_pump(void) {
    for (int turn = 0; live && turn < 4; turn++) {
        if (!live->blocked) streams_fill(&live->out);
        if (!live || !buf_len(&live->out)) break;
        if (!flush(live)) conn_drop(live);
        else if (live->blocked) break;
    }
    return live && !live->blocked && streams_ready();
}

void conn_trim(void) {
    if (!live) return;
    if (!buf_len(&live->in)) buf_free(&live->in);
    if (!buf_len(&live->out)) buf_free(&live->out);
}

static void say_hello(struct conn *c) {
    struct buf b = {0};
    char hex[65];
    json_begin(&b, NULL, '{');
    json_number(&b, "protocol", PROTOCOL);
    json_string(&b, "sbxd", SBXD_VERSION);
    hex_encode(boot, sizeof boot, hex);
    json_string(&b, "boot", hex);
    random_bytes(c->nonce, sizeof c->nonce);
    hex_encode(c->nonce, sizeof c->nonce, hex);
    json_string(&b, "nonce", hex);
    json_flag(&b, "secured", secured);
    json_end(&b, '}');
    put_frame(&c->out, FRAME_HELLO, 0, 0, buf_at(&b), buf_len(&b));
    buf_free(&b);
}

static bool proof_is_right(const struct conn *c, const char *text) {
    uint8_t message[12 + 32 + 16], want[32], got[32];
    memcpy(message, "sbxd-proof-1", 12);
    memcpy(message + 12, c->nonce, 32);
    memcpy(message + 44, boot, 16);
    hmac_sha256(secret, sizeof secret, message, sizeof message, want);
    return text && hex_decode(text, got, sizeof got) && equal_in_constant_time(got, want, sizeof got);
}

static bool wrong_protocol(struct conn *c) {
    static const char text[] = "{\"error\":{\"code\":\"protocol\",\"message\":\"sbxd speaks protocol 1\"}}";
    put_frame(&c->out, FRAME_CLOSE, 0, 0, text, sizeof text - 1);
    flush(c);
    return false;
}

static bool hello(struct conn *c, const struct json *h) {
    bool bad = false;
    const char *offered = json_get_text(h, "secret", NULL, &bad), *proof = json_get_text(h, "proof", NULL, &bad);
    if (h->type != JSON_OBJECT || bad) return false;
    if (json_get_int(h, "protocol", PROTOCOL, PROTOCOL, 0, &bad) != PROTOCOL) return wrong_protocol(c);
    if (c->stdio && !secured) {
        if (!offered || !hex_decode(offered, secret, sizeof secret)) return false;
        secured = true;
    } else if (!proof_is_right(c, proof)) {
        return false;
    }
    if (live) conn_drop(live);
    if (!c->stdio) unproven--;
    timer_cancel(&c->deadline);
    live = c;
    put_frame(&c->out, FRAME_PONG, 0, 0, "ok", 2);
    return true;
}

static bool open_stream(struct conn *c, const struct frame *f, const struct json *request) {
    if (f->stream % 2 == 0 || f->stream <= c->last_host_id || request->type != JSON_OBJECT) return false;
    c->last_host_id = f->stream;
    struct stream *s = stream_open(f->stream);
    if (stream_count() > MAX_STREAMS) stream_error(s, "limit", 0, "more than %d streams are open", MAX_STREAMS);
    else op_start(s, request);
    return true;
}

/* A frame with a JSON payload; the value lives for this call only. */
static bool take_json(struct conn *c, const struct frame *f) {
    struct stream *s = f->type == FRAME_OPEN ? NULL : stream_find(f->stream);
    struct json *j = json_parse(f->payload, f->length);
    bool good = j != NULL;
    if (good && f->type == FRAME_HELLO) good = hello(c, j);
    else if (good && f->type == FRAME_OPEN) good = open_stream(c, f, j);
    else if (good && s && j->type != JSON_OBJECT) good = false;
    else if (good && s && s->ops->control) s->ops->control(s, j);
    else if (good && s) stream_refuse(s, "invalid", "this stream takes no CONTROL");
    json_free(j);
    return good;
}

static bool take_frame(struct conn *c, const struct frame *f) {
    if (c != live) return f->type == FRAME_HELLO && f->length <= MAX_HELLO && take_json(c, f);
    struct stream *s = stream_find(f->stream);
    bool stale = !s && f->stream && f->type != FRAME_OPEN;
    if (f->channel || (stale && f->stream % 2 && f->stream > c->last_host_id)) return false; /* never opened */
    if (stale && f->stream % 2 == 0 && f->stream > server_last_id()) return false;
    switch (f->type) {
    case FRAME_OPEN: case FRAME_CONTROL: return take_json(c, f);
    case FRAME_DATA: return stale || stream_data(s, f->payload, f->length);
    case FRAME_CREDIT: return stale || stream_credit(s, read_u32(f->payload));
    case FRAME_PING: put_frame(&c->out, FRAME_PONG, 0, 0, f->payload, f->length); return true;
    case FRAME_PONG: return true;
    case FRAME_CLOSE:
        if (!f->stream) return false;
        if (s) stream_end(s);
        return true;
    case FRAME_EOF:
        if (stale || s->rx_eof) return stale;
        s->rx_eof = true;
        if (s->ops->eof) s->ops->eof(s);
        return true;
    default: return false; /* a second HELLO, or an EVENT, which only sbxd sends */
    }
}

static bool receive(struct conn *c) {
    size_t most = c == live ? FRAME_HEADER + MAX_PAYLOAD : FRAME_HEADER + MAX_HELLO;
    uint8_t *to = buf_reserve(&c->in, most - buf_len(&c->in));
    ssize_t n = recv(c->source.fd, to, most - buf_len(&c->in), MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    if (n == 0) return false;
    c->in.end += (size_t)n;
    for (struct frame f;;) {
        enum frame_state state = frame_read(buf_at(&c->in), buf_len(&c->in), &f);
        if (state == FRAME_BROKEN || (c != live && state == FRAME_INCOMPLETE && buf_len(&c->in) == most)) return false;
        if (state == FRAME_INCOMPLETE) return true;
        if (!take_frame(c, &f)) return false;
        buf_take(&c->in, FRAME_HEADER + f.length);
    }
}

static void conn_event(struct source *source, uint32_t events) {
    struct conn *c = (struct conn *)source;
    if (events & EPOLLOUT) c->blocked = false;
    bool good = !(events & ~(uint32_t)EPOLLOUT) || receive(c);
    if (!good || !flush(c)) conn_drop(c);
}

static void proof_is_late(struct timer *t) {
    conn_drop((struct conn *)((char *)t - offsetof(struct conn, deadline)));
}

static bool conn_open(int fd, bool stdio) {
    struct conn *c = xalloc(sizeof *c);
    c->stdio = stdio;
    if (!source_open(&c->source, fd, EPOLLIN, conn_event)) {
        free(c);
        return false;
    }
    if (!stdio) {
        unproven++;
        timer_set(&c->deadline, PROOF_MS, proof_is_late);
    }
    say_hello(c);
    if (!flush(c)) conn_drop(c);
    return true;
}

bool conn_stdio(int fd) { return conn_open(fd, true); }

static void knock(struct source *listener, uint32_t events) {
    (void)events;
    struct ucred peer = {.uid = 1};
    socklen_t size = sizeof peer;
    int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    bool root = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == 0;
    if (!root || !secured || unproven >= MAX_UNPROVEN || !conn_open(fd, false)) close(fd);
}

bool conn_listen(const char *abstract_name) {
    static struct source listener;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t n = strlen(abstract_name);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || n >= sizeof address.sun_path) return false;
    memcpy(address.sun_path + 1, abstract_name, n); /* a leading NUL: the abstract namespace */
    if (bind(fd, (struct sockaddr *)&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n)) == 0 &&
        listen(fd, 16) == 0 && source_open(&listener, fd, EPOLLIN, knock)) return true;
    close(fd);
    return false;
}

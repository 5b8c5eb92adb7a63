/* The bytes of a command: pipes or PTY → ring → stream, and stream → stdin. Never starts or signals anything. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "command.h"

enum { READ_SIZE = 65536, TERMINAL_DRAIN = 131072, MAX_INPUT = 4 << 20 };

/* Where output of background processes goes after their command has ended, so that they do not die of SIGPIPE. */
struct sink {
    struct source source;
    const struct keeper *keeper; /* of a terminal: gVisor reports no hang-up, so it is closed with the last process */
    struct sink *next;
};

static struct sink *sinks;

static struct command *owner(struct source *s, size_t offset) { return (struct command *)((char *)s - offset); }

static void sink_close(struct sink *s) {
    struct sink **p = &sinks;
    while (*p != s) p = &(*p)->next;
    *p = s->next;
    source_close(&s->source);
    free(s);
}

/* False: nobody can write there any more. */
static bool swallow(int fd) {
    static char nowhere[READ_SIZE];
    ssize_t n = read(fd, nowhere, sizeof nowhere);
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

static void sink_ready(struct source *source, uint32_t events) {
    (void)events;
    if (!swallow(source->fd)) sink_close((struct sink *)source);
}

static void to_sink(struct command *c, struct source *from) {
    bool wanted = (!c->tty || c->keeper) && swallow(from->fd);
    int fd = wanted ? fcntl(from->fd, F_DUPFD_CLOEXEC, 3) : -1;
    source_close(from);
    if (fd < 0) return;
    struct sink *s = xalloc(sizeof *s);
    source_open(&s->source, fd, EPOLLIN, sink_ready);
    s->keeper = c->tty ? c->keeper : NULL;
    s->next = sinks;
    sinks = s;
}

void output_close_terminals(const struct keeper *k) {
    for (struct sink *s = sinks, *next; s; s = next) {
        next = s->next;
        if (s->keeper == k) sink_close(s);
    }
}

/* One read. False: there was nothing to read or no room for it. */
static bool pull(struct command *c, int i) {
    size_t room;
    struct source *source = &c->out[i];
    uint8_t *to = ring_space(&c->ring, &room);
    if (c->state == COMMAND_ENDED && room > c->drain[i]) room = c->drain[i];
    if (room > READ_SIZE) room = READ_SIZE;
    ssize_t n = room ? read(source->fd, to, room) : 0;
    bool again = n < 0 && (errno == EAGAIN || errno == EINTR);
    if (n > 0) {
        ring_add(&c->ring, (size_t)n, (uint8_t)(i + 1));
        if (c->state == COMMAND_ENDED) c->drain[i] -= (size_t)n;
        if (c->stream) stream_ready(c->stream);
    } else if (room && c->tty && c->state != COMMAND_ENDED) {
        /* EIO: nobody has the terminal open. Its program may open it again, so only the end closes it. */
        if (!again) source_want(source, 0);
        return false;
    } else if (room && c->tty) {
        c->drain[i] = 0;
    } else if (room && !again) {
        source_close(source);
    }
    ring_space(&c->ring, &room);
    if (source->fd >= 0 && !room) source_want(source, 0); /* full: the writer blocks until the host has taken some */
    if (c->state == COMMAND_ENDED && source->fd >= 0 && !c->drain[i]) to_sink(c, source);
    return n > 0 && source->fd >= 0;
}

static void out_ready(struct command *c, int i) {
    pull(c, i);
    output_finish(c);
}

static void out0_ready(struct source *s, uint32_t events) {
    (void)events;
    out_ready(owner(s, offsetof(struct command, out)), 0);
}

static void out1_ready(struct source *s, uint32_t events) {
    (void)events;
    out_ready(owner(s, offsetof(struct command, out) + sizeof *s), 1);
}

static void input_taken(struct command *c, size_t n) {
    size_t stale = n < c->stale_input ? n : c->stale_input;
    c->stale_input -= stale;
    if (c->stream && n > stale) stream_consumed(c->stream, n - stale);
}

void output_input(struct command *c) {
    while (buf_len(&c->input)) {
        ssize_t n = c->in.fd < 0 ? (ssize_t)buf_len(&c->input) : write(c->in.fd, buf_at(&c->input), buf_len(&c->input));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) {
            source_want(&c->in, EPOLLOUT);
            return;
        }
        if (n < 0) source_close(&c->in); /* nobody reads it any more: the rest goes nowhere, and counts as taken */
        if (n <= 0) continue;
        buf_take(&c->input, (size_t)n);
        input_taken(c, (size_t)n);
    }
    buf_free(&c->input);
    if (c->input_ends && c->in.fd >= 0) {
        if (c->tty && write(c->in.fd, "\x04", 1) < 0) source_want(&c->in, 0); /* ^D; a terminal stays open for output */
        source_close(&c->in);
    } else {
        source_want(&c->in, 0);
    }
}

static void in_ready(struct source *s, uint32_t events) {
    (void)events;
    output_input(owner(s, offsetof(struct command, in)));
}

bool output_open(struct command *c, const int fds[3]) {
    bool good = true;
    c->in.fd = c->out[0].fd = c->out[1].fd = -1;
    if (fds[0] >= 0) good &= source_open(&c->in, fds[0], 0, in_ready);
    if (fds[1] >= 0) good &= source_open(&c->out[0], fds[1], 0, out0_ready);
    if (fds[2] >= 0) good &= source_open(&c->out[1], fds[2], 0, out1_ready);
    return good;
}

void output_end(struct command *c) {
    for (int i = 0; i < 2; i++) {
        int waiting = 0;
        if (c->out[i].fd < 0) continue;
        if (!c->tty && ioctl(c->out[i].fd, FIONREAD, &waiting) != 0) waiting = 0;
        c->drain[i] = c->tty ? TERMINAL_DRAIN : (size_t)waiting;
    }
    source_close(&c->in);
    output_input(c);
    for (int i = 0; i < 2; i++)
        while (c->out[i].fd >= 0 && pull(c, i)) continue;
    output_finish(c);
}

void output_finish(struct command *c) {
    struct buf b = {0};
    bool drained = (c->out[0].fd < 0 || !c->drain[0]) && (c->out[1].fd < 0 || !c->drain[1]);
    if (c->state != COMMAND_ENDED || !drained || c->ring.acked != c->ring.head) return;
    ring_free(&c->ring);
    if (!c->stream) return;
    struct stream *s = c->stream;
    json_begin(&b, NULL, '{');
    json_string(&b, "event", "exited");
    if (c->status_known && !c->signal) json_number(&b, "code", c->code);
    else json_null(&b, "code");
    if (c->status_known && c->signal) json_number(&b, "signal", c->signal);
    else json_null(&b, "signal");
    json_flag(&b, "timeout", c->killed_by_deadline);
    json_number(&b, "offset", (int64_t)c->ring.head);
    json_number(&b, "duration_ms", (c->ended_ns - c->started_ns) / 1000000);
    json_end(&b, '}');
    stream_event(s, &b);
    stream_close(s, NULL);
}

void output_acknowledge(struct command *c, uint64_t upto) {
    if (upto > c->ring.acked) c->ring.acked = upto;
    for (int i = 0; i < 2; i++)
        if (c->out[i].fd >= 0 && c->state != COMMAND_STARTING) source_want(&c->out[i], EPOLLIN);
    output_finish(c);
}

static size_t command_fill(struct stream *s, uint8_t *to, size_t room, uint8_t *channel) {
    struct command *c = s->subject;
    const uint8_t *bytes;
    size_t n = ring_get(&c->ring, c->sent, &bytes, channel);
    if (n > room) n = room;
    if (n) memcpy(to, bytes, n);
    c->sent += n;
    return n;
}

static bool command_credited(struct stream *s, uint32_t n) {
    struct command *c = s->subject;
    if (n > c->sent - c->ring.acked) return false;
    output_acknowledge(c, c->ring.acked + n);
    return true;
}

static void command_data(struct stream *s, const uint8_t *bytes, size_t n) {
    struct command *c = s->subject;
    if (c->in.fd < 0 || c->input_ends) {
        stream_consumed(s, n);
        return;
    }
    buf_put(&c->input, bytes, n);
    if (c->state == COMMAND_RUNNING) output_input(c);
}

static void command_eof(struct stream *s) {
    struct command *c = s->subject;
    c->input_ends = true;
    if (c->state == COMMAND_RUNNING) output_input(c);
}

static void resize(struct command *c, const struct json *size) {
    bool bad = !c->tty || c->out[0].fd < 0 || size->type != JSON_OBJECT;
    struct winsize w = {.ws_col = (unsigned short)json_get_int(size, "cols", 0, 65535, 0, &bad),
                        .ws_row = (unsigned short)json_get_int(size, "rows", 0, 65535, 0, &bad)};
    w.ws_col = w.ws_col ? w.ws_col : 80;
    w.ws_row = w.ws_row ? w.ws_row : 24;
    if (bad || ioctl(c->out[0].fd, TIOCSWINSZ, &w) != 0)
        stream_refuse(c->stream, "invalid", "resize takes cols and rows of a command with a tty that runs");
    /* gVisor changes the size without telling anybody, and does not know the terminal's group here: so all hear it. */
    pid_t group = 0;
    if (!bad && (ioctl(c->out[0].fd, TIOCGPGRP, &group) != 0 || group <= 0)) keeper_signal(c->keeper, SIGWINCH, SCOPE_TREE);
}

static void command_control(struct stream *s, const struct json *request) {
    struct command *c = s->subject;
    bool bad = false;
    const char *scope = json_get_text(request, "scope", "tree", &bad);
    int64_t number = json_get_int(request, "signal", 1, 64, 0, &bad);
    const struct json *size = json_get(request, "resize");
    bool kill_all = json_get_bool(request, "kill", false, &bad);
    int where = *scope == 't' ? SCOPE_TREE : *scope == 'g' ? SCOPE_GROUP : SCOPE_MAIN;
    static const char *const names[] = {"tree", "group", "main"};
    bad |= strcmp(scope, names[where]) != 0 || (!number && !size && !kill_all);
    if (bad) stream_refuse(s, "invalid", "CONTROL takes signal (1-64) with scope tree, group or main; resize; or kill");
    else if (!c->keeper || c->state == COMMAND_STARTING) stream_refuse(s, "not_found", "no process of this command is running");
    else if (kill_all) keeper_kill(c->keeper);
    else if (number) keeper_signal(c->keeper, (int)number, where);
    else resize(c, size);
}

static void command_detached(struct stream *s) {
    struct command *c = s->subject;
    if (c) c->stream = NULL;
}

const struct stream_ops command_stream = {
    .fill = command_fill, .data = command_data, .eof = command_eof, .control = command_control,
    .credited = command_credited, .end = command_detached,
};

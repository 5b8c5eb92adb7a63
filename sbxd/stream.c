#include "stream.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conn.h"

enum { BUCKETS = 256, CREDIT_STEP = 65536, ENOUGH = 65536, MAX_CREDIT = 0x7fffffff };

static struct stream *table[BUCKETS];
static struct stream *ready_first, *ready_last, *busy_first;
static int count;

struct stream *stream_find(uint32_t id) {
    struct stream *s = table[id / 2 % BUCKETS];
    while (s && s->id != id) s = s->chain;
    return s;
}

int stream_count(void) { return count; }

struct stream *stream_open(uint32_t id) {
    static const struct stream_ops none;
    struct stream *s = xalloc(sizeof *s), **bucket = &table[id / 2 % BUCKETS];
    *s = (struct stream){.id = id, .ops = &none, .tx_credit = INITIAL_CREDIT, .rx_credit = INITIAL_CREDIT,
                         .chain = *bucket};
    *bucket = s;
    count++;
    return s;
}

void stream_bind(struct stream *s, const struct stream_ops *ops, void *subject) {
    s->ops = ops;
    s->subject = subject;
}

static void leave_queue(struct stream *s) {
    if (!s->queued) return;
    *(s->prev_ready ? &s->prev_ready->next_ready : &ready_first) = s->next_ready;
    *(s->next_ready ? &s->next_ready->prev_ready : &ready_last) = s->prev_ready;
    s->next_ready = s->prev_ready = NULL;
    s->queued = false;
}

static void join_queue(struct stream *s) {
    if (s->queued || !s->wants || !s->tx_credit) return;
    s->queued = true;
    s->prev_ready = ready_last;
    *(ready_last ? &ready_last->next_ready : &ready_first) = s;
    ready_last = s;
}

void stream_ready(struct stream *s) {
    s->wants = true;
    join_queue(s);
}

static void leave_busy(struct stream *s) {
    struct stream **p = &busy_first;
    if (!s->busy) return;
    while (*p != s) p = &(*p)->next_busy;
    *p = s->next_busy;
    s->busy = false;
}

void stream_busy(struct stream *s) {
    if (s->busy) return;
    s->busy = true;
    s->next_busy = busy_first;
    busy_first = s;
}

void stream_end(struct stream *s) {
    struct stream **p = &table[s->id / 2 % BUCKETS];
    while (*p != s) p = &(*p)->chain;
    *p = s->chain;
    count--;
    leave_queue(s);
    leave_busy(s);
    if (s->ops->end) s->ops->end(s);
    free(s);
}

void streams_end(void) {
    for (int i = 0; i < BUCKETS; i++)
        while (table[i]) stream_end(table[i]);
}

void stream_event(struct stream *s, struct buf *json) {
    conn_send(FRAME_EVENT, s->id, buf_at(json), buf_len(json));
    buf_free(json);
}

void stream_send_eof(struct stream *s, uint8_t channel) { conn_send_eof(s->id, channel); }

void stream_close(struct stream *s, struct buf *result) {
    conn_send(FRAME_CLOSE, s->id, result ? (const void *)buf_at(result) : "{}", result ? buf_len(result) : 2);
    if (result) buf_free(result);
    stream_end(s);
}

void error_put(struct buf *b, const char *code, int error, const char *message) {
    json_begin(b, NULL, '{');
    json_begin(b, "error", '{');
    json_string(b, "code", code);
    json_string(b, "message", message);
    if (error) json_number(b, "errno", error);
    json_end(b, '}');
}

void stream_error(struct stream *s, const char *code, int error, const char *format, ...) {
    struct buf b = {0};
    char message[512];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    error_put(&b, code, error, message);
    json_end(&b, '}');
    stream_close(s, &b);
}

void stream_refuse(struct stream *s, const char *code, const char *message) {
    struct buf b = {0};
    error_put(&b, code, 0, message);
    json_string(&b, "event", "refused");
    json_end(&b, '}');
    stream_event(s, &b);
}

const char *error_code(int error) {
    switch (error) {
    case ENOENT: return "not_found";
    case EEXIST: return "exists";
    case ENOTDIR: return "not_a_directory";
    case EISDIR: return "is_a_directory";
    case ENOTEMPTY: return "not_empty";
    case EACCES: case EPERM: return "permission";
    case ENOSPC: return "no_space";
    case EDQUOT: return "quota";
    case ENAMETOOLONG: return "name_too_long";
    case ELOOP: return "loop";
    case EROFS: return "read_only";
    case EXDEV: return "cross_device";
    case EMFILE: case ENFILE: case ENOMEM: case EAGAIN: return "limit";
    case EBUSY: case ETXTBSY: return "busy";
    case ECONNREFUSED: return "refused";
    case ENXIO: case ENODEV: return "not_a_file";
    case E2BIG: return "limit";
    case EINVAL: case ENOEXEC: return "invalid";
    default: return "io";
    }
}

void stream_errno(struct stream *s, int error, const char *what) {
    stream_error(s, error_code(error), error, "%.400s: %s", what, strerror(error));
}

void stream_widen(struct stream *s, uint32_t n) {
    uint8_t amount[4];
    write_u32(amount, n);
    conn_send(FRAME_CREDIT, s->id, amount, 4);
    s->rx_credit += n;
}

void stream_consumed(struct stream *s, size_t n) {
    s->owed += (uint32_t)n;
    if (s->owed < CREDIT_STEP) return; /* what is held back is less than the window, so nobody waits for it */
    stream_widen(s, s->owed);
    s->owed = 0;
}

bool stream_credit(struct stream *s, uint32_t n) {
    if (n > MAX_CREDIT - s->tx_credit) return false;
    s->tx_credit += n;
    join_queue(s);
    return !s->ops->credited || s->ops->credited(s, n);
}

bool stream_data(struct stream *s, const uint8_t *bytes, size_t n) {
    if (n > s->rx_credit || s->rx_eof) return false;
    s->rx_credit -= (uint32_t)n;
    if (s->ops->data) s->ops->data(s, bytes, n);
    else stream_consumed(s, n);
    return true;
}

bool streams_ready(void) { return ready_first != NULL; }

void streams_fill(struct buf *out) {
    while (ready_first && buf_len(out) < ENOUGH) {
        struct stream *s = ready_first;
        size_t room = s->tx_credit < MAX_PAYLOAD ? s->tx_credit : MAX_PAYLOAD;
        uint8_t channel = 0, *frame = buf_reserve(out, FRAME_HEADER + room);
        uint32_t id = s->id;
        leave_queue(s);
        s->wants = false;
        size_t n = s->ops->fill(s, frame + FRAME_HEADER, room, &channel);
        if (!n) continue; /* the stream may be gone now */
        frame_write_header(frame, FRAME_DATA, channel, id, (uint32_t)n);
        out->end += FRAME_HEADER + n;
        s->tx_credit -= (uint32_t)n;
        stream_ready(s);
    }
}

bool streams_step(void) {
    for (struct stream *s = busy_first, *next; s; s = next) {
        next = s->next_busy; /* a step may close its own stream, never another */
        uint32_t id = s->id;
        if (!s->ops->step(s) && (s = stream_find(id))) leave_busy(s);
    }
    return busy_first != NULL;
}

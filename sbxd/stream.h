/* Streams: the table of open ones, credit both ways, and the turn-taking between those that have something to send.
 * A stream lives between OPEN and CLOSE; what it acts on (a command, a file, a port) is its subject. */
#ifndef SBXD_STREAM_H
#define SBXD_STREAM_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "buf.h"
#include "frame.h"
#include "json.h"

struct stream;

/* Every member may be absent. A callback may close its own stream, except `fill` when it returns bytes. */
struct stream_ops {
    /* Puts up to `room` bytes of one channel; 0 = nothing now, and stream_ready() tells when there is. */
    size_t (*fill)(struct stream *s, uint8_t *to, size_t room, uint8_t *channel);
    void (*data)(struct stream *s, const uint8_t *bytes, size_t n); /* owes stream_consumed() for each byte */
    void (*eof)(struct stream *s);
    void (*control)(struct stream *s, const struct json *request);
    bool (*credited)(struct stream *s, uint32_t n); /* false: more than was sent */
    bool (*step)(struct stream *s);                 /* one slice of long work; false: no more to do */
    void (*end)(struct stream *s);                  /* the stream is over, whoever ended it: release the subject */
};

struct stream {
    uint32_t id;
    const struct stream_ops *ops;
    void *subject;
    uint32_t tx_credit, rx_credit, owed;
    bool rx_eof, wants, queued, busy;
    struct stream *chain, *prev_ready, *next_ready, *next_busy;
};

struct stream *stream_open(uint32_t id);
struct stream *stream_find(uint32_t id);
int stream_count(void);
void stream_bind(struct stream *s, const struct stream_ops *ops, void *subject);
void stream_event(struct stream *s, struct buf *json); /* empties `json` */
void stream_send_eof(struct stream *s, uint8_t channel);
void stream_close(struct stream *s, struct buf *result); /* NULL: {} */
void stream_error(struct stream *s, const char *code, int error, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
const char *error_code(int error); /* PROTOCOL.md's code for an errno */
void error_put(struct buf *b, const char *code, int error, const char *message); /* {"error":{…} without the last brace */
void stream_errno(struct stream *s, int error, const char *what); /* the code follows from errno */
void stream_refuse(struct stream *s, const char *code, const char *message); /* a CONTROL that cannot be done */
void stream_ready(struct stream *s);
void stream_busy(struct stream *s);
void stream_consumed(struct stream *s, size_t n);
void stream_widen(struct stream *s, uint32_t n); /* lets the host send that much more, ahead of what is consumed */
bool stream_credit(struct stream *s, uint32_t n); /* false: protocol error */
bool stream_data(struct stream *s, const uint8_t *bytes, size_t n);
void stream_end(struct stream *s); /* the host closed it: no answer */

void streams_end(void);             /* the connection is gone */
bool streams_ready(void);           /* is anything waiting to be sent? */
void streams_fill(struct buf *out); /* frames, one a stream in turn, until enough for a write is there */
bool streams_step(void);            /* one slice for each busy stream; true: some are still busy */
#endif

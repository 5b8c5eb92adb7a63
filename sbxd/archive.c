/* The ops pack and unpack: the answer to what is wrong at once, then a worker. */
#include "archive.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"
#include "ops.h"

enum { NAMED_SKIPS = 100, NAMED_SKIPS_SIZE = 32 << 10, UNPACK_AHEAD = 262144 };

void skip(struct skips *s, const char *path, const char *reason) {
    s->count++;
    if (s->count > NAMED_SKIPS || buf_len(&s->list) > NAMED_SKIPS_SIZE) return;
    if (buf_len(&s->list)) buf_puts(&s->list, ",");
    buf_puts(&s->list, "{");
    json_string(&s->list, "path", *path ? path : "./");
    json_string(&s->list, "reason", reason);
    buf_puts(&s->list, "}");
}

void skips_put(struct buf *result, const struct skips *s) {
    json_begin(result, "skipped", '[');
    buf_put(result, buf_at(&s->list), buf_len(&s->list));
    json_end(result, ']');
    json_number(result, "skipped_count", s->count);
}

void archive_report(struct buf *result, int64_t count, int64_t bytes, const struct skips *s) {
    json_begin(result, NULL, '{');
    json_number(result, "count", count);
    json_number(result, "bytes", bytes);
    skips_put(result, s);
    json_end(result, '}');
}

static void begin(struct stream *s, const struct json *request, bool make, const char *event, work_main *run) {
    bool bad = false;
    struct buf b = {0};
    struct work_order order = {.max_entries = json_get_int(request, "max_entries", 1, INT64_MAX, INT64_MAX, &bad),
                               .max_bytes = json_get_int(request, "max_bytes", 0, INT64_MAX, INT64_MAX, &bad)};
    const char *path = path_of(s, request, "path");
    if (!path) return;
    if (bad) {
        stream_error(s, "invalid", 0, "max_entries is 1 or more, max_bytes 0 or more");
        return;
    }
    int error = make ? parents_make(path) : 0;
    if (!error && make && mkdir(path, 0755) != 0 && errno != EEXIST) error = errno;
    order.directory = error ? -1 : open(path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC);
    if (order.directory < 0) {
        stream_errno(s, error ? error : errno, path);
        return;
    }
    if (!work_start(s, run, &order)) return;
    json_begin(&b, NULL, '{');
    json_string(&b, "event", event);
    json_end(&b, '}');
    stream_event(s, &b);
}

void op_pack(struct stream *s, const struct json *request) { begin(s, request, false, "packing", pack_main); }

void op_unpack(struct stream *s, const struct json *request) {
    uint32_t id = s->id;
    begin(s, request, true, "unpacking", unpack_main);
    if ((s = stream_find(id))) stream_widen(s, UNPACK_AHEAD);
}

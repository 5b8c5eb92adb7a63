/* Reads one frame from stdin with sbxd's own reader and prints it: for the golden test. */
#include <stdio.h>
#include <unistd.h>

#include "../buf.h"
#include "../frame.h"
#include "../json.h"

static void put(struct buf *b, const char *key, const struct json *v) {
    switch (v->type) {
    case JSON_NULL: json_null(b, key); return;
    case JSON_TRUE: case JSON_FALSE: json_flag(b, key, v->type == JSON_TRUE); return;
    case JSON_STRING: json_text(b, key, v->text, v->length); return;
    case JSON_ARRAY: case JSON_OBJECT:
        json_begin(b, key, v->type == JSON_ARRAY ? '[' : '{');
        for (const struct json *m = v->child; m; m = m->next) put(b, m->key, m);
        json_end(b, v->type == JSON_ARRAY ? ']' : '}');
        return;
    default: json_number(b, key, v->number);
    }
}

int main(void) {
    static uint8_t bytes[FRAME_HEADER + MAX_PAYLOAD];
    struct frame f;
    struct buf b = {0};
    size_t n = 0;
    for (ssize_t got; (got = read(0, bytes + n, sizeof bytes - n)) > 0;) n += (size_t)got;
    if (frame_read(bytes, n, &f) != FRAME_READY || n != FRAME_HEADER + f.length) return 1;
    printf("%d %d %u %u\n", f.type, f.channel, f.stream, f.length);
    struct json *j = f.type == FRAME_DATA || f.type == FRAME_PING || f.type == FRAME_PONG ? NULL : json_parse(f.payload, f.length);
    if (j) put(&b, NULL, j);
    else buf_put(&b, f.payload, f.length);
    if (buf_len(&b)) fwrite(buf_at(&b), 1, buf_len(&b), stdout);
    buf_free(&b);
    json_free(j);
    return 0;
}

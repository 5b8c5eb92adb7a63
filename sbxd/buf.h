/* A growable byte buffer that is also a queue: bytes live between `start` and `end`. */
#ifndef SBXD_BUF_H
#define SBXD_BUF_H
#include <stddef.h>
#include <stdint.h>

struct buf {
    uint8_t *data;
    size_t start, end, cap;
};

static inline size_t buf_len(const struct buf *b) { return b->end - b->start; }
static inline uint8_t *buf_at(const struct buf *b) { return b->data + b->start; }

void *xalloc(size_t size); /* zeroed; never returns NULL: without memory sbxd cannot go on */
uint8_t *buf_reserve(struct buf *b, size_t size); /* room for `size` bytes at the end, not yet counted */
void buf_put(struct buf *b, const void *bytes, size_t size);
void buf_puts(struct buf *b, const char *text);
void buf_take(struct buf *b, size_t size); /* drop from the front */
void buf_free(struct buf *b);

/* JSON writing. Bytes that are not UTF-8 become lone surrogates, as Python's surrogateescape reads them.
 * A NULL key writes a bare value. Commas are placed by looking at what stands before. */
void json_begin(struct buf *b, const char *key, char bracket);
void json_end(struct buf *b, char bracket);
void json_text(struct buf *b, const char *key, const char *text, size_t length);
void json_string(struct buf *b, const char *key, const char *text);
void json_number(struct buf *b, const char *key, int64_t value);
void json_flag(struct buf *b, const char *key, int value);
void json_null(struct buf *b, const char *key);
#endif

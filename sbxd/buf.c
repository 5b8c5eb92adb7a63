#include "buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "json.h"

static void out_of_memory(void) {
    static const char text[] = "sbxd: out of memory\n";
    if (write(2, text, sizeof text - 1) < 0) _exit(71);
    _exit(70);
}

void *xalloc(size_t size) {
    void *p = calloc(1, size ? size : 1);
    if (!p) out_of_memory();
    return p;
}

uint8_t *buf_reserve(struct buf *b, size_t size) {
    if (b->start == b->end) b->start = b->end = 0;
    if (b->cap - b->end < size && b->start && b->cap - buf_len(b) >= size && b->start >= buf_len(b)) {
        memmove(b->data, buf_at(b), buf_len(b));
        b->end -= b->start;
        b->start = 0;
    }
    if (b->cap - b->end < size) {
        size_t cap = b->cap ? b->cap : 256;
        while (cap - b->end < size) cap *= 2;
        b->data = realloc(b->data, cap);
        if (!b->data) out_of_memory();
        b->cap = cap;
    }
    return b->data + b->end;
}

void buf_put(struct buf *b, const void *bytes, size_t size) {
    if (!size) return;
    memcpy(buf_reserve(b, size), bytes, size);
    b->end += size;
}

void buf_puts(struct buf *b, const char *text) { buf_put(b, text, strlen(text)); }

void buf_take(struct buf *b, size_t size) {
    b->start += size;
    if (b->start == b->end) b->start = b->end = 0;
}

void buf_free(struct buf *b) {
    free(b->data);
    *b = (struct buf){0};
}

static void escaped(struct buf *b, const uint8_t *s, size_t length) {
    char escape[8];
    buf_puts(b, "\"");
    for (size_t i = 0; i < length;) {
        size_t n = utf8_length(s + i, length - i);
        if (n == 0) { /* not UTF-8: this byte alone becomes U+DC80..U+DCFF */
            snprintf(escape, sizeof escape, "\\udc%02x", s[i++]);
            buf_puts(b, escape);
        } else if (n == 1 && (s[i] < 0x20 || s[i] == '"' || s[i] == '\\' || s[i] == 0x7f)) {
            snprintf(escape, sizeof escape, "\\u%04x", s[i++]);
            buf_puts(b, escape);
        } else {
            buf_put(b, s + i, n);
            i += n;
        }
    }
    buf_puts(b, "\"");
}

static void key_and_comma(struct buf *b, const char *key) {
    uint8_t last = buf_len(b) ? b->data[b->end - 1] : '{';
    if (last != '{' && last != '[' && last != '\n') buf_puts(b, ",");
    if (!key) return;
    escaped(b, (const uint8_t *)key, strlen(key));
    buf_puts(b, ":");
}

void json_begin(struct buf *b, const char *key, char bracket) {
    key_and_comma(b, key);
    buf_put(b, &bracket, 1);
}

void json_end(struct buf *b, char bracket) { buf_put(b, &bracket, 1); }

void json_text(struct buf *b, const char *key, const char *text, size_t length) {
    key_and_comma(b, key);
    escaped(b, (const uint8_t *)text, length);
}

void json_string(struct buf *b, const char *key, const char *text) { json_text(b, key, text, strlen(text)); }

void json_number(struct buf *b, const char *key, int64_t value) {
    char digits[24];
    key_and_comma(b, key);
    snprintf(digits, sizeof digits, "%lld", (long long)value);
    buf_puts(b, digits);
}

void json_flag(struct buf *b, const char *key, int value) {
    key_and_comma(b, key);
    buf_puts(b, value ? "true" : "false");
}

void json_null(struct buf *b, const char *key) {
    key_and_comma(b, key);
    buf_puts(b, "null");
}

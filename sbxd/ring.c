#include "ring.h"

#include <stdlib.h>
#include <string.h>

#include "buf.h"

static int bit(const struct ring *r, uint64_t at) {
    uint32_t i = at & (r->cap - 1);
    return r->second[i / 8] >> i % 8 & 1;
}

static void set_bit(struct ring *r, uint64_t at, int value) {
    uint32_t i = at & (r->cap - 1);
    r->second[i / 8] = (uint8_t)((r->second[i / 8] & ~(1 << i % 8)) | value << i % 8);
}

static void grow(struct ring *r) {
    struct ring old = *r;
    r->cap = !old.cap ? 4096 : old.cap < 65536 ? 65536 : RING_SIZE;
    r->data = xalloc(r->cap + r->cap / 8);
    r->second = r->data + r->cap;
    for (uint64_t at = r->acked; at < r->head; at++) {
        r->data[at & (r->cap - 1)] = old.data[at & (old.cap - 1)];
        set_bit(r, at, bit(&old, at));
    }
    free(old.data);
}

uint8_t *ring_space(struct ring *r, size_t *room) {
    size_t kept = (size_t)(r->head - r->acked);
    if (kept >= r->cap && r->cap < RING_SIZE) grow(r);
    size_t at = r->head & (r->cap - 1), free_bytes = r->cap - kept;
    *room = free_bytes < r->cap - at ? free_bytes : r->cap - at;
    return r->data + at;
}

void ring_add(struct ring *r, size_t n, uint8_t channel) {
    uint64_t end = r->head + n;
    while (r->head < end) {
        if (r->head % 8 == 0 && end - r->head >= 8) {
            r->second[(r->head & (r->cap - 1)) / 8] = channel == 2 ? 0xff : 0;
            r->head += 8;
        } else {
            set_bit(r, r->head++, channel == 2);
        }
    }
}

size_t ring_get(const struct ring *r, uint64_t from, const uint8_t **bytes, uint8_t *channel) {
    if (from >= r->head) return 0;
    int second = bit(r, from);
    uint64_t wrap = (from | (r->cap - 1)) + 1, end = r->head < wrap ? r->head : wrap, at = from;
    while (at < end && bit(r, at) == second)
        at += at % 8 == 0 && end - at >= 8 && r->second[(at & (r->cap - 1)) / 8] == (second ? 0xff : 0) ? 8 : 1;
    *bytes = r->data + (from & (r->cap - 1));
    *channel = second ? 2 : 1;
    return (size_t)(at - from);
}

void ring_free(struct ring *r) {
    free(r->data);
    r->data = r->second = NULL;
    r->cap = 0;
}

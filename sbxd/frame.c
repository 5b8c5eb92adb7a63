#include "frame.h"

#include <stdbool.h>

uint32_t read_u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

void write_u32(uint8_t *p, uint32_t v) {
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> 8 * i);
}

static bool valid(const struct frame *f) {
    bool on_connection = f->type == FRAME_HELLO || f->type == FRAME_PING || f->type == FRAME_PONG;
    bool channelled = f->type == FRAME_DATA || f->type == FRAME_EOF;
    if (f->type < FRAME_HELLO || f->type > FRAME_PONG || f->length > MAX_PAYLOAD) return false;
    if (f->channel > 2 || (f->channel && !channelled)) return false;
    if (on_connection ? f->stream != 0 : f->stream == 0 && f->type != FRAME_CLOSE) return false;
    switch (f->type) {
    case FRAME_DATA: return f->length > 0;
    case FRAME_EOF: return f->length == 0;
    case FRAME_CREDIT: return f->length == 4;
    case FRAME_PING: case FRAME_PONG: return f->length <= MAX_PING;
    default: return f->length > 0;
    }
}

enum frame_state frame_read(const uint8_t *bytes, size_t n, struct frame *out) {
    if (n < FRAME_HEADER) return FRAME_INCOMPLETE;
    *out = (struct frame){.length = read_u32(bytes), .type = bytes[4], .channel = bytes[5],
                          .stream = read_u32(bytes + 8), .payload = bytes + FRAME_HEADER};
    if (bytes[6] || bytes[7] || !valid(out)) return FRAME_BROKEN;
    return n - FRAME_HEADER < out->length ? FRAME_INCOMPLETE : FRAME_READY;
}

void frame_write_header(uint8_t *out, uint8_t type, uint8_t channel, uint32_t stream, uint32_t length) {
    write_u32(out, length);
    out[4] = type;
    out[5] = channel;
    out[6] = out[7] = 0;
    write_u32(out + 8, stream);
}

/* The frame header of PROTOCOL.md: reading, checking and writing it. Never does I/O. */
#ifndef SBXD_FRAME_H
#define SBXD_FRAME_H
#include <stddef.h>
#include <stdint.h>

enum { FRAME_HEADER = 12, MAX_PAYLOAD = 262144, INITIAL_CREDIT = 262144, MAX_PING = 64 };
enum frame_type {
    FRAME_HELLO = 1, FRAME_OPEN, FRAME_DATA, FRAME_EOF, FRAME_CREDIT,
    FRAME_CONTROL, FRAME_EVENT, FRAME_CLOSE, FRAME_PING, FRAME_PONG,
};

struct frame {
    uint32_t length, stream;
    uint8_t type, channel;
    const uint8_t *payload;
};

enum frame_state { FRAME_READY, FRAME_INCOMPLETE, FRAME_BROKEN };

/* Looks at the first bytes of a stream. A bad header is told as soon as its 12 bytes are there. */
enum frame_state frame_read(const uint8_t *bytes, size_t n, struct frame *out);
void frame_write_header(uint8_t *out, uint8_t type, uint8_t channel, uint32_t stream, uint32_t length);
uint32_t read_u32(const uint8_t *p);
void write_u32(uint8_t *p, uint32_t v);
#endif

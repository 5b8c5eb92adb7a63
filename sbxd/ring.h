/* A command's output that the host has not acknowledged yet: at most RING_SIZE bytes, each with its channel,
 * addressed by offset. Memory comes as it is needed and goes with ring_free(). */
#ifndef SBXD_RING_H
#define SBXD_RING_H
#include <stddef.h>
#include <stdint.h>

enum { RING_SIZE = 262144 };

struct ring {
    uint8_t *data, *second; /* second: one bit a byte, set for channel 2 */
    uint32_t cap;
    uint64_t acked, head; /* offsets of the first byte kept and of the next one */
};

uint8_t *ring_space(struct ring *r, size_t *room); /* room = 0: full */
void ring_add(struct ring *r, size_t n, uint8_t channel);
size_t ring_get(const struct ring *r, uint64_t from, const uint8_t **bytes, uint8_t *channel); /* one channel's run */
void ring_free(struct ring *r); /* keeps the offsets */
#endif

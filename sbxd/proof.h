/* SHA-256, HMAC and hex, for the challenge of a reconnect. */
#ifndef SBXD_PROOF_H
#define SBXD_PROOF_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void sha256(const void *bytes, size_t n, uint8_t out[32]);
void hmac_sha256(const uint8_t *key, size_t key_size, const void *message, size_t n, uint8_t out[32]);
bool equal_in_constant_time(const uint8_t *a, const uint8_t *b, size_t n);
void hex_encode(const uint8_t *bytes, size_t n, char *out); /* out: 2n + 1 */
bool hex_decode(const char *text, uint8_t *out, size_t n);  /* exactly 2n digits */
#endif

#include "proof.h"

#include <string.h>

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

struct sha {
    uint32_t h[8];
    uint8_t block[64];
    uint64_t total;
};

static uint32_t rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void compress(struct sha *s) {
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)s->block[4 * i] << 24 | (uint32_t)s->block[4 * i + 1] << 16 |
               (uint32_t)s->block[4 * i + 2] << 8 | s->block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + w[i - 7] +
               (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
    memcpy(v, s->h, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t t1 = v[7] + (rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25)) +
                      ((v[4] & v[5]) ^ (~v[4] & v[6])) + K[i] + w[i];
        uint32_t t2 = (rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22)) +
                      ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) s->h[i] += v[i];
}

static void sha_begin(struct sha *s) {
    *s = (struct sha){.h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                            0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

static void sha_add(struct sha *s, const void *bytes, size_t n) {
    const uint8_t *p = bytes;
    for (size_t i = 0; i < n; i++) {
        s->block[s->total++ % 64] = p[i];
        if (s->total % 64 == 0) compress(s);
    }
}

static void sha_end(struct sha *s, uint8_t out[32]) {
    uint64_t bits = s->total * 8;
    uint8_t size[8];
    for (int i = 0; i < 8; i++) size[i] = (uint8_t)(bits >> (56 - 8 * i));
    sha_add(s, "\x80", 1);
    while (s->total % 64 != 56) sha_add(s, "", 1);
    sha_add(s, size, 8);
    for (int i = 0; i < 32; i++) out[i] = (uint8_t)(s->h[i / 4] >> (24 - 8 * (i % 4)));
}

void sha256(const void *bytes, size_t n, uint8_t out[32]) {
    struct sha s;
    sha_begin(&s);
    sha_add(&s, bytes, n);
    sha_end(&s, out);
}

void hmac_sha256(const uint8_t *key, size_t key_size, const void *message, size_t n, uint8_t out[32]) {
    uint8_t pad[64] = {0};
    struct sha s;
    if (key_size > sizeof pad) sha256(key, key_size, pad);
    else memcpy(pad, key, key_size);
    for (int i = 0; i < 64; i++) pad[i] ^= 0x36;
    sha_begin(&s);
    sha_add(&s, pad, 64);
    sha_add(&s, message, n);
    sha_end(&s, out);
    for (int i = 0; i < 64; i++) pad[i] ^= 0x36 ^ 0x5c;
    sha_begin(&s);
    sha_add(&s, pad, 64);
    sha_add(&s, out, 32);
    sha_end(&s, out);
}

bool equal_in_constant_time(const uint8_t *a, const uint8_t *b, size_t n) {
    volatile uint8_t difference = 0;
    for (size_t i = 0; i < n; i++) difference = difference | (a[i] ^ b[i]);
    return difference == 0;
}

void hex_encode(const uint8_t *bytes, size_t n, char *out) {
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = "0123456789abcdef"[bytes[i] >> 4];
        out[2 * i + 1] = "0123456789abcdef"[bytes[i] & 15];
    }
    out[2 * n] = 0;
}

bool hex_decode(const char *text, uint8_t *out, size_t n) {
    if (strlen(text) != 2 * n) return false;
    for (size_t i = 0; i < 2 * n; i++) {
        char c = text[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0) return false;
        out[i / 2] = (uint8_t)(i % 2 ? out[i / 2] | digit : digit << 4);
    }
    return true;
}

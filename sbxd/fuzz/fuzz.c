/* Mutates golden frames and feeds them to the frame and JSON readers, and tar headers to theirs, under ASAN and UBSAN.
 * What is checked beside memory: a JSON value that was read is written and read again to the same text, and a tar
 * entry to the same entry. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../buf.h"
#include "../frame.h"
#include "../json.h"
#include "../proof.h"
#include "../tar.h"

enum { MOST = FRAME_HEADER + MAX_PAYLOAD, SEEDS = 256 };

static struct buf seeds[SEEDS];
static size_t seed_count;
static uint64_t state;

static uint64_t draw(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void put(struct buf *b, const char *key, size_t key_length, const struct json *v) {
    if (key) { /* keys may hold NUL: written as a text, then the colon */
        json_text(b, NULL, key, key_length);
        buf_puts(b, ":");
        struct buf inner = {0};
        put(&inner, NULL, 0, v);
        buf_put(b, buf_at(&inner), buf_len(&inner));
        buf_free(&inner);
        return;
    }
    if (v->type == JSON_STRING) json_text(b, NULL, v->text, v->length);
    else if (v->type == JSON_INT) json_number(b, NULL, v->number);
    else if (v->type == JSON_TRUE || v->type == JSON_FALSE) json_flag(b, NULL, v->type == JSON_TRUE);
    else if (v->type != JSON_ARRAY && v->type != JSON_OBJECT) json_null(b, NULL);
    else {
        json_begin(b, NULL, v->type == JSON_ARRAY ? '[' : '{');
        for (const struct json *m = v->child; m; m = m->next) put(b, m->key, m->key ? strlen(m->key) : 0, m);
        json_end(b, v->type == JSON_ARRAY ? ']' : '}');
    }
}

static void try_json(const uint8_t *bytes, size_t n) {
    uint8_t *exact = malloc(n ? n : 1); /* its own block: one byte too far is seen */
    memcpy(exact, bytes, n);
    struct json *first = json_parse(exact, n);
    free(exact);
    if (!first) return;
    struct buf a = {0}, b = {0};
    bool bad = false;
    put(&a, NULL, 0, first);
    json_get_text(first, "op", "", &bad);
    json_get_int(first, "from", 0, 1000, 0, &bad);
    struct json *second = json_parse(buf_at(&a), buf_len(&a));
    if (!second) abort();
    put(&b, NULL, 0, second);
    if (buf_len(&a) != buf_len(&b) || memcmp(buf_at(&a), buf_at(&b), buf_len(&a)) != 0) abort();
    buf_free(&a);
    buf_free(&b);
    json_free(first);
    json_free(second);
}

static void try_frame(const uint8_t *bytes, size_t n) {
    uint8_t *exact = malloc(n ? n : 1), header[FRAME_HEADER];
    struct frame f;
    memcpy(exact, bytes, n);
    if (frame_read(exact, n, &f) == FRAME_READY) {
        frame_write_header(header, f.type, f.channel, f.stream, f.length);
        if (memcmp(header, exact, FRAME_HEADER) != 0) abort();
        try_json(f.payload, f.length);
    }
    free(exact);
    if (n > FRAME_HEADER) try_json(bytes + FRAME_HEADER, n - FRAME_HEADER);
}

/* Reads as unpacking does: extended headers, then the plain one. */
static bool read_entry(const uint8_t *bytes, size_t n, struct tar_entry *e) {
    static struct tar_entry header;
    memset(e, 0, sizeof *e);
    for (size_t at = 0; n - at >= TAR_BLOCK;) {
        uint8_t *exact = malloc(TAR_BLOCK);
        memcpy(exact, bytes + at, TAR_BLOCK);
        bool extended = tar_is_extended(exact);
        enum tar_state found = tar_read(exact, extended ? &header : e);
        free(exact);
        at += TAR_BLOCK;
        if (found != TAR_READY) return false;
        if (!extended) return true;
        if (header.size < 0 || (uint64_t)header.size > n - at) return false;
        char *text = malloc((size_t)header.size + 1);
        memcpy(text, bytes + at, (size_t)header.size);
        char *tight = realloc(text, header.size ? (size_t)header.size : 1);
        bool good = header.type != TAR_PAX || tar_read_pax(tight, (size_t)header.size, e);
        if (header.type == TAR_LONG_NAME || header.type == TAR_LONG_LINK)
            tar_read_long(tight, (size_t)header.size, e, header.type == TAR_LONG_LINK);
        free(tight);
        at += (size_t)(header.size + tar_padding(header.size));
        if (!good || at > n) return false;
    }
    return false;
}

/* A header with the right sum over a mutated block, or the sum as it comes. */
static void try_tar(uint8_t *bytes, size_t n) {
    static struct tar_entry first, second;
    struct buf out = {0};
    for (size_t at = 0; draw() % 8 && at + TAR_BLOCK <= n; at += TAR_BLOCK) {
        unsigned sum = 8 * ' ';
        for (size_t i = 0; i < TAR_BLOCK; i++) sum += i >= 148 && i < 156 ? 0 : bytes[at + i];
        snprintf((char *)bytes + at + 148, 8, "%06o", sum);
    }
    if (!read_entry(bytes, n, &first) || first.unusable || first.sparse) return;
    tar_write(&out, &first, NULL);
    if (!read_entry(buf_at(&out), buf_len(&out), &second)) abort();
    if (strcmp(first.name, second.name) || strcmp(first.link, second.link) || first.size != second.size ||
        first.mode != second.mode || first.mtime_s != second.mtime_s || first.mtime_ns != second.mtime_ns) abort();
    buf_free(&out);
}

/* A tar header, or three, of made-up entries. */
static size_t make_tar(uint8_t *to) {
    static struct tar_entry e;
    struct buf out = {0};
    memset(&e, 0, sizeof e);
    e.type = "0123456S7V"[draw() % 10];
    for (size_t i = 0, n = draw() % 4 ? draw() % 120 : draw() % 4095; i < n; i++) e.name[i] = (char)(draw() % 255 + 1);
    for (size_t i = 0, n = draw() % 4 ? 0 : draw() % 300; i < n; i++) e.link[i] = (char)(draw() % 255 + 1);
    e.size = (int64_t)(draw() >> (1 + draw() % 63));
    e.mtime_s = (int64_t)draw() >> draw() % 63;
    e.mtime_ns = draw() % 2 ? (uint32_t)(draw() % 1000000000) : 0;
    e.mode = (uint32_t)draw() & 07777;
    tar_write(&out, &e, NULL);
    size_t n = buf_len(&out);
    memcpy(to, buf_at(&out), n);
    buf_free(&out);
    for (uint64_t rounds = draw() % 4; rounds; rounds--) to[draw() % n] = (uint8_t)draw();
    return n;
}

static size_t mutate(uint8_t *to) {
    static const char *const bits[] = {"{", "}", "[", "]", "\"", ",", ":", "\\u", "\\udc80", "\\ud83c\\udfdd", "null",
                                       "-", "1e9", "9223372036854775807", "\\\"", "\xff", "\xf0\x9f", "[[[[[[[[[[[[[[[["};
    const struct buf *seed = &seeds[draw() % seed_count], *other = &seeds[draw() % seed_count];
    size_t n = buf_len(seed);
    memcpy(to, buf_at(seed), n);
    for (uint64_t rounds = 1 + draw() % 6; rounds; rounds--) {
        size_t at = draw() % (n + 1), left = n - at;
        const char *bit = bits[draw() % (sizeof bits / sizeof *bits)];
        size_t bit_length = strlen(bit), span = left ? draw() % left : 0;
        switch (draw() % 5) {
        case 0: if (left) to[at] ^= (uint8_t)(1 << draw() % 8); break;
        case 1: if (left) to[at] = (uint8_t)draw(); break;
        case 2: memmove(to + at, to + at + span, left - span); n -= span; break;
        case 3:
            if (n + bit_length > MOST) break;
            memmove(to + at + bit_length, to + at, left);
            memcpy(to + at, bit, bit_length);
            n += bit_length;
            break;
        default:
            span = draw() % (buf_len(other) + 1);
            if (at + span > MOST) break;
            memcpy(to + at, buf_at(other), span);
            if (at + span > n) n = at + span;
        }
    }
    if (n >= FRAME_HEADER && draw() % 2) write_u32(to, (uint32_t)(n - FRAME_HEADER));
    return n;
}

static void read_seeds(const char *path) {
    FILE *file = fopen(path, "r");
    static char line[2 << 20];
    while (file && fgets(line, sizeof line, file)) {
        char *at = strstr(line, "\"hex\": \""), *end;
        if (!at || seed_count == SEEDS || !(end = strchr(at += 8, '"'))) continue;
        *end = 0;
        size_t n = (size_t)(end - at) / 2;
        if (!hex_decode(at, buf_reserve(&seeds[seed_count], n), n)) abort();
        seeds[seed_count++].end += n;
    }
    if (!seed_count) abort();
    fclose(file);
}

int main(int argc, char **argv) {
    static uint8_t bytes[MOST];
    int seconds = argc > 2 ? atoi(argv[2]) : 60;
    if (argc < 2) return 2;
    read_seeds(argv[1]);
    state = argc > 3 ? strtoull(argv[3], NULL, 10) : (uint64_t)time(NULL) * 2654435761u + (uint64_t)getpid();
    printf("fuzzing for %d s, seed %llu\n", seconds, (unsigned long long)state);
    fflush(stdout);
    uint64_t tried = 0;
    for (time_t stop = time(NULL) + seconds; time(NULL) < stop;)
        for (int i = 0; i < 1000; i++, tried += 2) {
            try_frame(bytes, mutate(bytes));
            try_tar(bytes, make_tar(bytes));
        }
    for (size_t i = 0; i < SEEDS; i++) buf_free(&seeds[i]);
    printf("%llu inputs, nothing found\n", (unsigned long long)tried);
    return 0;
}

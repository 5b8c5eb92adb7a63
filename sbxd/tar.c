#include "tar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

enum { NAME = 0, MODE = 100, UID = 108, GID = 116, SIZE = 124, MTIME = 136, SUM = 148, TYPE = 156, LINK = 157,
       MAGIC = 257, PREFIX = 345, SPARSE_CONTINUED = 482 };
static const int64_t MOST_OCTAL = 077777777777; /* 11 digits */

/* Octal, or GNU's base 256 for what does not fit. */
static bool read_number(const uint8_t *at, size_t n, int64_t *out) {
    uint64_t v = 0;
    size_t i = 0;
    if (*at & 0x80) {
        uint8_t flip = *at & 0x40 ? 0xff : 0; /* negative */
        v = (*at ^ flip) & 0x3f;
        for (i = 1; i < n; i++) {
            if (v >> 55) return false;
            v = v << 8 | (uint8_t)(at[i] ^ flip);
        }
        *out = flip ? -(int64_t)v - 1 : (int64_t)v;
        return true;
    }
    while (i < n && at[i] == ' ') i++;
    for (; i < n && at[i] >= '0' && at[i] <= '7'; i++) v = v << 3 | (uint64_t)(at[i] - '0'); /* 12 digits at most */
    *out = (int64_t)v;
    return i == n || at[i] == ' ' || at[i] == 0;
}

static bool sum_is_right(const uint8_t *block) {
    int64_t said;
    int plain = 0, with_signs = 0; /* some old writers summed signed characters */
    for (int i = 0; i < TAR_BLOCK; i++) {
        uint8_t c = i >= SUM && i < SUM + 8 ? ' ' : block[i];
        plain += c;
        with_signs += (int8_t)c;
    }
    return read_number(block + SUM, 8, &said) && (said == plain || said == with_signs);
}

static bool set_name(char to[PATH_MAX], const char *text, size_t n, struct tar_entry *e) {
    if (n >= PATH_MAX || memchr(text, 0, n)) {
        e->unusable = true;
        n = strnlen(text, n < PATH_MAX ? n : 80); /* enough to tell which one it was */
    }
    memcpy(to, text, n);
    to[n] = 0;
    return true;
}

static void read_names(const uint8_t *block, struct tar_entry *e) {
    const char *text = (const char *)block;
    bool ustar = memcmp(text + MAGIC, "ustar\0", 6) == 0; /* GNU's own magic has other things where the prefix is */
    if (!e->long_link) snprintf(e->link, sizeof e->link, "%.100s", text + LINK);
    if (e->long_name) return;
    if (ustar && text[PREFIX]) snprintf(e->name, sizeof e->name, "%.155s/%.100s", text + PREFIX, text + NAME);
    else snprintf(e->name, sizeof e->name, "%.100s", text + NAME);
}

enum tar_state tar_read(const uint8_t block[TAR_BLOCK], struct tar_entry *e) {
    int64_t size, mtime, mode, uid, gid;
    size_t zeros = 0;
    while (zeros < TAR_BLOCK && !block[zeros]) zeros++;
    if (zeros == TAR_BLOCK) return TAR_END;
    if (!sum_is_right(block) || !read_number(block + SIZE, 12, &size) || !read_number(block + MTIME, 12, &mtime) ||
        !read_number(block + MODE, 8, &mode)) return TAR_BROKEN;
    if (!read_number(block + UID, 8, &uid)) uid = 0;
    if (!read_number(block + GID, 8, &gid)) gid = 0;
    e->type = block[TYPE] == 0 || block[TYPE] == '7' ? TAR_FILE : block[TYPE];
    e->mode = (uint32_t)mode & 07777;
    e->uid = (uint32_t)uid;
    e->gid = (uint32_t)gid;
    if (!e->has_size) e->size = size;
    if (!e->has_mtime) e->mtime_s = mtime;
    if (e->size < 0 || e->size > INT64_MAX - TAR_BLOCK) return TAR_BROKEN; /* with its padding it is a number still */
    if (e->type == TAR_SPARSE) e->sparse = true;
    e->continued = e->type == TAR_SPARSE && block[SPARSE_CONTINUED];
    read_names(block, e);
    size_t n = strlen(e->name);
    if (e->type == TAR_FILE && !e->size && n && e->name[n - 1] == '/') e->type = TAR_DIR; /* from before directories had a type */
    return TAR_READY;
}

bool tar_is_extended(const uint8_t block[TAR_BLOCK]) {
    return block[TYPE] == TAR_PAX || block[TYPE] == TAR_PAX_GLOBAL || block[TYPE] == TAR_LONG_NAME || block[TYPE] == TAR_LONG_LINK;
}

bool tar_has_data(const struct tar_entry *e) { return e->type < TAR_HARD_LINK || e->type > TAR_FIFO; }

static bool read_decimal(const char *text, size_t n, int64_t *whole, uint32_t *nanoseconds) {
    bool negative = n && *text == '-';
    size_t i = negative, digits = 0;
    uint64_t v = 0;
    uint32_t fraction = 0, unit = 100000000;
    for (; i < n && text[i] >= '0' && text[i] <= '9'; i++, digits++) {
        if (v > INT64_MAX / 10 - 1) return false;
        v = v * 10 + (uint64_t)(text[i] - '0');
    }
    if (i < n && text[i] == '.')
        for (i++; i < n && text[i] >= '0' && text[i] <= '9'; i++, unit /= 10) fraction += unit * (uint32_t)(text[i] - '0');
    if (!digits || i != n) return false;
    *whole = negative ? -(int64_t)v : (int64_t)v;
    if (negative && fraction) { /* nanoseconds count upwards from the second before */
        *whole -= 1;
        fraction = 1000000000 - fraction;
    }
    *nanoseconds = fraction;
    return true;
}

static bool key_is(const char *key, size_t n, const char *wanted) { return strlen(wanted) == n && !memcmp(key, wanted, n); }

static bool take_record(const char *key, size_t key_length, const char *value, size_t n, struct tar_entry *e) {
    uint32_t fraction;
    if (key_is(key, key_length, "path")) return e->long_name = set_name(e->name, value, n, e);
    if (key_is(key, key_length, "linkpath")) return e->long_link = set_name(e->link, value, n, e);
    if (key_is(key, key_length, "size")) return e->has_size = read_decimal(value, n, &e->size, &fraction) && e->size >= 0;
    if (key_is(key, key_length, "mtime")) return e->has_mtime = read_decimal(value, n, &e->mtime_s, &e->mtime_ns);
    if (key_length > 11 && !memcmp(key, "GNU.sparse.", 11)) e->sparse = true;
    return true;
}

/* Records are "length key=value\n", the length counting itself. */
bool tar_read_pax(const char *text, size_t n, struct tar_entry *e) {
    while (n && *text) { /* some writers pad with NUL */
        size_t length = 0, i = 0;
        for (; i < n && i < 8 && text[i] >= '0' && text[i] <= '9'; i++) length = length * 10 + (size_t)(text[i] - '0');
        if (!i || i >= n || text[i] != ' ' || length > n || length < i + 3 || text[length - 1] != '\n') return false;
        const char *key = text + i + 1, *equals = memchr(key, '=', length - i - 2);
        if (!equals || !take_record(key, (size_t)(equals - key), equals + 1, (size_t)(text + length - 1 - equals - 1), e))
            return false;
        text += length;
        n -= length;
    }
    return true;
}

void tar_read_long(const char *text, size_t n, struct tar_entry *e, bool link) {
    size_t length = strnlen(text, n);
    if (link) e->long_link = set_name(e->link, text, length, e);
    else e->long_name = set_name(e->name, text, length, e);
}

void tar_put_record(struct buf *pax, const char *key, const char *value, size_t n) {
    char head[96];
    size_t bare = strlen(key) + n + 3, length = bare + 1;
    while (snprintf(head, sizeof head, "%zu", length) + bare != length) length++;
    buf_put(pax, head, (size_t)snprintf(head, sizeof head, "%zu %s=", length, key));
    buf_put(pax, value, n);
    buf_puts(pax, "\n");
}

static bool is_utf8(const char *text) {
    size_t left = strlen(text), n;
    for (; left; text += n, left -= n)
        if (!(n = utf8_length((const uint8_t *)text, left))) return false;
    return true;
}

static void put_number_record(struct buf *pax, const char *key, int64_t value) {
    char digits[24];
    tar_put_record(pax, key, digits, (size_t)snprintf(digits, sizeof digits, "%lld", (long long)value));
}

static void put_mtime_record(struct buf *pax, const struct tar_entry *e) {
    char digits[48];
    bool below = e->mtime_s < 0 && e->mtime_ns; /* written as -seconds.fraction, both counting down from zero */
    int64_t whole = e->mtime_s + below;
    uint32_t fraction = below ? 1000000000 - e->mtime_ns : e->mtime_ns;
    int n = snprintf(digits, sizeof digits, "%s%lld.%09u", below && !whole ? "-" : "", (long long)whole, fraction);
    tar_put_record(pax, "mtime", digits, (size_t)n);
}

static void put_field(uint8_t *at, int digits, int64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%0*llo", digits, (unsigned long long)value);
    memcpy(at, text, (size_t)digits);
}

static int64_t at_most(int64_t value, int64_t most) { return value < 0 ? 0 : value > most ? most : value; }

static void put_header(struct buf *out, int type, const char *name, const struct tar_entry *e, int64_t size) {
    uint8_t *block = buf_reserve(out, TAR_BLOCK);
    int sum = 0;
    memset(block, 0, TAR_BLOCK);
    memcpy(block + NAME, name, strnlen(name, 100));
    put_field(block + MODE, 7, e->mode & 07777);
    put_field(block + UID, 7, at_most(e->uid, 07777777));
    put_field(block + GID, 7, at_most(e->gid, 07777777));
    put_field(block + SIZE, 11, at_most(size, MOST_OCTAL));
    put_field(block + MTIME, 11, at_most(e->mtime_s, MOST_OCTAL));
    block[TYPE] = (uint8_t)type;
    if (type != TAR_PAX) memcpy(block + LINK, e->link, strnlen(e->link, 100));
    memcpy(block + MAGIC, "ustar\00000", 8);
    memset(block + SUM, ' ', 8);
    for (int i = 0; i < TAR_BLOCK; i++) sum += block[i];
    put_field(block + SUM, 6, sum);
    block[SUM + 6] = 0;
    out->end += TAR_BLOCK;
}

void tar_write(struct buf *out, const struct tar_entry *e, const struct buf *more) {
    static const uint8_t zeros[TAR_BLOCK];
    struct buf pax = {0};
    bool long_name = strlen(e->name) > 100, long_link = strlen(e->link) > 100;
    if ((long_name && !is_utf8(e->name)) || (long_link && !is_utf8(e->link))) tar_put_record(&pax, "hdrcharset", "BINARY", 6);
    if (long_name) tar_put_record(&pax, "path", e->name, strlen(e->name));
    if (long_link) tar_put_record(&pax, "linkpath", e->link, strlen(e->link));
    if (e->size > MOST_OCTAL) put_number_record(&pax, "size", e->size);
    if (e->uid > 07777777) put_number_record(&pax, "uid", e->uid);
    if (e->gid > 07777777) put_number_record(&pax, "gid", e->gid);
    if (e->mtime_ns || e->mtime_s < 0 || e->mtime_s > MOST_OCTAL) put_mtime_record(&pax, e);
    if (more) buf_put(&pax, buf_at(more), buf_len(more));
    size_t n = buf_len(&pax);
    if (n) {
        put_header(out, TAR_PAX, "PaxHeaders/entry", e, (int64_t)n);
        buf_put(out, buf_at(&pax), n);
        buf_put(out, zeros, (size_t)tar_padding((int64_t)n));
    }
    buf_free(&pax);
    put_header(out, e->type, e->name, e, e->size);
}

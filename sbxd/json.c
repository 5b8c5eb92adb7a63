#include "json.h"

#include <stdlib.h>
#include <string.h>

#include "buf.h"

/* One allocation holds the values and, behind them, the decoded texts. */
struct reader {
    const uint8_t *at, *end;
    struct json *values;
    size_t used, limit;
    char *text;
};

size_t utf8_length(const uint8_t *s, size_t n) {
    if (n && s[0] < 0x80) return 1;
    size_t need = n && s[0] >= 0xc2 && s[0] < 0xe0 ? 2 : n && s[0] >= 0xe0 && s[0] < 0xf0 ? 3
                : n && s[0] >= 0xf0 && s[0] < 0xf5 ? 4 : 0;
    if (!need || n < need) return 0;
    for (size_t i = 1; i < need; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f)) return 0; /* overlong, surrogates */
    if ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f)) return 0;
    return need;
}

static void skip_space(struct reader *r) {
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r')) r->at++;
}

static bool take(struct reader *r, char c) {
    if (r->at == r->end || *r->at != (uint8_t)c) return false;
    r->at++;
    return true;
}

static bool hex4(struct reader *r, uint32_t *out) {
    if (r->end - r->at < 4) return false;
    *out = 0;
    for (int i = 0; i < 4; i++) {
        uint8_t c = *r->at++;
        uint32_t digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
                       : c >= 'A' && c <= 'F' ? c - 'A' + 10 : 16;
        if (digit > 15) return false;
        *out = *out << 4 | digit;
    }
    return true;
}

static void put_utf8(struct reader *r, uint32_t c) {
    if (c < 0x80) {
        *r->text++ = (char)c;
    } else if (c < 0x800) {
        *r->text++ = (char)(0xc0 | c >> 6);
        *r->text++ = (char)(0x80 | (c & 0x3f));
    } else {
        if (c >= 0x10000) {
            *r->text++ = (char)(0xf0 | c >> 18);
            *r->text++ = (char)(0x80 | (c >> 12 & 0x3f));
        } else {
            *r->text++ = (char)(0xe0 | c >> 12);
        }
        *r->text++ = (char)(0x80 | (c >> 6 & 0x3f));
        *r->text++ = (char)(0x80 | (c & 0x3f));
    }
}

static bool unicode_escape(struct reader *r) {
    uint32_t c, low;
    if (!hex4(r, &c)) return false;
    if (c >= 0xdc80 && c <= 0xdcff) { /* surrogateescape: a raw byte */
        *r->text++ = (char)(c & 0xff);
        return true;
    }
    if (c >= 0xd800 && c <= 0xdbff) {
        if (!take(r, '\\') || !take(r, 'u') || !hex4(r, &low) || low < 0xdc00 || low > 0xdfff) return false;
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    } else if (c >= 0xdc00 && c <= 0xdfff) {
        return false;
    }
    put_utf8(r, c);
    return true;
}

static bool escape(struct reader *r) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (r->at == r->end) return false;
    uint8_t c = *r->at++;
    if (c == 'u') return unicode_escape(r);
    const char *found = c ? strchr(from, c) : NULL;
    if (!found) return false;
    *r->text++ = to[found - from];
    return true;
}

/* The decoded form is never longer than the written one, so the text area (input size) cannot overflow. */
static bool string(struct reader *r, char **text, size_t *length, bool *has_nul) {
    if (!take(r, '"')) return false;
    *text = r->text;
    while (r->at < r->end && *r->at != '"') {
        size_t n = utf8_length(r->at, (size_t)(r->end - r->at));
        if (n == 0 || *r->at < 0x20) return false;
        if (n == 1 && *r->at == '\\') {
            r->at++;
            if (!escape(r)) return false;
            continue;
        }
        while (n--) *r->text++ = (char)*r->at++;
    }
    *length = (size_t)(r->text - *text);
    *has_nul = memchr(*text, 0, *length) != NULL;
    *r->text++ = 0;
    return take(r, '"');
}

static bool digits(struct reader *r) {
    const uint8_t *start = r->at;
    while (r->at < r->end && *r->at >= '0' && *r->at <= '9') r->at++;
    return r->at > start;
}

static bool number(struct reader *r, struct json *v) {
    bool negative = take(r, '-');
    const uint8_t *start = r->at;
    if (!digits(r) || (*start == '0' && r->at - start > 1)) return false;
    v->type = JSON_INT;
    for (const uint8_t *p = start; p < r->at; p++) {
        if (__builtin_mul_overflow(v->number, 10, &v->number)) v->type = JSON_REAL;
        else if (__builtin_sub_overflow(v->number, *p - '0', &v->number)) v->type = JSON_REAL;
    }
    if (!negative && (v->type == JSON_REAL || v->number == INT64_MIN)) v->type = JSON_REAL;
    else if (!negative) v->number = -v->number;
    if (take(r, '.')) {
        v->type = JSON_REAL;
        if (!digits(r)) return false;
    }
    if (take(r, 'e') || take(r, 'E')) {
        v->type = JSON_REAL;
        if (!take(r, '+')) take(r, '-');
        if (!digits(r)) return false;
    }
    return true;
}

static bool word(struct reader *r, const char *text) {
    size_t n = strlen(text);
    if ((size_t)(r->end - r->at) < n || memcmp(r->at, text, n) != 0) return false;
    r->at += n;
    return true;
}

static struct json *value(struct reader *r, int depth);

static bool members(struct reader *r, struct json *parent, int depth) {
    bool object = parent->type == JSON_OBJECT;
    char close = object ? '}' : ']';
    struct json **tail = &parent->child;
    skip_space(r);
    if (take(r, close)) return true;
    for (;;) {
        char *key = NULL;
        size_t key_length = 0;
        bool key_has_nul = false;
        skip_space(r);
        if (object) {
            if (!string(r, &key, &key_length, &key_has_nul)) return false;
            skip_space(r);
            if (!take(r, ':')) return false;
        }
        struct json *v = value(r, depth + 1);
        if (!v) return false;
        v->key = key;
        v->key_has_nul = key_has_nul;
        *tail = v;
        tail = &v->next;
        parent->length++;
        skip_space(r);
        if (take(r, close)) return true;
        if (!take(r, ',')) return false;
    }
}

static struct json *value(struct reader *r, int depth) {
    skip_space(r);
    if (depth > JSON_DEPTH || r->used == r->limit || r->at == r->end) return NULL;
    struct json *v = &r->values[r->used++];
    switch (*r->at) {
    case '{': case '[':
        v->type = *r->at++ == '{' ? JSON_OBJECT : JSON_ARRAY;
        return members(r, v, depth) ? v : NULL;
    case '"': v->type = JSON_STRING; return string(r, &v->text, &v->length, &v->has_nul) ? v : NULL;
    case 't': v->type = JSON_TRUE; return word(r, "true") ? v : NULL;
    case 'f': v->type = JSON_FALSE; return word(r, "false") ? v : NULL;
    case 'n': return word(r, "null") ? v : NULL;
    default: return number(r, v) ? v : NULL;
    }
}

struct json *json_parse(const uint8_t *bytes, size_t length) {
    struct reader r = {.at = bytes, .end = bytes + length, .limit = 1};
    for (size_t i = 0; i < length; i++) r.limit += bytes[i] == ',' || bytes[i] == '[' || bytes[i] == '{';
    if (r.limit > JSON_VALUES) r.limit = JSON_VALUES;
    r.values = xalloc(r.limit * sizeof *r.values + length + 1);
    r.text = (char *)(r.values + r.limit);
    struct json *root = value(&r, 0);
    skip_space(&r);
    if (root && r.at == r.end) return root;
    free(r.values);
    return NULL;
}

void json_free(struct json *root) { free(root); }

const struct json *json_get(const struct json *object, const char *key) {
    const struct json *found = NULL;
    if (!object || object->type != JSON_OBJECT) return NULL;
    for (const struct json *v = object->child; v; v = v->next)
        if (!v->key_has_nul && strcmp(v->key, key) == 0) found = v;
    return found && found->type != JSON_NULL ? found : NULL;
}

const char *json_get_text(const struct json *object, const char *key, const char *absent, bool *bad) {
    const struct json *v = json_get(object, key);
    if (!v) return absent;
    if (v->type == JSON_STRING && !v->has_nul) return v->text;
    *bad = true;
    return absent;
}

int64_t json_get_int(const struct json *object, const char *key, int64_t low, int64_t high, int64_t absent, bool *bad) {
    const struct json *v = json_get(object, key);
    if (!v) return absent;
    if (v->type == JSON_INT && v->number >= low && v->number <= high) return v->number;
    *bad = true;
    return absent;
}

bool json_get_bool(const struct json *object, const char *key, bool absent, bool *bad) {
    const struct json *v = json_get(object, key);
    if (!v) return absent;
    if (v->type != JSON_TRUE && v->type != JSON_FALSE) *bad = true;
    return v->type == JSON_TRUE;
}

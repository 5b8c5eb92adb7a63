/* A strict JSON reader for control payloads: bounded in depth, values and size; never trusts its input. */
#ifndef SBXD_JSON_H
#define SBXD_JSON_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { JSON_DEPTH = 16, JSON_VALUES = 65536 };
enum json_type { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_INT, JSON_REAL, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json {
    enum json_type type;
    bool has_nul;  /* a string with a NUL byte inside: no path, argument or name may have one */
    char *text;    /* strings: decoded bytes, NUL-terminated */
    size_t length; /* strings: bytes; arrays and objects: members */
    int64_t number;
    const char *key;
    bool key_has_nul;
    struct json *child, *next;
};

struct json *json_parse(const uint8_t *bytes, size_t length); /* NULL when it is not exactly one JSON value */
void json_free(struct json *root);

/* Members of an object; the last of equal keys counts. NULL when it is absent or null. */
const struct json *json_get(const struct json *object, const char *key);
/* Typed members: absent gives the default; of another type or out of range, sets *bad. Texts have no NUL. */
const char *json_get_text(const struct json *object, const char *key, const char *absent, bool *bad);
int64_t json_get_int(const struct json *object, const char *key, int64_t low, int64_t high, int64_t absent, bool *bad);
bool json_get_bool(const struct json *object, const char *key, bool absent, bool *bad);

size_t utf8_length(const uint8_t *s, size_t n); /* bytes of the first character, 0 when it is not valid UTF-8 */
#endif

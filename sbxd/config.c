#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ops.h"

enum { MAX_ETC = 1 << 20, MAX_ENV = 4096 };

static const char first_env[] = "{\"PATH\":\"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\"}";
static struct buf base_env_text; /* the JSON of the base env as it came; parsed again for each command */
static char *cwd;

const char *config_cwd(void) { return cwd ? cwd : "/workspace"; }

bool env_is_valid(const struct json *env) {
    if (!env) return true;
    if (env->type != JSON_OBJECT || env->length > MAX_ENV) return false;
    for (const struct json *v = env->child; v; v = v->next)
        if (v->type != JSON_STRING || v->has_nul || v->key_has_nul || !*v->key || strchr(v->key, '=')) return false;
    return true;
}

static bool put_env(struct run *r, size_t *count, const char *name, const char *value) {
    size_t n = strlen(name), i = 0;
    char *text = run_text(r, name, "="), *rest = text ? run_text(r, value, "") : NULL;
    if (!rest) return false;
    memmove(rest - 1, rest, strlen(rest) + 1); /* over the NUL between the two */
    while (i < *count && strncmp(r->env[i], text, n + 1) != 0) i++;
    r->env[i] = text;
    *count += i == *count;
    return true;
}

bool config_build_env(struct run *r, const struct json *over, const char *home) {
    struct json *base = buf_len(&base_env_text) ? json_parse(buf_at(&base_env_text), buf_len(&base_env_text))
                                                : json_parse((const uint8_t *)first_env, sizeof first_env - 1);
    size_t count = 0, most = base->length + (over ? over->length : 0) + 2;
    bool fits = (r->env = run_alloc(r, most * sizeof *r->env)) != NULL;
    for (struct json *v = base->child; fits && v; v = v->next) fits = put_env(r, &count, v->key, v->text);
    for (struct json *v = over ? over->child : NULL; fits && v; v = v->next) fits = put_env(r, &count, v->key, v->text);
    if (fits && !json_get(base, "HOME") && !json_get(over, "HOME")) fits = put_env(r, &count, "HOME", home);
    json_free(base);
    return fits;
}

static void copy_env(struct buf *b, const struct json *env) {
    json_begin(b, NULL, '{');
    for (const struct json *v = env->child; v; v = v->next) json_text(b, v->key, v->text, v->length);
    json_end(b, '}');
}

void op_configure(struct stream *s, const struct json *request) {
    bool bad = false;
    const struct json *env = json_get(request, "env");
    const char *hostname = json_get_text(request, "hostname", NULL, &bad);
    const char *directory = json_get_text(request, "cwd", NULL, &bad);
    if (bad || !env_is_valid(env) || (directory && *directory != '/')) {
        stream_error(s, "invalid", 0, "configure takes hostname, env (names to texts) and an absolute cwd");
        return;
    }
    if (hostname && sethostname(hostname, strlen(hostname)) != 0) { /* first: it alone can fail, and then nothing is set */
        stream_errno(s, errno, "setting the host name");
        return;
    }
    if (env) {
        buf_free(&base_env_text);
        copy_env(&base_env_text, env);
    }
    if (directory) {
        free(cwd);
        cwd = strdup(directory);
    }
    stream_close(s, NULL);
}

/* The file as text, or "". A hostile /etc may hold a FIFO or something endless. */
static char *read_etc(const char *path) {
    char *text = xalloc(MAX_ETC + 1);
    struct stat st;
    size_t used = 0;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
        for (ssize_t n; used < MAX_ETC && (n = read(fd, text + used, MAX_ETC - used)) > 0;) used += (size_t)n;
    if (fd >= 0) close(fd);
    text[used] = 0;
    return text;
}

/* Splits one line at its colons, in place; the number of fields. */
static int fields(char *line, char **field, int most) {
    int n = 0;
    while (n < most && (field[n++] = strsep(&line, ":")) && line) continue;
    return n;
}

static bool is_number(const char *text, unsigned long *value) {
    char *end;
    if (*text < '0' || *text > '9') return false;
    errno = 0;
    *value = strtoul(text, &end, 10);
    return !*end && !errno && *value < 0xffffffffUL; /* the last one means "unchanged" to the kernel */
}

static bool find_user(struct run *r, const char *name, char *login, char *home, size_t home_size) {
    unsigned long number, uid, gid;
    bool by_number = is_number(name, &number), found = false;
    char *text = read_etc("/etc/passwd"), *rest = text, *line, *f[7];
    while (!found && (line = strsep(&rest, "\n"))) {
        if (fields(line, f, 7) < 6 || !is_number(f[2], &uid) || !is_number(f[3], &gid)) continue;
        found = by_number ? uid == number : strcmp(f[0], name) == 0;
        if (!found) continue;
        r->uid = (uid_t)uid;
        r->gid = (gid_t)gid;
        snprintf(login, 256, "%s", f[0]);
        if (*f[5] == '/') snprintf(home, home_size, "%s", f[5]);
    }
    free(text);
    if (!found && by_number) r->uid = (uid_t)number;
    return found || by_number;
}

static bool has_member(char *members, const char *login) {
    for (char *m; (m = strsep(&members, ","));)
        if (*m && strcmp(m, login) == 0) return true;
    return false;
}

/* With a group named: only that one. Without: the user's own and all that list the user. */
static bool find_groups(struct run *r, const char *group, const char *login) {
    unsigned long gid, number = 0;
    bool by_number = group && is_number(group, &number), found = by_number;
    char *text = read_etc("/etc/group"), *rest = text, *line, *f[4];
    if (by_number) r->gid = (gid_t)number;
    while (!found && (line = strsep(&rest, "\n"))) {
        int n = fields(line, f, 4);
        if (n < 3 || !is_number(f[2], &gid)) continue;
        if (group && strcmp(f[0], group) == 0) {
            r->gid = (gid_t)gid;
            found = true;
        } else if (!group && n == 4 && *login && r->group_count < RUN_GROUPS - 1 && has_member(f[3], login)) {
            r->groups[r->group_count++] = (gid_t)gid;
        }
    }
    free(text);
    r->groups[r->group_count++] = r->gid;
    return found || !group;
}

bool user_resolve(struct run *r, const char *user, char *home, size_t home_size) {
    char name[256], login[256] = "";
    const char *colon = strchrnul(user, ':');
    snprintf(home, home_size, "/");
    if (colon == user || (size_t)(colon - user) >= sizeof name || (*colon && !colon[1])) return false;
    snprintf(name, sizeof name, "%.*s", (int)(colon - user), user);
    r->as_user = true;
    return find_user(r, name, login, home, home_size) && find_groups(r, *colon ? colon + 1 : NULL, login);
}

/* File ops that answer at once (stat, mkdir) and the listing of a directory. */
#include "files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "loop.h"
#include "ops.h"

enum { LIST_CHUNK = 65536 };

struct listing {
    DIR *dir;
    char *path;
    struct buf text;
    int64_t count;
};

const char *path_of(struct stream *s, const struct json *request, const char *member) {
    bool bad = false;
    const char *path = json_get_text(request, member, NULL, &bad);
    if (!bad && path && *path == '/') return path;
    stream_error(s, "invalid", 0, "%s is an absolute path without NUL", member);
    return NULL;
}

const char *last_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

void temporary_name(char to[TEMPORARY_NAME]) {
    static unsigned serial;
    /* Archives are unpacked by processes of their own, beside this one. */
    snprintf(to, TEMPORARY_NAME, ".sbxd-%08x-%u-%u", (unsigned)now_ns(), (unsigned)getpid(), serial++);
}

int temporary_open(int dir, char name[TEMPORARY_NAME]) {
    for (int attempt = 0; attempt < 100; attempt++) {
        temporary_name(name);
        int fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd >= 0) return fd;
        *name = 0;
        if (errno != EEXIST) break;
    }
    return -1;
}

void info_put(struct buf *b, const char *path, const struct stat *st, const char *target) {
    const char *type = S_ISREG(st->st_mode) ? "file" : S_ISDIR(st->st_mode) ? "dir" : S_ISLNK(st->st_mode) ? "symlink"
                     : S_ISFIFO(st->st_mode) ? "fifo" : S_ISSOCK(st->st_mode) ? "socket"
                     : S_ISCHR(st->st_mode) ? "char" : "block";
    json_string(b, "name", last_name(path));
    json_string(b, "path", path);
    json_string(b, "type", type);
    json_number(b, "size", st->st_size);
    json_number(b, "mode", st->st_mode & 07777);
    json_number(b, "uid", st->st_uid);
    json_number(b, "gid", st->st_gid);
    int64_t mtime_ns; /* anybody inside can set a time that does not fit */
    if (__builtin_mul_overflow((int64_t)st->st_mtim.tv_sec, 1000000000, &mtime_ns) ||
        __builtin_add_overflow(mtime_ns, (int64_t)st->st_mtim.tv_nsec, &mtime_ns))
        mtime_ns = st->st_mtim.tv_sec < 0 ? INT64_MIN : INT64_MAX;
    json_number(b, "mtime_ns", mtime_ns);
    if (target) json_string(b, "target", target);
}

/* A symlink's target in `to`, or NULL. */
static const char *target_of(int at, const char *path, const struct stat *st, char to[PATH_MAX]) {
    ssize_t n = S_ISLNK(st->st_mode) ? readlinkat(at, path, to, PATH_MAX - 1) : -1;
    if (n < 0) return NULL;
    to[n] = 0;
    return to;
}

void info_close(struct stream *s, const char *path, bool follow) {
    struct buf b = {0};
    struct stat st;
    char target[PATH_MAX];
    if (fstatat(AT_FDCWD, path, &st, follow ? 0 : AT_SYMLINK_NOFOLLOW) != 0) {
        stream_errno(s, errno, path);
        return;
    }
    json_begin(&b, NULL, '{');
    info_put(&b, path, &st, target_of(AT_FDCWD, path, &st, target));
    json_end(&b, '}');
    stream_close(s, &b);
}

void op_stat(struct stream *s, const struct json *request) {
    bool bad = false, follow = json_get_bool(request, "follow", true, &bad);
    const char *path = path_of(s, request, "path");
    if (path && bad) stream_error(s, "invalid", 0, "follow is a bool");
    else if (path) info_close(s, path, follow);
}

int directory_open(int at, const char *name) {
    /* In two steps, since gVisor follows a symlink when it is asked for O_NOFOLLOW and O_DIRECTORY together. */
    int itself = openat(at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (itself < 0) return -1;
    int fd = openat(itself, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), error = errno;
    close(itself);
    errno = error;
    return fd;
}

int parents_make(const char *path) {
    char *copy = strdup(path);
    int error = 0;
    for (char *p = copy + 1; copy && !error && (p = strchr(p, '/')); p++) {
        *p = 0;
        if (mkdir(copy, 0755) != 0 && errno != EEXIST && errno != EISDIR) error = errno;
        *p = '/';
    }
    free(copy);
    return error;
}

void op_mkdir(struct stream *s, const struct json *request) {
    bool bad = false, parents = json_get_bool(request, "parents", true, &bad);
    mode_t mode = (mode_t)json_get_int(request, "mode", 0, 07777, 0755, &bad);
    const char *path = path_of(s, request, "path");
    struct stat st;
    if (!path) return;
    if (bad) {
        stream_error(s, "invalid", 0, "parents is a bool, mode 0 to 4095");
        return;
    }
    int error = parents ? parents_make(path) : 0;
    if (!error && mkdir(path, 0700) != 0) error = errno;
    else if (!error && chmod(path, mode) != 0) error = errno; /* exact, whatever the umask */
    if (error == EEXIST && parents && stat(path, &st) == 0 && S_ISDIR(st.st_mode)) error = 0;
    if (error) stream_errno(s, error, path);
    else info_close(s, path, true);
}

/* Makes an empty file where nothing is. 0 or an errno. */
static int create_empty(const char *path) {
    struct stat st;
    if (stat(path, &st) == 0) return 0;
    int error = errno == ENOENT ? parents_make(path) : errno;
    if (error) return error;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0) return errno;
    close(fd);
    return 0;
}

void op_setattr(struct stream *s, const struct json *request) {
    bool bad = false, create = json_get_bool(request, "create", false, &bad);
    bool now = json_get_bool(request, "now", false, &bad), timed = json_get(request, "mtime_ns") != NULL;
    int64_t mode = json_get_int(request, "mode", 0, 07777, -1, &bad);
    int64_t mtime_ns = json_get_int(request, "mtime_ns", INT64_MIN, INT64_MAX, 0, &bad);
    const char *path = path_of(s, request, "path");
    if (!path) return;
    if (bad || (now && timed)) {
        stream_error(s, "invalid", 0, "mode is 0 to 4095, mtime_ns a number, create and now are bools; not both times");
        return;
    }
    struct timespec times[2] = {{.tv_nsec = now ? UTIME_NOW : UTIME_OMIT}, {.tv_nsec = now ? UTIME_NOW : UTIME_OMIT}};
    if (timed) times[1] = (struct timespec){mtime_ns / 1000000000 - (mtime_ns % 1000000000 < 0), (mtime_ns % 1000000000 + 1000000000) % 1000000000};
    int error = create ? create_empty(path) : 0;
    if (!error && mode >= 0 && chmod(path, (mode_t)mode) != 0) error = errno;
    if (!error && (now || timed) && utimensat(AT_FDCWD, path, times, 0) != 0) error = errno;
    if (error) stream_errno(s, error, path);
    else info_close(s, path, true);
}

static void list_add(struct listing *l, const char *name) {
    struct stat st;
    char path[PATH_MAX + NAME_MAX + 2], target[PATH_MAX];
    if (fstatat(dirfd(l->dir), name, &st, AT_SYMLINK_NOFOLLOW) != 0) return; /* gone since it was read */
    snprintf(path, sizeof path, "%s%s%s", l->path, l->path[strlen(l->path) - 1] == '/' ? "" : "/", name);
    json_begin(&l->text, NULL, '{');
    info_put(&l->text, path, &st, target_of(dirfd(l->dir), name, &st, target));
    json_end(&l->text, '}');
    buf_puts(&l->text, "\n");
    l->count++;
}

static bool list_step(struct stream *s) {
    struct listing *l = s->subject;
    int64_t stop = now_ns() + SLICE_NS;
    while (buf_len(&l->text) < LIST_CHUNK && now_ns() < stop) {
        errno = 0;
        struct dirent *e = readdir(l->dir);
        if (!e && errno) {
            stream_errno(s, errno, l->path);
            return false;
        }
        if (!e) {
            closedir(l->dir);
            l->dir = NULL;
            stream_ready(s);
            return false;
        }
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) list_add(l, e->d_name);
    }
    if (buf_len(&l->text)) stream_ready(s);
    return buf_len(&l->text) < LIST_CHUNK;
}

static size_t list_fill(struct stream *s, uint8_t *to, size_t room, uint8_t *channel) {
    struct listing *l = s->subject;
    struct buf b = {0};
    size_t n = buf_len(&l->text) < room ? buf_len(&l->text) : room;
    (void)channel;
    if (n) {
        memcpy(to, buf_at(&l->text), n);
        buf_take(&l->text, n);
        if (l->dir && buf_len(&l->text) < LIST_CHUNK) stream_busy(s);
    } else if (!l->dir) {
        json_begin(&b, NULL, '{');
        json_number(&b, "count", l->count);
        json_end(&b, '}');
        stream_close(s, &b);
    }
    return n;
}

static void list_end(struct stream *s) {
    struct listing *l = s->subject;
    if (l->dir) closedir(l->dir);
    buf_free(&l->text);
    free(l->path);
    free(l);
}

static const struct stream_ops list_ops = {.fill = list_fill, .step = list_step, .end = list_end};

void op_list(struct stream *s, const struct json *request) {
    const char *path = path_of(s, request, "path");
    if (!path) return;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir) {
        stream_errno(s, errno, path);
        if (fd >= 0) close(fd);
        return;
    }
    struct listing *l = xalloc(sizeof *l);
    l->dir = dir;
    l->path = strdup(path);
    stream_bind(s, &list_ops, l);
    stream_busy(s);
}

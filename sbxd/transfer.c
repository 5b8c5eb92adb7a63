/* Reading and writing one regular file as a stream. A write is seen complete or not at all. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "files.h"
#include "loop.h"
#include "ops.h"

/* Written as it comes, so a wider window costs nothing here: the host sends the next frames meanwhile. */
enum { MAX_LINKS = 40, WRITE_AHEAD = 262144 };

struct reading {
    int fd;
    int64_t left, sent;
};

struct writing {
    int fd, dir;
    char temporary[TEMPORARY_NAME], *name; /* both inside `dir` */
    char *path;                /* as the host gave it */
    mode_t mode;
    uid_t uid;
    gid_t gid;
    bool replaces, create_only;
};

/* Looks before it opens: only to open a FIFO or a device can have effects, or wait. And after: the name may have been
 * given to something else meanwhile. -1: errno. */
static int open_regular(const char *path, struct stat *st) {
    int wrong;
    if (stat(path, st) != 0) return -1;
    wrong = S_ISDIR(st->st_mode) ? EISDIR : S_ISREG(st->st_mode) ? 0 : ENXIO;
    int fd = wrong ? -1 : open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, st) == 0 && S_ISREG(st->st_mode)) return fd;
    if (fd >= 0) close(fd);
    if (wrong || fd >= 0) errno = wrong ? wrong : ENXIO;
    return -1;
}

static void close_with(struct stream *s, const char *key, int64_t number) {
    struct buf b = {0};
    json_begin(&b, NULL, '{');
    json_number(&b, key, number);
    json_end(&b, '}');
    stream_close(s, &b);
}

static size_t read_fill(struct stream *s, uint8_t *to, size_t room, uint8_t *channel) {
    struct reading *r = s->subject;
    (void)channel;
    if ((uint64_t)r->left < room) room = (size_t)r->left;
    ssize_t n = room ? read(r->fd, to, room) : 0;
    if (n > 0) {
        r->left -= n;
        r->sent += n;
        return (size_t)n;
    }
    if (n < 0) stream_errno(s, errno, "reading the file");
    else close_with(s, "bytes", r->sent);
    return 0;
}

static void read_end(struct stream *s) {
    struct reading *r = s->subject;
    close(r->fd);
    free(r);
}

static const struct stream_ops read_ops = {.fill = read_fill, .end = read_end};

void op_read(struct stream *s, const struct json *request) {
    bool bad = false;
    struct buf b = {0};
    struct stat st;
    int64_t offset = json_get_int(request, "offset", 0, INT64_MAX, 0, &bad);
    int64_t length = json_get_int(request, "length", -1, INT64_MAX, -1, &bad);
    const char *path = path_of(s, request, "path");
    if (!path) return;
    if (bad) {
        stream_error(s, "invalid", 0, "offset is 0 or more, length -1 or more");
        return;
    }
    int fd = open_regular(path, &st);
    if (fd < 0 || lseek(fd, offset, SEEK_SET) < 0) {
        stream_errno(s, errno, path);
        if (fd >= 0) close(fd);
        return;
    }
    struct reading *r = xalloc(sizeof *r);
    *r = (struct reading){.fd = fd, .left = length < 0 ? INT64_MAX : length};
    stream_bind(s, &read_ops, r);
    json_begin(&b, NULL, '{');
    json_string(&b, "event", "stat");
    info_put(&b, path, &st, NULL);
    json_end(&b, '}');
    stream_event(s, &b);
    stream_ready(s);
}

static void write_data(struct stream *s, const uint8_t *bytes, size_t n) {
    struct writing *w = s->subject;
    for (size_t done = 0; done < n;) {
        ssize_t got = write(w->fd, bytes + done, n - done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            stream_errno(s, got ? errno : ENOSPC, w->path);
            return;
        }
        done += (size_t)got;
    }
    stream_consumed(s, n);
}

static int publish(struct writing *w) {
    if (w->replaces && fchown(w->fd, w->uid, w->gid) != 0) return errno;
    if (fchmod(w->fd, w->mode) != 0) return errno;
    if (syscall(SYS_renameat2, w->dir, w->temporary, w->dir, w->name, w->create_only ? 1 /* NOREPLACE */ : 0) != 0)
        return errno == EISDIR || errno == ENOTEMPTY ? EISDIR : errno;
    *w->temporary = 0;
    return 0;
}

static void write_eof(struct stream *s) {
    struct writing *w = s->subject;
    int error = publish(w);
    if (error) stream_errno(s, error, w->path);
    else info_close(s, w->path, true);
}

static void write_end(struct stream *s) {
    struct writing *w = s->subject;
    /* Through the directory's descriptor: it may have been moved, or be without a name, by now. */
    if (*w->temporary) unlinkat(w->dir, w->temporary, 0);
    close(w->fd);
    close(w->dir);
    free(w->name);
    free(w->path);
    free(w);
}

static const struct stream_ops write_ops = {.data = write_data, .eof = write_eof, .end = write_end};

/* Follows symlinks at the end of `path` to the name that is to be written, which need not exist. malloc'd, or errno. */
static char *follow(const char *path) {
    char *at = strdup(path), target[PATH_MAX];
    for (int links = 0; at; links++) {
        ssize_t n = readlink(at, target, sizeof target - 1);
        if (n < 0 && (errno == EINVAL || errno == ENOENT)) return at;
        if (n < 0 || links == MAX_LINKS) break;
        target[n] = 0;
        size_t keep = *target == '/' ? 0 : (size_t)(last_name(at) - at);
        char *next = xalloc(keep + (size_t)n + 1);
        memcpy(next, at, keep);
        memcpy(next + keep, target, (size_t)n);
        free(at);
        at = next;
        errno = ELOOP;
    }
    free(at);
    return NULL;
}

static int write_prepare(struct writing *w, const char *path, bool parents, bool mode_given) {
    struct stat st;
    char *at = follow(path);
    if (!at) return errno;
    size_t length = strlen(at);
    int error = at[length - 1] == '/' ? EISDIR : parents ? parents_make(at) : 0;
    char *slash = strrchr(at, '/');
    w->name = strdup(slash + 1);
    slash[slash == at] = 0; /* now the directory; "/" stays */
    if (!error && (w->dir = open(at, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0) error = errno;
    free(at);
    if (error) return error;
    if (fstatat(w->dir, w->name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        if (w->create_only) return EEXIST;
        if (!S_ISREG(st.st_mode)) return S_ISDIR(st.st_mode) ? EISDIR : ENXIO;
        w->replaces = true;
        w->uid = st.st_uid;
        w->gid = st.st_gid;
        if (!mode_given) w->mode = st.st_mode & 07777;
    } else if (errno != ENOENT) {
        return errno;
    }
    w->fd = temporary_open(w->dir, w->temporary);
    return w->fd < 0 ? errno : 0;
}

void op_write(struct stream *s, const struct json *request) {
    bool bad = false, parents = json_get_bool(request, "parents", true, &bad);
    bool create_only = json_get_bool(request, "create_only", false, &bad);
    int64_t mode = json_get_int(request, "mode", 0, 07777, -1, &bad);
    const char *path = path_of(s, request, "path");
    if (!path) return;
    if (bad) {
        stream_error(s, "invalid", 0, "mode is 0 to 4095; parents and create_only are bools");
        return;
    }
    struct writing *w = xalloc(sizeof *w);
    *w = (struct writing){.fd = -1, .dir = -1, .mode = mode < 0 ? 0644 : (mode_t)mode, .create_only = create_only};
    w->path = strdup(path);
    stream_bind(s, &write_ops, w);
    int error = write_prepare(w, path, parents, mode >= 0);
    if (error) stream_errno(s, error, path);
    else stream_widen(s, WRITE_AHEAD);
}

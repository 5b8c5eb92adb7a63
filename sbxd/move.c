/* Moving: a rename, or, where the target lies on another file system, a copy that takes its place whole and then the
 * removal of the source. A directory is not copied: half of one could be left, and none is what it was before. */
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

enum { PIECE = 65536, NOREPLACE = 1 };

struct end { /* one end of a move: an open directory and a name in it */
    int dir;
    const char *name;
};

struct moving {
    struct end from, to;
    int source, copy; /* -1: a symlink */
    struct stat st;   /* the source as it was at first */
    char *from_path, *to_path;
    char temporary[TEMPORARY_NAME]; /* in to.dir */
    bool overwrite;
};

static int end_open(struct end *e, char *path) {
    char *slash = strrchr(path, '/');
    if (!slash[1]) return ENOTDIR; /* as rename says of a file with a slash behind it */
    e->name = slash + 1;
    *slash = 0;
    e->dir = open(slash == path ? "/" : path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int error = e->dir < 0 ? errno : 0;
    *slash = '/';
    return error;
}

/* Is the source still the file that was opened, with what was read? */
static bool unchanged(const struct moving *m) {
    struct stat st;
    return fstatat(m->from.dir, m->from.name, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_dev == m->st.st_dev &&
           st.st_ino == m->st.st_ino && st.st_size == m->st.st_size && st.st_mtim.tv_sec == m->st.st_mtim.tv_sec &&
           st.st_mtim.tv_nsec == m->st.st_mtim.tv_nsec;
}

/* The copy is complete: gives it its owner and times, then its name, and takes the source away. */
static int publish(struct moving *m) {
    const struct timespec times[2] = {m->st.st_atim, m->st.st_mtim};
    if (!unchanged(m)) return EBUSY;
    /* By descriptor: whoever may write to the directory can give the temporary name to another's file. A symlink has no
     * descriptor to do this by, and becomes root's, which for a symlink means nothing. */
    if (m->copy >= 0 && (fchown(m->copy, m->st.st_uid, m->st.st_gid) != 0 || fchmod(m->copy, m->st.st_mode & 07777) != 0 ||
                         futimens(m->copy, times) != 0))
        return errno;
    if (syscall(SYS_renameat2, m->to.dir, m->temporary, m->to.dir, m->to.name, m->overwrite ? 0 : NOREPLACE) != 0)
        return errno;
    *m->temporary = 0;
    /* Replaced since: what has the name now is not what was moved, and stays. */
    return unchanged(m) && unlinkat(m->from.dir, m->from.name, 0) != 0 ? errno : 0;
}

static void finish(struct stream *s) {
    struct moving *m = s->subject;
    int error = publish(m);
    if (error) stream_errno(s, error, m->from_path);
    else info_close(s, m->to_path, false);
}

/* 0 or an errno. */
static int put(int fd, const uint8_t *bytes, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t got = write(fd, bytes + done, n - done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return got ? errno : ENOSPC;
        done += (size_t)got;
    }
    return 0;
}

static bool move_step(struct stream *s) {
    static uint8_t piece[PIECE];
    struct moving *m = s->subject;
    for (int64_t stop = now_ns() + SLICE_NS; now_ns() < stop;) {
        ssize_t n = read(m->source, piece, sizeof piece);
        if (n < 0 && errno == EINTR) continue;
        int error = n < 0 ? errno : put(m->copy, piece, (size_t)n);
        if (!error && n > 0) continue;
        if (error) stream_errno(s, error, n < 0 ? m->from_path : m->to_path);
        else finish(s);
        return false;
    }
    return true;
}

static void move_end(struct stream *s) {
    struct moving *m = s->subject;
    if (*m->temporary) unlinkat(m->to.dir, m->temporary, 0);
    if (m->source >= 0) close(m->source);
    if (m->copy >= 0) close(m->copy);
    if (m->from.dir >= 0) close(m->from.dir);
    if (m->to.dir >= 0) close(m->to.dir);
    free(m->from_path);
    free(m->to_path);
    free(m);
}

static const struct stream_ops move_ops = {.step = move_step, .end = move_end};

static int link_copy(struct moving *m) {
    char target[PATH_MAX];
    ssize_t n = readlinkat(m->from.dir, m->from.name, target, sizeof target - 1);
    if (n < 0) return errno;
    target[n] = 0;
    temporary_name(m->temporary);
    if (symlinkat(target, m->to.dir, m->temporary) == 0) return 0;
    *m->temporary = 0;
    return errno;
}

static int file_open(struct moving *m) {
    struct stat now;
    m->source = openat(m->from.dir, m->from.name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (m->source < 0 || fstat(m->source, &now) != 0) return errno;
    if (now.st_dev != m->st.st_dev || now.st_ino != m->st.st_ino) return EBUSY;
    m->st = now;
    m->copy = temporary_open(m->to.dir, m->temporary);
    return m->copy < 0 ? errno : 0;
}

/* 0, an errno, or EXDEV for what is not copied. `done`: both ends are the same file, as rename has it. */
static int move_begin(struct moving *m, bool *done) {
    struct stat to;
    int error = end_open(&m->from, m->from_path);
    if (!error) error = end_open(&m->to, m->to_path);
    if (error) return error;
    if (fstatat(m->from.dir, m->from.name, &m->st, AT_SYMLINK_NOFOLLOW) != 0) return errno;
    if (!S_ISREG(m->st.st_mode) && !S_ISLNK(m->st.st_mode)) return EXDEV;
    if (faccessat(m->from.dir, ".", W_OK, 0) != 0) return errno; /* it could not be taken away afterwards */
    if (fstatat(m->to.dir, m->to.name, &to, AT_SYMLINK_NOFOLLOW) == 0) {
        if (!m->overwrite) return EEXIST;
        if (S_ISDIR(to.st_mode)) return EISDIR;
        *done = to.st_dev == m->st.st_dev && to.st_ino == m->st.st_ino;
        if (*done) return 0;
    } else if (errno != ENOENT) {
        return errno;
    }
    return S_ISLNK(m->st.st_mode) ? link_copy(m) : file_open(m);
}

static void move_across(struct stream *s, const char *from, const char *to, bool overwrite) {
    struct moving *m = xalloc(sizeof *m);
    bool done = false;
    *m = (struct moving){.from.dir = -1, .to.dir = -1, .source = -1, .copy = -1, .overwrite = overwrite};
    m->from_path = strdup(from);
    m->to_path = strdup(to);
    stream_bind(s, &move_ops, m);
    int error = move_begin(m, &done);
    if (error == EXDEV)
        stream_error(s, "cross_device", EXDEV,
                     "%.400s is no file, and the target lies on another file system: copy it with a command inside "
                     "(cp -a), then remove it", from);
    else if (error) stream_errno(s, error, from);
    else if (done) info_close(s, m->to_path, false);
    else if (m->copy < 0) finish(s);
    else stream_busy(s);
}

void op_move(struct stream *s, const struct json *request) {
    bool bad = false, overwrite = json_get_bool(request, "overwrite", true, &bad);
    const char *from = path_of(s, request, "from"), *to = from ? path_of(s, request, "to") : NULL;
    if (!to) return;
    if (bad) stream_error(s, "invalid", 0, "overwrite is a bool");
    else if (syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, overwrite ? 0 : NOREPLACE) == 0) info_close(s, to, false);
    else if (errno == EXDEV) move_across(s, from, to, overwrite);
    else stream_errno(s, errno, from);
}

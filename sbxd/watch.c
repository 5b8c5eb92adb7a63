/* Watching a path: inotify, with every directory below when asked to, those that come later included. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "conn.h"
#include "files.h"
#include "loop.h"
#include "ops.h"

enum { MASK = IN_CREATE | IN_CLOSE_WRITE | IN_MODIFY | IN_ATTRIB | IN_DELETE | IN_DELETE_SELF | IN_MOVED_FROM |
              IN_MOVED_TO | IN_MOVE_SELF | IN_DONT_FOLLOW,
       CONGESTED_MS = 20 };

struct watched {
    int wd;
    char *path;
};

struct pending { /* a directory that is still to be walked */
    char *path;
    bool fresh; /* it came while we watched: what is in it is told as created */
    struct pending *next;
};

struct watch {
    struct source source;
    struct timer later;
    struct stream *stream;
    struct watched *list; /* by rising wd, as inotify hands them out */
    size_t count, room;
    struct pending *pending;
    DIR *walking;
    bool recursive, announced;
};

static void tell(struct watch *w, const char *kind, const char *path) {
    struct buf b = {0};
    json_begin(&b, NULL, '{');
    json_string(&b, "event", "change");
    json_string(&b, "kind", kind);
    json_string(&b, "path", path);
    json_end(&b, '}');
    stream_event(w->stream, &b);
}

static size_t position(const struct watch *w, int wd) {
    size_t low = 0, high = w->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (w->list[middle].wd < wd) low = middle + 1;
        else high = middle;
    }
    return low;
}

static void forget(struct watch *w, size_t at) {
    free(w->list[at].path);
    memmove(w->list + at, w->list + at + 1, (--w->count - at) * sizeof *w->list);
}

/* 0 or an errno. A directory that was moved keeps its wd and gets its new path. */
static int add(struct watch *w, const char *path, uint32_t extra) {
    int wd = inotify_add_watch(w->source.fd, path, MASK | extra);
    if (wd < 0) return errno;
    size_t at = position(w, wd);
    if (at < w->count && w->list[at].wd == wd) {
        free(w->list[at].path);
    } else {
        if (w->count == w->room) {
            w->room = w->room ? w->room * 2 : 8;
            w->list = realloc(w->list, w->room * sizeof *w->list);
            if (!w->list) _exit(70);
        }
        memmove(w->list + at + 1, w->list + at, (w->count++ - at) * sizeof *w->list);
    }
    w->list[at] = (struct watched){wd, strdup(path)};
    return 0;
}

static void walk_later(struct watch *w, const char *path, bool fresh) {
    struct pending *p = xalloc(sizeof *p);
    *p = (struct pending){strdup(path), fresh, w->pending};
    w->pending = p;
    stream_busy(w->stream);
}

static void walk_done(struct watch *w) {
    struct pending *p = w->pending;
    if (w->walking) closedir(w->walking);
    w->walking = NULL;
    w->pending = p->next;
    free(p->path);
    free(p);
}

static void join(char *to, const char *directory, const char *name) {
    snprintf(to, PATH_MAX, "%s%s%s", directory, directory[strlen(directory) - 1] == '/' ? "" : "/", name);
}

static void walk_entry(struct watch *w, const char *name) {
    char path[PATH_MAX];
    struct stat st;
    struct pending *p = w->pending;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) return;
    join(path, p->path, name);
    if (fstatat(dirfd(w->walking), name, &st, AT_SYMLINK_NOFOLLOW) != 0) return;
    if (p->fresh) tell(w, "create", path);
    if (!S_ISDIR(st.st_mode)) return;
    struct pending *below = xalloc(sizeof *below); /* behind the one being walked */
    *below = (struct pending){strdup(path), p->fresh, p->next};
    p->next = below;
}

static bool watch_step(struct stream *s) {
    struct watch *w = s->subject;
    struct buf b = {0};
    for (int64_t stop = now_ns() + SLICE_NS; w->pending && now_ns() < stop && !conn_congested();) {
        int error = 0;
        if (!w->walking) {
            error = add(w, w->pending->path, IN_ONLYDIR);
            w->walking = error ? NULL : opendir(w->pending->path);
        }
        if (error == ENOSPC || error == ENOMEM) {
            stream_error(s, "limit", error, "no more directories can be watched");
            return false;
        }
        struct dirent *e = w->walking ? readdir(w->walking) : NULL;
        if (e) walk_entry(w, e->d_name);
        else walk_done(w); /* at its end, or gone */
    }
    if (!w->pending && !w->announced) {
        w->announced = true;
        json_begin(&b, NULL, '{');
        json_string(&b, "event", "watching");
        json_end(&b, '}');
        stream_event(s, &b);
        source_want(&w->source, EPOLLIN);
    }
    return w->pending != NULL;
}

/* A directory moved out of sight: what is below it has no path we know any more. */
static void drop_below(struct watch *w, const char *path) {
    size_t n = strlen(path);
    for (size_t i = w->count; i-- > 0;) {
        const char *p = w->list[i].path;
        if (strncmp(p, path, n) != 0 || (p[n] && p[n] != '/')) continue;
        inotify_rm_watch(w->source.fd, w->list[i].wd);
        forget(w, i);
    }
}

static void on_change(struct watch *w, const struct inotify_event *e) {
    char path[PATH_MAX];
    size_t at = position(w, e->wd);
    if (e->mask & IN_Q_OVERFLOW) tell(w, "overflow", w->list ? w->list[0].path : "/");
    if (at == w->count || w->list[at].wd != e->wd) return;
    if (e->mask & IN_IGNORED) {
        forget(w, at);
        return;
    }
    if (e->len) join(path, w->list[at].path, e->name);
    else snprintf(path, sizeof path, "%s", w->list[at].path);
    bool directory = e->mask & IN_ISDIR;
    if (e->mask & IN_CREATE) tell(w, "create", path);
    if (e->mask & (IN_MODIFY | IN_ATTRIB)) tell(w, "modify", path);
    /* Below another watched directory that one tells of it, with a name. */
    if (e->mask & IN_DELETE || (e->mask & IN_DELETE_SELF && at == 0)) tell(w, "remove", path);
    if (e->mask & IN_MOVED_FROM || (e->mask & IN_MOVE_SELF && at == 0)) tell(w, "move_from", path);
    if (e->mask & IN_MOVED_TO) tell(w, "move_to", path);
    if (w->recursive && directory && e->mask & IN_MOVED_FROM) drop_below(w, path);
    if (w->recursive && directory && e->mask & (IN_CREATE | IN_MOVED_TO)) walk_later(w, path, e->mask & IN_CREATE);
}

static void watch_later(struct timer *t) {
    struct watch *w = (struct watch *)((char *)t - offsetof(struct watch, later));
    source_want(&w->source, EPOLLIN);
}

static void watch_ready(struct source *source, uint32_t events) {
    struct watch *w = (struct watch *)source;
    char bytes[16384] __attribute__((aligned(8)));
    (void)events;
    if (conn_congested()) { /* the kernel keeps them, and says when it had to drop some */
        source_want(source, 0);
        timer_set(&w->later, CONGESTED_MS, watch_later);
        return;
    }
    ssize_t n = read(source->fd, bytes, sizeof bytes);
    for (ssize_t at = 0; at < n;) {
        const struct inotify_event *e = (const void *)(bytes + at);
        on_change(w, e);
        at += (ssize_t)(sizeof *e + e->len);
    }
}

static void watch_end(struct stream *s) {
    struct watch *w = s->subject;
    timer_cancel(&w->later);
    source_close(&w->source);
    while (w->pending) walk_done(w);
    while (w->count) forget(w, w->count - 1);
    free(w->list);
    free(w);
}

static const struct stream_ops watch_ops = {.step = watch_step, .end = watch_end};

void op_watch(struct stream *s, const struct json *request) {
    bool bad = false, recursive = json_get_bool(request, "recursive", false, &bad);
    const char *path = path_of(s, request, "path");
    if (!path) return;
    if (bad) {
        stream_error(s, "invalid", 0, "recursive is a bool");
        return;
    }
    int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (fd < 0) {
        stream_errno(s, errno, "watching");
        return;
    }
    struct watch *w = xalloc(sizeof *w);
    w->stream = s;
    w->recursive = recursive;
    source_open(&w->source, fd, 0, watch_ready);
    stream_bind(s, &watch_ops, w);
    int error = add(w, path, 0);
    if (error == ENOSPC) stream_error(s, "limit", error, "no more paths can be watched");
    else if (error) stream_errno(s, error, path);
    else if (recursive) walk_later(w, path, false);
    else stream_busy(s);
}

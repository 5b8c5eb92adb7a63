/* Removing a file or a whole tree, in slices, without following symlinks and without recursion. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files.h"
#include "loop.h"
#include "ops.h"

/* Directories near the top stay open; deeper ones are left by "..", and only if that still is where we came from:
 * somebody inside may move a directory away while we are in it. */
enum { HELD_OPEN = 32 };

struct level {
    DIR *dir; /* NULL: not held */
    char *name;
    dev_t device;
    ino_t inode;
};

struct removal {
    struct level *levels; /* levels[0] holds the parent of the tree, whose only entry of interest is levels[1].name */
    size_t depth, room;
    int64_t removed;
    char *path;
    bool dirty; /* something went since the last look at this directory's end */
};

static int descend(struct removal *r, const char *name) {
    struct stat st;
    int fd = directory_open(dirfd(r->levels[r->depth - 1].dir), name);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir || fstat(fd, &st) != 0) {
        int error = errno;
        if (dir) closedir(dir);
        else if (fd >= 0) close(fd);
        return error;
    }
    if (r->depth == r->room) {
        r->room *= 2;
        r->levels = realloc(r->levels, r->room * sizeof *r->levels);
        if (!r->levels) _exit(70);
    }
    r->levels[r->depth++] = (struct level){dir, strdup(name), st.st_dev, st.st_ino};
    if (r->depth - 1 > HELD_OPEN) { /* not before: `name` lies in what this frees */
        closedir(r->levels[r->depth - 2].dir);
        r->levels[r->depth - 2].dir = NULL;
    }
    return 0;
}

static int ascend(struct removal *r) {
    struct level *child = &r->levels[r->depth - 1], *parent = child - 1;
    struct stat st;
    if (!parent->dir) {
        int fd = openat(dirfd(child->dir), "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0) return errno;
        bool same = fstat(fd, &st) == 0 && st.st_dev == parent->device && st.st_ino == parent->inode;
        parent->dir = same ? fdopendir(fd) : NULL;
        if (!parent->dir) {
            close(fd);
            return EBUSY;
        }
    }
    closedir(child->dir);
    int error = unlinkat(dirfd(parent->dir), child->name, AT_REMOVEDIR) == 0 ? 0 : errno;
    free(child->name);
    r->depth--;
    r->removed += !error;
    r->dirty = true;
    return error;
}

/* One entry. 0, or what stops the removal. */
static int remove_next(struct removal *r) {
    struct level *here = &r->levels[r->depth - 1];
    errno = 0;
    struct dirent *e = readdir(here->dir);
    if (!e && errno) return errno;
    if (!e && r->dirty) { /* entries may have been skipped while others went: look again until a look finds none */
        r->dirty = false;
        rewinddir(here->dir);
        return 0;
    }
    if (!e) return ascend(r);
    if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) return 0;
    if (unlinkat(dirfd(here->dir), e->d_name, 0) == 0) {
        r->removed++;
        r->dirty = true;
        return 0;
    }
    if (errno == ENOENT) return 0;
    if (errno != EISDIR && errno != EPERM) return errno;
    int error = errno, down = descend(r, e->d_name);
    return down == ENOTDIR || down == ELOOP ? error : down;
}

static void remove_close(struct stream *s) {
    struct removal *r = s->subject;
    struct buf b = {0};
    json_begin(&b, NULL, '{');
    json_number(&b, "removed", r->removed);
    json_end(&b, '}');
    stream_close(s, &b);
}

static bool remove_step(struct stream *s) {
    struct removal *r = s->subject;
    for (int64_t stop = now_ns() + SLICE_NS; now_ns() < stop;) {
        int error = remove_next(r);
        if (!error && r->depth > 1) continue;
        if (error) stream_errno(s, error, r->path);
        else remove_close(s);
        return false;
    }
    return true;
}

static void remove_end(struct stream *s) {
    struct removal *r = s->subject;
    while (r->depth--) {
        if (r->levels[r->depth].dir) closedir(r->levels[r->depth].dir);
        free(r->levels[r->depth].name);
    }
    free(r->levels);
    free(r->path);
    free(r);
}

static const struct stream_ops remove_ops = {.step = remove_step, .end = remove_end};

/* Opens the parent and takes the first step, which for anything but a full directory is the only one. */
static int remove_begin(struct removal *r, char *path, bool recursive) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') path[--n] = 0;
    char *slash = strrchr(path, '/');
    const char *name = slash + 1;
    if (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) return EBUSY;
    *slash = 0;
    DIR *parent = opendir(slash == path ? "/" : path);
    *slash = '/';
    if (!parent) return errno;
    r->levels[r->depth++].dir = parent;
    int error = unlinkat(dirfd(parent), name, 0) == 0 ? 0 : errno;
    if (error == EISDIR || error == EPERM) { /* EPERM is what POSIX says for a directory */
        int as_directory = unlinkat(dirfd(parent), name, AT_REMOVEDIR) == 0 ? 0 : errno;
        if (as_directory != ENOTDIR) error = as_directory;
    }
    r->removed = !error;
    return recursive && (error == ENOTEMPTY || error == EEXIST) ? descend(r, name) : error;
}

void op_remove(struct stream *s, const struct json *request) {
    bool bad = false, recursive = json_get_bool(request, "recursive", false, &bad);
    const char *path = path_of(s, request, "path");
    if (!path) return;
    if (bad) {
        stream_error(s, "invalid", 0, "recursive is a bool");
        return;
    }
    struct removal *r = xalloc(sizeof *r);
    r->room = 16;
    r->levels = xalloc(r->room * sizeof *r->levels);
    r->path = strdup(path);
    stream_bind(s, &remove_ops, r);
    int error = remove_begin(r, r->path, recursive);
    if (error) stream_errno(s, error, path);
    else if (r->depth == 1) remove_close(s);
    else stream_busy(s);
}

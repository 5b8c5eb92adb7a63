/* Unpacking a tar stream below one directory: no name in it leads out, no symbolic link is followed, nothing but files,
 * directories and links is made, and each file is seen whole or not at all. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archive.h"
#include "files.h"
#include "loop.h"
#include "tar.h"

enum { MAX_LATE = 16 << 20 };

/* A directory whose time is set at the end, since what is put into it changes it. */
struct late {
    struct late *next;
    struct timespec mtime;
    char name[];
};

struct unpacking {
    int socket, root;
    const struct work_order *order;
    struct buf in, *result;
    bool over;           /* the stream's end was read */
    int64_t left;        /* of the present entry's data, not yet read */
    struct skips skips;
    int64_t count, made, bytes;
    int parent;          /* the directory of the last entry, open; or `root` */
    char parent_name[PATH_MAX], clean[PATH_MAX];
    struct late *late, **late_end;
    size_t late_size;
    int fatal;           /* an errno that ends it all */
    struct tar_entry entry;
};

static struct unpacking u; /* one a process */

/* At least one byte more; false: the stream has ended. */
static bool receive(void) {
    uint8_t *to = buf_reserve(&u.in, ARCHIVE_CHUNK);
    ssize_t n;
    do n = read(u.socket, to, ARCHIVE_CHUNK);
    while (n < 0 && errno == EINTR);
    if (n > 0) u.in.end += (size_t)n;
    else u.over = true;
    return n > 0;
}

static bool need(size_t n) {
    while (buf_len(&u.in) < n)
        if (!receive()) return false;
    return true;
}

/* The next bytes of the present entry, ARCHIVE_CHUNK at most; 0 at its end, or at the stream's (then `left` > 0). */
static size_t next_piece(void) {
    if (!u.left || (!buf_len(&u.in) && !receive())) return 0;
    return (int64_t)buf_len(&u.in) < u.left ? buf_len(&u.in) : (size_t)u.left;
}

static void took(size_t n) {
    buf_take(&u.in, n);
    u.left -= (int64_t)n;
}

static bool drain(void) {
    for (size_t n; (n = next_piece());) took(n);
    return !u.left;
}

/* Some errors are the entry's own; with these there is no use in going on. */
static const char *reason_of(int error) {
    if (error == ENOSPC || error == EDQUOT || error == EIO || error == EROFS || error == EMFILE || error == ENFILE || error == ENOMEM)
        u.fatal = error;
    if (error == ELOOP || error == ENOTDIR) return "a symbolic link or a file stands where its directory has to be";
    return error == EISDIR || error == ENOTEMPTY ? "a directory stands in its place" : strerror(error);
}

/* A name without `.` and doubled slashes in `to`; NULL, or why it cannot be. */
static const char *clean_name(const char *name, char to[PATH_MAX]) {
    size_t length = 0;
    int depth = 0;
    if (*name == '/') return "its name is absolute";
    while (*name) {
        size_t n = strcspn(name, "/");
        if (n == 2 && name[0] == '.' && name[1] == '.') return "its name leads out by ..";
        if (n > NAME_MAX) return "its name is too long";
        if (n && !(n == 1 && *name == '.')) {
            if (++depth > ARCHIVE_DEPTH) return "it is too deep";
            if (length) to[length++] = '/';
            memcpy(to + length, name, n);
            length += n;
        }
        name += n;
        name += strspn(name, "/");
    }
    to[length] = 0;
    return NULL;
}

static int child_directory(int at, const char *name, bool make) {
    int fd = directory_open(at, name);
    if (fd >= 0 || errno != ENOENT || !make) return fd;
    if (++u.made > u.order->max_entries) {
        u.fatal = errno = E2BIG;
        return -1;
    }
    if (mkdirat(at, name, 0755) != 0 && errno != EEXIST) return -1;
    return directory_open(at, name);
}

static void forget_parent(void) {
    if (u.parent != u.root) close(u.parent);
    u.parent = u.root;
    *u.parent_name = 0;
}

/* Opens the directory `clean` is in, kept for the next entry; `clean` is cut there. The last name, or NULL: errno. */
static const char *open_parent(char clean[PATH_MAX], bool make) {
    char *slash = strrchr(clean, '/');
    size_t have = strlen(u.parent_name), from = 0;
    if (!slash) {
        forget_parent();
        return clean;
    }
    *slash = 0;
    if (have && strcmp(u.parent_name, clean) == 0) return slash + 1;
    if (have && strncmp(u.parent_name, clean, have) == 0 && clean[have] == '/') from = have + 1;
    int at = from ? u.parent : u.root;
    for (char *name = clean + from, *end; name; name = end) {
        end = strchr(name, '/');
        if (end) *end = 0;
        int next = child_directory(at, name, make), error = errno;
        if (end) *end++ = '/';
        if (at != u.root && at != u.parent) close(at);
        if (next < 0) {
            errno = error;
            return NULL;
        }
        at = next;
    }
    forget_parent();
    u.parent = at;
    strcpy(u.parent_name, clean);
    return slash + 1;
}

static struct timespec mtime_of(const struct tar_entry *e) { return (struct timespec){e->mtime_s, e->mtime_ns}; }

/* What was made under a hidden name takes its place. 0 or an errno. */
static int publish(const char *temporary, const char *name, bool may_be_same) {
    int error = renameat(u.parent, temporary, u.parent, name) == 0 ? 0 : errno;
    if (error || may_be_same) unlinkat(u.parent, temporary, 0); /* between two names of one file nothing is renamed */
    return error;
}

static int write_content(int fd) {
    for (size_t n; (n = next_piece());) {
        ssize_t got = write(fd, buf_at(&u.in), n);
        if (got < 0 && errno != EINTR) return errno;
        if (got > 0) took((size_t)got);
    }
    return 0;
}

static const char *make_file(const char *name) {
    char temporary[TEMPORARY_NAME];
    struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, mtime_of(&u.entry)};
    temporary_name(temporary);
    int64_t size = u.left;
    /* No umask is in the way here, and a set-group-id directory adds no bit that a file would keep. */
    int fd = openat(u.parent, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, u.entry.mode & 01777);
    if (fd < 0) return reason_of(errno);
    int error = write_content(fd);
    bool whole = !error && !u.left;
    if (whole && futimens(fd, times) != 0) error = errno;
    close(fd);
    if (!whole || error) unlinkat(u.parent, temporary, 0);
    else error = publish(temporary, name, false);
    if (error) return reason_of(error);
    if (whole) u.bytes += size;
    return NULL;
}

static const char *make_symlink(const char *name) {
    char temporary[TEMPORARY_NAME];
    struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, mtime_of(&u.entry)};
    if (!*u.entry.link) return "it leads nowhere";
    temporary_name(temporary);
    int error = symlinkat(u.entry.link, u.parent, temporary) == 0 ? 0 : errno;
    if (!error) utimensat(u.parent, temporary, times, AT_SYMLINK_NOFOLLOW); /* not every file system keeps a link's time */
    if (!error) error = publish(temporary, name, false);
    return error ? reason_of(error) : NULL;
}

static const char *make_hard_link(void) {
    static char from[PATH_MAX], copy[PATH_MAX];
    char temporary[TEMPORARY_NAME];
    struct stat st;
    const char *wrong = clean_name(u.entry.link, from), *name, *first;
    if (wrong || !*from) return "the file it is another name of is not in the archive's directory";
    strcpy(copy, u.clean);
    if (!(first = open_parent(from, false))) return "the file it is another name of is not there";
    int source = fcntl(u.parent, F_DUPFD_CLOEXEC, 3);
    if (source < 0) return reason_of(errno);
    wrong = NULL;
    temporary_name(temporary);
    if (fstatat(source, first, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode)) wrong = "what it is another name of is no file that is there";
    else if (!(name = open_parent(copy, true))) wrong = reason_of(errno);
    else {
        int error = linkat(source, first, u.parent, temporary, 0) == 0 ? 0 : errno;
        if (!error) error = publish(temporary, name, true);
        if (error) wrong = reason_of(error);
    }
    close(source);
    return wrong;
}

static void set_later(void) {
    size_t n = strlen(u.clean) + 1;
    if (u.late_size + n > MAX_LATE) return;
    struct late *l = xalloc(sizeof *l + n);
    *l = (struct late){NULL, mtime_of(&u.entry)};
    memcpy(l->name, u.clean, n);
    *u.late_end = l;
    u.late_end = &l->next;
    u.late_size += n + sizeof *l;
}

static const char *make_directory(void) {
    static char copy[PATH_MAX];
    strcpy(copy, u.clean);
    const char *name = open_parent(copy, true);
    int fd = name ? child_directory(u.parent, name, true) : -1;
    if (fd < 0) return name && errno == ENOTDIR ? "something that is no directory stands in its place" : reason_of(errno);
    if (fchmod(fd, u.entry.mode & 01777) != 0) u.fatal = errno;
    set_later();
    close(fd);
    return NULL;
}

static void set_times(void) {
    static char copy[PATH_MAX];
    for (struct late *l = u.late; l; l = l->next) {
        struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, l->mtime};
        strcpy(copy, l->name);
        const char *name = open_parent(copy, false);
        int fd = name ? child_directory(u.parent, name, false) : -1;
        if (fd < 0) continue; /* somebody inside has moved it */
        futimens(fd, times);
        close(fd);
    }
}

/* NULL, or why the entry is not there. */
static const char *place(void) {
    static char copy[PATH_MAX];
    if (u.entry.unusable) return "no file can have such a name";
    const char *wrong = clean_name(u.entry.name, u.clean), *name;
    if (wrong) return wrong;
    if (u.entry.sparse) return "it is stored with holes, in a format that is not taken: pack it without --sparse";
    if (!*u.clean) return u.entry.type == TAR_DIR ? NULL : "it has no name"; /* the directory itself keeps its mode */
    switch (u.entry.type) {
    case TAR_DIR: return make_directory();
    case TAR_HARD_LINK: return make_hard_link();
    case TAR_FILE: case TAR_SYMLINK:
        strcpy(copy, u.clean);
        if (!(name = open_parent(copy, true))) return reason_of(errno);
        return u.entry.type == TAR_FILE ? make_file(name) : make_symlink(name);
    case TAR_CHAR: case TAR_BLOCK_DEVICE: return "it is a device";
    case TAR_FIFO: return "it is a FIFO";
    default: return "it is of an unknown type";
    }
}

static bool fail(const char *code, int error, const char *why) {
    work_fail(u.result, code, error, "%s; before that %lld entries were unpacked", why, (long long)u.count);
    return false;
}

static bool too_many(void) { return fail("limit", 0, "it has more entries than may be unpacked at once"); }

static bool cut_off(void) { return fail("invalid", 0, "the archive ends early"); }

/* An extended header's data is what it says about the next entry. */
static bool read_extended(int type, int64_t size) {
    if (type == TAR_PAX_GLOBAL) { /* comments, in practice; nothing in it is an entry's */
        u.left = size + tar_padding(size);
        return drain() || cut_off();
    }
    if (size > TAR_EXTENDED) return fail("invalid", 0, "an extended header is too long");
    if (!need((size_t)(size + tar_padding(size)))) return cut_off();
    const char *text = (const char *)buf_at(&u.in);
    bool good = true;
    if (type == TAR_PAX) good = tar_read_pax(text, (size_t)size, &u.entry);
    else tar_read_long(text, (size_t)size, &u.entry, type == TAR_LONG_LINK);
    buf_take(&u.in, (size_t)(size + tar_padding(size)));
    return good || fail("invalid", 0, "an extended header is malformed");
}

static bool read_map(void) { /* of the old sparse format: more blocks before the data */
    while (u.entry.continued) {
        if (!need(TAR_BLOCK)) return cut_off();
        u.entry.continued = buf_at(&u.in)[504] != 0;
        buf_take(&u.in, TAR_BLOCK);
    }
    return true;
}

static bool take_entry(void) {
    int64_t size = tar_has_data(&u.entry) ? u.entry.size : 0;
    if (size > u.order->max_bytes - u.bytes) return fail("limit", 0, "its files are larger than what may be unpacked at once");
    if (++u.made > u.order->max_entries) return too_many();
    if (!read_map()) return false;
    u.left = size;
    const char *wrong = place();
    if (u.fatal == E2BIG) return too_many();
    if (u.fatal) return fail(error_code(u.fatal), u.fatal, strerror(u.fatal));
    bool whole = !u.left || wrong;
    u.left += tar_padding(size);
    if (!whole || !drain()) return cut_off();
    if (wrong) skip(&u.skips, u.entry.name, wrong);
    else u.count++;
    return true;
}

static bool take_all(void) {
    static struct tar_entry header;
    for (bool first = true;; first = false) {
        if (!need(TAR_BLOCK)) return cut_off();
        /* An extended header's own size and names are not the entry's. */
        bool extended = tar_is_extended(buf_at(&u.in));
        enum tar_state state = tar_read(buf_at(&u.in), extended ? &header : &u.entry);
        if (state == TAR_BROKEN) return fail("invalid", 0, first ? "this is no tar archive (or a compressed one)" : "the archive is damaged");
        buf_take(&u.in, TAR_BLOCK);
        if (state == TAR_END) return true;
        if (extended ? !read_extended(header.type, header.size) : !take_entry()) return false;
        if (!extended) memset(&u.entry, 0, sizeof u.entry);
    }
}

void unpack_main(int socket, const struct work_order *order, struct buf *result) {
    u = (struct unpacking){.socket = socket, .root = order->directory, .parent = order->directory, .order = order, .result = result};
    u.late_end = &u.late;
    bool whole = take_all();
    set_times();
    u.left = INT64_MAX;
    while (whole && !u.over) drain(); /* what lies behind the end: zeros, in practice */
    if (whole) archive_report(result, u.count, u.bytes, &u.skips);
}

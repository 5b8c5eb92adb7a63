/* Packing a tree: a walk by descriptors that follows no symbolic link and leaves neither the tree nor its file system. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archive.h"
#include "files.h"
#include "tar.h"

enum { LINK_BUCKETS = 4096, MAX_LINKS = 65536, MAX_LINK_NAMES = 16 << 20, LOOK_EVERY = 1024 };

/* A file with several names that is in the archive already: its other names become links. */
struct known {
    dev_t device;
    ino_t inode;
    struct known *next;
    char name[];
};

struct packing {
    int socket;
    const struct work_order *order;
    struct buf out, *result;
    struct skips skips;
    int64_t count, bytes;
    dev_t device;
    DIR *levels[ARCHIVE_DEPTH + 1];
    size_t ends[ARCHIVE_DEPTH + 1]; /* where each level's part of `entry.name` ends */
    int depth;
    struct known *known[LINK_BUCKETS];
    int known_count;
    size_t known_size;
    struct tar_entry entry;
};

static struct packing p; /* one a process */

/* False: nobody reads any more. */
static bool flush(void) {
    bool sent = work_write(p.socket, buf_at(&p.out), buf_len(&p.out));
    buf_take(&p.out, buf_len(&p.out));
    return sent;
}

static bool room(void) { return buf_len(&p.out) < ARCHIVE_CHUNK || flush(); }

static void leave_out(const char *reason) {
    struct pollfd reader = {.fd = p.socket};
    skip(&p.skips, p.entry.name, reason);
    /* A walk that only leaves out would not notice that nobody waits for it. */
    if (p.skips.count % LOOK_EVERY == 0 && poll(&reader, 1, 0) > 0 && reader.revents & (POLLHUP | POLLERR)) _exit(0);
}

static void describe(const struct stat *st, int type) {
    p.entry.type = type;
    p.entry.size = type == TAR_FILE ? st->st_size : 0;
    p.entry.mode = st->st_mode & 07777;
    p.entry.uid = st->st_uid;
    p.entry.gid = st->st_gid;
    p.entry.mtime_s = st->st_mtim.tv_sec;
    p.entry.mtime_ns = (uint32_t)st->st_mtim.tv_nsec;
}

static bool put_header(const struct buf *more) {
    tar_write(&p.out, &p.entry, more);
    p.count++;
    return room();
}

static struct known **bucket_of(const struct stat *st) { return &p.known[(st->st_ino ^ st->st_dev * 31) % LINK_BUCKETS]; }

static const char *known_name(const struct stat *st) {
    struct known *k = *bucket_of(st);
    while (k && (k->inode != st->st_ino || k->device != st->st_dev)) k = k->next;
    return k ? k->name : NULL;
}

/* Beyond the bounds the other names are whole files, which max_bytes bounds. */
static void remember(const struct stat *st) {
    size_t n = strlen(p.entry.name) + 1;
    if (p.known_count >= MAX_LINKS || p.known_size + n > MAX_LINK_NAMES) return;
    struct known *k = xalloc(sizeof *k + n), **bucket = bucket_of(st);
    *k = (struct known){st->st_dev, st->st_ino, *bucket};
    memcpy(k->name, p.entry.name, n);
    *bucket = k;
    p.known_count++;
    p.known_size += n;
}

/* Exactly as many bytes as the header says, whatever happens to the file meanwhile. */
static bool put_content(int fd, int64_t size) {
    int64_t left = size + tar_padding(size);
    int64_t real = size;
    for (int64_t n; left > 0; left -= n, real -= n) {
        n = left < ARCHIVE_CHUNK ? left : ARCHIVE_CHUNK;
        uint8_t *to = buf_reserve(&p.out, (size_t)n);
        ssize_t got = real > 0 ? read(fd, to, (size_t)(n < real ? n : real)) : 0;
        if (got < 0 && errno == EINTR) got = 0, n = 0;
        else if (got > 0) n = got;
        else {
            if (real > 0) leave_out(got < 0 ? "it could not be read to its end: zeros stand for the rest"
                                            : "it shrank while it was read: zeros stand for the rest");
            memset(to, 0, (size_t)n);
            real = 0;
        }
        p.out.end += (size_t)n;
        if (!room()) return false;
    }
    p.bytes += size;
    return true;
}

static bool put_link(const struct stat *st, const char *target) {
    describe(st, TAR_HARD_LINK);
    strcpy(p.entry.link, target);
    bool going = put_header(NULL);
    *p.entry.link = 0;
    return going;
}

static bool put_file(int directory, const char *name) {
    struct stat st;
    int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) { /* it may be something else by now */
        leave_out(fd < 0 ? strerror(errno) : "it changed while it was looked at");
        if (fd >= 0) close(fd);
        return true;
    }
    const char *first = st.st_nlink > 1 ? known_name(&st) : NULL;
    bool going = true;
    if (first) going = put_link(&st, first);
    else if (st.st_size > p.order->max_bytes - p.bytes) leave_out("it is larger than what is left of the archive's size limit");
    else {
        if (st.st_nlink > 1) remember(&st);
        describe(&st, TAR_FILE);
        going = put_header(NULL) && put_content(fd, st.st_size);
    }
    close(fd);
    return going;
}

static bool put_symlink(int directory, const char *name, const struct stat *st) {
    ssize_t n = readlinkat(directory, name, p.entry.link, sizeof p.entry.link - 1);
    bool going = true;
    p.entry.link[n < 0 ? 0 : n] = 0;
    if (n <= 0) leave_out(n < 0 ? strerror(errno) : "it leads nowhere");
    else {
        describe(st, TAR_SYMLINK);
        going = put_header(NULL);
    }
    *p.entry.link = 0;
    return going;
}

static bool enter(int directory, const char *name, size_t end) {
    struct stat st;
    int fd = p.depth == ARCHIVE_DEPTH ? -1 : directory_open(directory, name);
    const char *why = p.depth == ARCHIVE_DEPTH ? "it is too deep" : fd < 0 ? strerror(errno) : NULL;
    if (fd >= 0 && (fstat(fd, &st) != 0 || st.st_dev != p.device)) why = "it is another file system";
    if (fd >= 0 && !why && end + 2 > sizeof p.entry.name) why = "its name is too long";
    DIR *dir = why ? NULL : fdopendir(fd);
    if (!dir) {
        leave_out(why ? why : strerror(errno));
        if (fd >= 0) close(fd);
        return true;
    }
    strcpy(p.entry.name + end, "/");
    describe(&st, TAR_DIR);
    p.levels[++p.depth] = dir;
    p.ends[p.depth] = end + 1;
    return put_header(NULL);
}

static bool put_entry(int directory, const char *name) {
    struct stat st;
    size_t start = p.ends[p.depth], n = strlen(name);
    if (start + n + 1 > sizeof p.entry.name) {
        leave_out("a name in it is too long");
        return true;
    }
    memcpy(p.entry.name + start, name, n + 1);
    if (fstatat(directory, name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno != ENOENT) leave_out(strerror(errno)); /* else it is gone since it was listed */
        return true;
    }
    switch (st.st_mode & S_IFMT) {
    case S_IFREG: return put_file(directory, name);
    case S_IFDIR: return enter(directory, name, start + n);
    case S_IFLNK: return put_symlink(directory, name, &st);
    case S_IFSOCK: leave_out("it is a socket"); return true;
    case S_IFIFO: leave_out("it is a FIFO"); return true;
    default: leave_out("it is a device"); return true;
    }
}

static bool walk(void) {
    while (p.depth >= 0) {
        DIR *dir = p.levels[p.depth];
        errno = 0;
        struct dirent *e = readdir(dir);
        p.entry.name[p.ends[p.depth]] = 0;
        if (!e) {
            if (errno) leave_out("it could not be listed to its end");
            closedir(dir);
            p.depth--;
        } else if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            if (p.count + p.skips.count >= p.order->max_entries) {
                work_fail(p.result, "limit", 0, "there are more than %lld entries", (long long)p.order->max_entries);
                return false;
            }
            if (!put_entry(dirfd(dir), e->d_name)) return false;
        }
    }
    return true;
}

/* The directory itself comes last: with it, in a vendor's pax record, comes what the archive leaves out. */
static bool put_root(const struct stat *st) {
    struct buf pax = {0}, list = {0};
    strcpy(p.entry.name, "./");
    describe(st, TAR_DIR);
    if (p.skips.count) {
        json_begin(&list, NULL, '{');
        skips_put(&list, &p.skips);
        json_end(&list, '}');
        tar_put_record(&pax, "SKERRY.skipped", (const char *)buf_at(&list), buf_len(&list));
    }
    return put_header(&pax);
}

void pack_main(int socket, const struct work_order *order, struct buf *result) {
    static const uint8_t end[2 * TAR_BLOCK];
    struct stat st;
    p = (struct packing){.socket = socket, .order = order, .result = result};
    if (fstat(order->directory, &st) != 0 || !(p.levels[0] = fdopendir(order->directory))) {
        work_fail(result, error_code(errno), errno, "the directory: %s", strerror(errno));
        return;
    }
    p.device = st.st_dev;
    if (!walk() || !put_root(&st)) return;
    buf_put(&p.out, end, sizeof end);
    if (flush()) archive_report(result, p.count, p.bytes, &p.skips);
}

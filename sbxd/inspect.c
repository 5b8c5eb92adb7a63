/* What runs inside, and which TCP ports listen: looked up in /proc by a worker, one JSON object a line. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command.h"
#include "ops.h"
#include "tree.h"
#include "work.h"

enum { MAX_PROCESSES = 8192, MAX_PORTS = 4096, MAX_ARGV = 4096, MAX_ANCESTORS = 256, FLUSH_AT = 65536, MAX_LINKS = 262144,
       LISTENING = 10 };

struct process {
    pid_t pid, parent;
};

struct listener {
    unsigned port;
    unsigned long long inode;
    int family, uid;
    pid_t pid; /* 0: not known */
    char address[INET6_ADDRSTRLEN];
};

static struct process processes[MAX_PROCESSES];
static int process_count;

static size_t read_small(const char *path, char *to, size_t room) {
    int fd = openat(tree_proc_fd(), path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, to, room - 1);
    if (fd >= 0) close(fd);
    to[n > 0 ? n : 0] = 0;
    return n > 0 ? (size_t)n : 0;
}

static int by_pid(const void *a, const void *b) {
    pid_t x = ((const struct process *)a)->pid, y = ((const struct process *)b)->pid;
    return (x > y) - (x < y);
}

static DIR *open_directory(const char *path) {
    int fd = openat(tree_proc_fd(), path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? NULL : fdopendir(fd);
}

/* Every process and its parent, by pid. */
static void look(void) {
    char path[64], text[1024], state;
    DIR *dir = open_directory(".");
    for (struct dirent *e; dir && process_count < MAX_PROCESSES && (e = readdir(dir));) {
        struct process *p = &processes[process_count];
        if (e->d_name[0] < '1' || e->d_name[0] > '9') continue;
        snprintf(path, sizeof path, "%.20s/stat", e->d_name);
        read_small(path, text, sizeof text);
        char *name_end = strrchr(text, ')');
        p->pid = atoi(e->d_name);
        process_count += name_end && sscanf(name_end + 1, " %c %d", &state, &p->parent) == 2;
    }
    if (dir) closedir(dir);
    qsort(processes, (size_t)process_count, sizeof *processes, by_pid);
}

static bool is_ours(pid_t pid) { return pid == getpid() || pid == getppid() || keeper_is(pid) || work_is(pid); }

static const char *command_of(pid_t pid) {
    for (int i = 0; i < MAX_ANCESTORS; i++) {
        const struct process *p = bsearch(&(struct process){.pid = pid}, processes, (size_t)process_count, sizeof *p, by_pid);
        if (!p) return NULL;
        if (keeper_is(p->parent)) return command_kept_by(p->parent);
        pid = p->parent;
    }
    return NULL;
}

static void put_argv(struct buf *out, pid_t pid) {
    char path[64], text[MAX_ARGV];
    snprintf(path, sizeof path, "%d/cmdline", pid);
    size_t n = read_small(path, text, sizeof text);
    json_begin(out, "argv", '[');
    for (char *at = text; at < text + n; at += strlen(at) + 1) json_string(out, NULL, at);
    json_end(out, ']');
}

static long uid_of(pid_t pid) {
    char path[64], text[4096];
    snprintf(path, sizeof path, "%d/status", pid);
    read_small(path, text, sizeof text);
    const char *line = strstr(text, "\nUid:"); /* a name before it has its line feeds escaped */
    return line ? strtol(line + 5, NULL, 10) : 0;
}

static void put_process(struct buf *out, const struct process *p, double uptime) {
    char path[64], text[1024], state = '?';
    unsigned long user = 0, system = 0;
    unsigned long long started = 0;
    long pages = 0, ticks = sysconf(_SC_CLK_TCK);
    snprintf(path, sizeof path, "%d/stat", p->pid);
    read_small(path, text, sizeof text);
    char *name = strchr(text, '('), *end = strrchr(text, ')');
    if (!name || !end || end < name) return; /* it has ended */
    if (sscanf(end + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %*d %*d %*d %*d %*d %*d %llu %*u %ld", &state, &user,
               &system, &started, &pages) < 4) return;
    double age = uptime - (double)started / (double)ticks;
    json_begin(out, NULL, '{');
    json_number(out, "pid", p->pid);
    json_number(out, "ppid", p->parent);
    json_number(out, "uid", uid_of(p->pid));
    json_text(out, "name", name + 1, (size_t)(end - name - 1));
    put_argv(out, p->pid);
    json_text(out, "state", &state, 1);
    json_number(out, "cpu_ms", (int64_t)((user + system) * 1000.0 / (double)ticks));
    json_number(out, "rss_bytes", pages > 0 ? pages * sysconf(_SC_PAGESIZE) : 0);
    json_number(out, "age_ms", age > 0 ? (int64_t)(age * 1000) : 0);
    const char *command = command_of(p->pid);
    if (command) json_string(out, "command", command);
    json_end(out, '}');
    buf_puts(out, "\n");
}

static void conclude(struct buf *result, int64_t count) {
    json_begin(result, NULL, '{');
    json_number(result, "count", count);
    json_end(result, '}');
}

static bool send_lines(int socket, struct buf *lines, size_t unless_below) {
    if (buf_len(lines) < unless_below) return true;
    bool sent = work_write(socket, buf_at(lines), buf_len(lines));
    buf_take(lines, buf_len(lines));
    return sent;
}

static void processes_main(int socket, const struct work_order *order, struct buf *result) {
    struct buf lines = {0};
    char text[64];
    int64_t count = 0;
    (void)order;
    look();
    read_small("uptime", text, sizeof text);
    for (int i = 0; i < process_count; i++) {
        size_t before = buf_len(&lines);
        if (is_ours(processes[i].pid)) continue;
        put_process(&lines, &processes[i], strtod(text, NULL));
        count += buf_len(&lines) > before;
        if (!send_lines(socket, &lines, FLUSH_AT)) return;
    }
    if (send_lines(socket, &lines, 0)) conclude(result, count);
}

static bool read_listener(const char *line, int family, struct listener *to) {
    char address[33];
    unsigned state;
    uint32_t words[4] = {0};
    if (sscanf(line, " %*d: %32[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*x:%*x %*x:%*x %*x %d %*d %llu", address, &to->port, &state,
               &to->uid, &to->inode) != 5 || state != LISTENING || to->port > 65535) return false;
    size_t count = family == AF_INET ? 1 : 4;
    if (strlen(address) != count * 8) return false;
    for (size_t i = 0; i < count; i++) { /* words in the machine's own order */
        char word[9] = {0};
        memcpy(word, address + i * 8, 8);
        words[i] = (uint32_t)strtoul(word, NULL, 16);
    }
    to->family = family;
    to->pid = 0;
    return inet_ntop(family, words, to->address, sizeof to->address) != NULL;
}

static int read_listeners(const char *path, int family, struct listener *list, int count) {
    char line[512];
    int fd = openat(tree_proc_fd(), path, O_RDONLY | O_CLOEXEC);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
    while (file && count < MAX_PORTS && fgets(line, sizeof line, file)) count += read_listener(line, family, &list[count]);
    if (file) fclose(file);
    return count;
}

/* Which process holds a socket is found by looking at everybody's descriptors. */
static void find_holders(struct listener *list, int count) {
    char path[64], target[64];
    int looked = 0;
    for (int i = 0; i < process_count; i++) {
        snprintf(path, sizeof path, "%d/fd", processes[i].pid);
        DIR *dir = open_directory(path);
        for (struct dirent *e; dir && looked < MAX_LINKS && (e = readdir(dir)); looked++) {
            ssize_t n = readlinkat(dirfd(dir), e->d_name, target, sizeof target - 1);
            unsigned long long inode;
            target[n > 0 ? n : 0] = 0;
            if (sscanf(target, "socket:[%llu]", &inode) != 1) continue;
            for (int k = 0; k < count; k++)
                if (list[k].inode == inode && !list[k].pid) list[k].pid = processes[i].pid;
        }
        if (dir) closedir(dir);
    }
}

static void ports_main(int socket, const struct work_order *order, struct buf *result) {
    static struct listener list[MAX_PORTS];
    struct buf lines = {0};
    (void)order;
    int count = read_listeners("self/net/tcp", AF_INET, list, 0);
    count = read_listeners("self/net/tcp6", AF_INET6, list, count);
    look();
    if (count) find_holders(list, count);
    for (int i = 0; i < count; i++) {
        json_begin(&lines, NULL, '{');
        json_number(&lines, "port", list[i].port);
        json_string(&lines, "address", list[i].address);
        json_string(&lines, "family", list[i].family == AF_INET ? "ipv4" : "ipv6");
        json_number(&lines, "uid", list[i].uid);
        if (list[i].pid) json_number(&lines, "pid", list[i].pid);
        const char *command = list[i].pid ? command_of(list[i].pid) : NULL;
        if (command) json_string(&lines, "command", command);
        json_end(&lines, '}');
        buf_puts(&lines, "\n");
    }
    if (send_lines(socket, &lines, 0)) conclude(result, count);
}

static void begin(struct stream *s, work_main *run) {
    struct work_order order = {.directory = -1};
    work_start(s, run, &order);
}

void op_processes(struct stream *s, const struct json *request) {
    (void)request;
    begin(s, processes_main);
}

void op_ports(struct stream *s, const struct json *request) {
    (void)request;
    begin(s, ports_main);
}

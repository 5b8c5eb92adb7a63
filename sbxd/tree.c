#include "tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "buf.h"

enum { STOP_ROUNDS = 16 };

struct process {
    pid_t pid, parent;
    bool zombie, member;
};

static int proc_fd = -1;

void tree_init(void) { proc_fd = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC); }

int tree_proc_fd(void) { return proc_fd; }

void tree_use_proc_fd(int fd) { proc_fd = fd; }

/* "pid (name) S ppid …"; the name may hold anything, so the last ')' counts. */
static bool read_stat(const char *pid, struct process *p) {
    char path[32], text[512];
    snprintf(path, sizeof path, "%.20s/stat", pid);
    int fd = openat(proc_fd, path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    if (n <= 0) return false;
    text[n] = 0;
    char state, *name_end = strrchr(text, ')');
    int parent;
    if (!name_end || sscanf(name_end + 1, " %c %d", &state, &parent) != 2) return false;
    *p = (struct process){.pid = atoi(pid), .parent = parent, .zombie = state == 'Z' || state == 'X'};
    return true;
}

static int read_all(struct process **list) {
    int count = 0, room = 0, fd = openat(proc_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    *list = NULL;
    if (!dir) {
        if (fd >= 0) close(fd);
        return 0;
    }
    for (struct dirent *e; (e = readdir(dir));) {
        if (e->d_name[0] < '1' || e->d_name[0] > '9') continue;
        if (count == room) {
            room = room ? room * 2 : 64;
            struct process *more = realloc(*list, (size_t)room * sizeof **list);
            if (!more) break;
            *list = more;
        }
        count += read_stat(e->d_name, &(*list)[count]);
    }
    closedir(dir);
    return count;
}

static bool is_member(const struct process *list, int count, pid_t pid) {
    for (int low = 0, high = count - 1; low <= high;) {
        int middle = (low + high) / 2;
        if (list[middle].pid == pid) return list[middle].member;
        if (list[middle].pid < pid) low = middle + 1;
        else high = middle - 1;
    }
    return false;
}

static int by_pid(const void *a, const void *b) {
    const struct process *x = a, *y = b;
    return (x->pid > y->pid) - (x->pid < y->pid);
}

static bool among(pid_t pid, const pid_t *list, int count) {
    for (int i = 0; i < count; i++)
        if (list[i] == pid) return true;
    return false;
}

static int mark_members(struct process *list, int count, pid_t root, const pid_t *spared, int spared_count) {
    int members = 0;
    qsort(list, (size_t)count, sizeof *list, by_pid);
    for (bool changed = true; changed;) { /* children mostly have higher pids than parents: few rounds */
        changed = false;
        for (int i = 0; i < count; i++) {
            struct process *p = &list[i];
            if (p->member || among(p->pid, spared, spared_count)) continue;
            if (p->parent != root && !is_member(list, count, p->parent)) continue;
            p->member = changed = true;
            members += !p->zombie;
        }
    }
    return members;
}

int tree_signal(pid_t root, int signal, const pid_t *spared, int spared_count) {
    struct process *list;
    int count = read_all(&list), members = mark_members(list, count, root, spared, spared_count);
    for (int i = 0; i < count; i++)
        if (list[i].member && !list[i].zombie) kill(list[i].pid, signal);
    free(list);
    return members;
}

bool tree_kill_pass(pid_t root, const pid_t *spared, int spared_count) {
    /* A stopped process forks no more. Once a look finds as many as the one before, all are stopped. */
    int before = -1, now = tree_signal(root, SIGSTOP, spared, spared_count);
    for (int round = 0; now && now != before && round < STOP_ROUNDS; round++) {
        before = now;
        now = tree_signal(root, SIGSTOP, spared, spared_count);
    }
    return now == 0 || tree_signal(root, SIGKILL, spared, spared_count) == 0;
}

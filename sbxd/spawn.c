#include "spawn.h"

#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

struct child {
    struct run *run;
    const int *fds;
};

void *run_alloc(struct run *r, size_t size) {
    size_t at = (r->used + 15) & ~(size_t)15;
    if (at > RUN_SIZE || size > RUN_SIZE - at) return NULL;
    r->used = at + size;
    return memset((char *)r + at, 0, size); /* an earlier command's bytes may lie here */
}

char *run_text(struct run *r, const char *a, const char *b) {
    size_t n = strlen(a), m = strlen(b);
    if (n + m + 1 > RUN_SIZE - r->used) return NULL;
    char *text = (char *)r + r->used;
    r->used += n + m + 1;
    memcpy(text, a, n);
    memcpy(text + n, b, m + 1);
    return text;
}

/* Below runs in the child, which shares its memory with the keeper until exec: no allocation, no locks, no libc state.
 * ASAN does not know the child's stack. */
#define IN_CHILD __attribute__((no_sanitize("address", "undefined")))

IN_CHILD static void fail(struct run *r, int stage) {
    r->stage = stage;
    r->error = errno;
    _exit(127);
}

IN_CHILD static const char *search_path(char **env) {
    for (; *env; env++)
        if (strncmp(*env, "PATH=", 5) == 0) return *env + 5;
    return "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
}

/* Returns only on failure, with the errno that tells most: a program without permission before none at all. */
IN_CHILD static void execute(struct run *r) {
    char path[PATH_MAX];
    size_t name = strlen(r->argv[0]);
    int worst = ENOENT;
    if (strchr(r->argv[0], '/')) {
        execve(r->argv[0], r->argv, r->env);
        return;
    }
    for (const char *p = search_path(r->env), *next; name; p = next + 1) {
        next = strchrnul(p, ':');
        size_t n = (size_t)(next - p);
        if (n + name + 2 <= sizeof path) {
            memcpy(path, p, n);
            path[n] = '/';
            memcpy(path + n + (n > 0), r->argv[0], name + 1); /* an empty entry is the current directory */
            execve(path, r->argv, r->env);
            if (errno != ENOENT && errno != ENOTDIR && errno != EACCES) return;
            if (errno == EACCES) worst = EACCES;
        }
        if (!*next) break;
    }
    errno = worst;
}

IN_CHILD static void become_user(struct run *r) {
    if (!r->as_user) return;
    /* The bare system calls: libc's versions signal other threads, and there are none. */
    if (syscall(SYS_setgroups, r->group_count, r->groups) != 0 || syscall(SYS_setresgid, r->gid, r->gid, r->gid) != 0 ||
        syscall(SYS_setresuid, r->uid, r->uid, r->uid) != 0) fail(r, STAGE_USER);
}

IN_CHILD static int child_main(void *argument) {
    struct child *c = argument;
    struct run *r = c->run;
    sigset_t none;
    setsid();
    for (int i = 0; i < 3; i++)
        if (c->fds[i] >= 0 && dup2(c->fds[i], i) < 0) fail(r, STAGE_FORK);
    if (r->tty && ioctl(0, TIOCSCTTY, 0) != 0) fail(r, STAGE_TTY);
    become_user(r);
    if (chdir(r->cwd) != 0 && (!r->cwd_fallback || chdir("/") != 0)) fail(r, STAGE_CWD);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (r->shell) {
        r->argv[0] = (char *)"/bin/bash"; /* called as sh it would be in POSIX mode */
        execve(r->argv[0], r->argv, r->env);
        r->argv[0] = (char *)"/bin/sh";
    }
    execute(r);
    fail(r, STAGE_EXEC);
    return 127;
}

void spawn(struct run *r, const int fds[3]) {
    static char stack[65536] __attribute__((aligned(16)));
    struct child c = {r, fds};
    /* The parent waits until exec and lends its memory: a fork that copies nothing. The kernel writes the pid into
     * the shared block itself, so it is known even if the keeper is killed at this very moment. */
    int flags = CLONE_VM | CLONE_VFORK | CLONE_PARENT_SETTID | SIGCHLD;
    if (clone(child_main, stack + sizeof stack, flags, &c, &r->pid, NULL, NULL) >= 0) return;
    r->pid = 0;
    r->stage = STAGE_FORK;
    r->error = errno;
}

#include "keeping.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "keeper.h"
#include "loop.h"
#include "tree.h"

enum { SOCKET = 3, PROC = 4, KILL_ROUND_MS = 5, KILL_PATIENCE_NS = 2000000000 };

static struct rlimit descriptor_limit;
static struct run *run;
static bool killing, told_end, told_empty;
static int64_t kill_start;

void keeping_set_limit(uint64_t soft, uint64_t hard) { descriptor_limit = (struct rlimit){soft, hard}; }

void keeping_note_end(struct run *r, const siginfo_t *info) {
    r->code = info->si_code == CLD_EXITED ? info->si_status : 0;
    r->signal = info->si_code == CLD_EXITED ? 0 : info->si_status;
    r->ended = true;
}

static void say(int news) {
    struct keeper_word word = {.kind = news};
    while (send(SOCKET, &word, sizeof word, MSG_NOSIGNAL) < 0)
        if (errno != EINTR) _exit(0);
}

/* Reaps all that ended; true when no child is left at all. The main process' status is written down before its pid
 * is given back, so it is never lost, even if this keeper is killed between the two. */
static bool reap(void) {
    for (siginfo_t info;;) {
        info.si_pid = 0;
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) != 0) return errno == ECHILD;
        if (!info.si_pid) return false;
        if (info.si_pid == run->pid && !run->ended) keeping_note_end(run, &info);
        waitpid(info.si_pid, NULL, WNOHANG | __WALL);
    }
}

static void report(void) {
    bool empty = reap(), patient = killing && now_ns() - kill_start < KILL_PATIENCE_NS;
    int news = 0;
    /* After a kill the end is told once nobody is left; a process that cannot die delays it by 2 s at most. */
    if (run->ended && !told_end && (empty || !patient)) news |= KEEPER_ENDED;
    if (empty && !told_empty) news |= KEEPER_EMPTY;
    if (!news) return;
    told_end |= (news & KEEPER_ENDED) != 0;
    told_empty |= (news & KEEPER_EMPTY) != 0;
    if (told_empty) killing = false;
    say(news);
}

static void start(const int *given, int count, bool own_stdin) {
    int fds[3] = {-1, -1, -1};
    if (count == 2 + own_stdin) memcpy(fds + !own_stdin, given, (size_t)count * sizeof *fds);
    killing = told_end = told_empty = false;
    spawn(run, fds);
    for (int i = 0; i < count; i++) close(given[i]);
    if (run->error) {
        while (run->pid && waitpid(run->pid, NULL, __WALL) < 0 && errno == EINTR) continue;
        told_empty = true;
        say(KEEPER_STARTED | KEEPER_EMPTY);
    } else {
        say(KEEPER_STARTED);
    }
}

static void send_signal(int number, int scope) {
    if (scope == SCOPE_TREE) tree_signal(getpid(), number, NULL, 0);
    else if (!run->pid || run->ended) return; /* the number may be somebody else's by now */
    else kill(scope == SCOPE_GROUP ? -run->pid : run->pid, number);
}

static void obey(void) {
    struct keeper_word word;
    char control[CMSG_SPACE(3 * sizeof(int))] __attribute__((aligned(8)));
    struct iovec iov = {&word, sizeof word};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t n = recvmsg(SOCKET, &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n != sizeof word) { /* sbxd is gone (only outside a container can that be seen) or this keeper is not needed */
        while (!reap() && !tree_kill_pass(getpid(), NULL, 0)) poll(NULL, 0, KILL_ROUND_MS);
        _exit(0);
    }
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    int count = c ? (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int)) : 0;
    if (word.kind == ORDER_RUN) start(c ? (int *)(void *)CMSG_DATA(c) : NULL, count, word.number);
    else if (word.kind == ORDER_SIGNAL) send_signal(word.number, word.scope);
    else if (!told_empty && !killing) {
        killing = true;
        kill_start = now_ns();
    }
}

static void on_child(int signal) { (void)signal; }

void descriptors_keep(const int *fds, int count) {
    int high[4];
    for (int i = 0; i < count; i++) high[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 16);
    for (int i = 0; i < count; i++) dup3(high[i], SOCKET + i, O_CLOEXEC);
    tree_use_proc_fd(PROC);
    if (syscall(SYS_close_range, SOCKET + count, ~0U, 0) == 0) return;
    int list = openat(PROC, "self/fd", O_RDONLY | O_DIRECTORY); /* gVisor knows no close_range */
    DIR *dir = list < 0 ? NULL : fdopendir(list);
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (atoi(e->d_name) >= SOCKET + count && atoi(e->d_name) != list) close(atoi(e->d_name));
    if (dir) closedir(dir);
}

void keeping_main(int socket, struct run *shared) {
    sigset_t all, waiting;
    run = shared;
    told_empty = true;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_NAME, "sbxd-keeper");
    descriptors_keep((int[]){socket, tree_proc_fd()}, 2);
    /* Nothing but SIGKILL reaches a keeper; what it starts gets default dispositions. */
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    for (int i = 1; i < NSIG; i++) signal(i, SIG_DFL);
    signal(SIGCHLD, on_child);
    if (descriptor_limit.rlim_cur) setrlimit(RLIMIT_NOFILE, &descriptor_limit);
    waiting = all;
    sigdelset(&waiting, SIGCHLD);
    for (;;) {
        struct pollfd p = {.fd = SOCKET, .events = POLLIN};
        struct timespec round = {.tv_nsec = KILL_ROUND_MS * 1000000};
        if (killing) tree_kill_pass(getpid(), NULL, 0);
        if (!told_empty) report();
        if (ppoll(&p, 1, killing ? &round : NULL, &waiting) > 0) obey();
    }
}

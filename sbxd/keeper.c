#include "keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "buf.h"
#include "keeping.h"
#include "tree.h"
#include "work.h"

enum { SPARES = 2, MOST_SPARES = 8, SWEEP_MS = 5, KEEP_SHARED = 65536 };
static const int64_t UNUSED_NS = 10000000000;

static struct keeper *keepers;
static keeper_news *tell;
static int free_count;
static int64_t last_taken_ns;
static struct timer sweeper;

static void clear_run(struct run *r) {
    /* A big request leaves pages behind that belong to nobody: give them back. */
    if (r->used > KEEP_SHARED) madvise((char *)r + KEEP_SHARED, RUN_SIZE - KEEP_SHARED, MADV_REMOVE);
    memset(r, 0, sizeof *r);
    r->used = (sizeof *r + 15) & ~(size_t)15;
}

static void sweep_orphans(struct timer *t) {
    pid_t *spared = xalloc(sizeof *spared * 4096);
    int count = 0;
    for (struct keeper *k = keepers; k && count < 4096; k = k->next)
        if (k->pid) spared[count++] = k->pid;
    count += work_pids(spared + count, 4096 - count);
    if (!tree_kill_pass(getpid(), spared, count)) timer_set(t, SWEEP_MS, sweep_orphans);
    free(spared);
}

/* True, and how it ended, when a child that was just killed is dead: this wait is short. Not ours, or not dying: false. */
static bool await_death(pid_t pid, siginfo_t *info, int options) {
    for (int i = 0; i < 200; i++) {
        info->si_pid = 0;
        if (waitid(P_PID, (id_t)pid, info, WEXITED | WNOHANG | options) != 0) return false;
        if (info->si_pid) return true;
        usleep(1000);
    }
    return false;
}

/* The processes of a dead keeper are our children now. The main one's status still comes, since we reap it; the rest
 * has nobody who could find it later, so it goes with its keeper. */
static void keeper_lost(struct keeper *k) {
    struct keeper **p = &keepers;
    while (*p != k) p = &(*p)->next;
    *p = k->next;
    source_close(&k->socket);
    siginfo_t info;
    if (k->pid) {
        kill(k->pid, SIGKILL); /* its socket may be gone while it is not */
        await_death(k->pid, &info, WNOWAIT); /* the kernel closes that first, and gives us its children last */
    }
    if (!k->busy) free_count--;
    if (k->busy) sweep_orphans(&sweeper);
    struct run *r = k->run;
    /* A status that cannot be had is unknown, and told so. */
    if (r->pid > 0 && !r->ended && !r->error && await_death(r->pid, &info, 0)) keeping_note_end(r, &info);
    tell(k, KEEPER_DIED);
    munmap(r, RUN_SIZE);
    free(k);
}

static void news(struct source *source, uint32_t events) {
    struct keeper *k = (struct keeper *)source;
    struct keeper_word word;
    (void)events;
    ssize_t n = recv(k->socket.fd, &word, sizeof word, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n != sizeof word) {
        keeper_lost(k);
        return;
    }
    tell(k, word.kind);
    if (!(word.kind & KEEPER_EMPTY)) return;
    k->busy = false;
    k->command = NULL;
    free_count++;
    keeper_release(k);
}

static bool keeper_fork(void) {
    int pair[2];
    struct run *run = mmap(NULL, RUN_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (run == MAP_FAILED) return false;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        munmap(run, RUN_SIZE);
        return false;
    }
    pid_t pid = fork();
    if (pid == 0) keeping_main(pair[1], run);
    close(pair[1]);
    if (pid < 0) {
        close(pair[0]);
        munmap(run, RUN_SIZE);
        return false;
    }
    madvise(run, RUN_SIZE, MADV_DONTFORK); /* no later keeper shall hold this one's memory */
    struct keeper *k = xalloc(sizeof *k);
    k->pid = pid;
    k->run = run;
    clear_run(run);
    source_open(&k->socket, pair[0], EPOLLIN, news);
    k->next = keepers;
    keepers = k;
    free_count++;
    return true;
}

/* A free keeper too many ends when its socket closes. */
static void keeper_dismiss(struct keeper *k) {
    struct keeper **p = &keepers;
    while (*p != k) p = &(*p)->next;
    *p = k->next;
    source_close(&k->socket);
    munmap(k->run, RUN_SIZE);
    free(k);
}

bool keepers_settle(void) {
    while (free_count < SPARES && keeper_fork()) continue;
    bool recent = now_ns() - last_taken_ns < UNUSED_NS;
    for (struct keeper *k = keepers, *next; k && !recent && free_count > SPARES; k = next) {
        next = k->next;
        if (k->busy) continue;
        free_count--;
        keeper_dismiss(k);
    }
    return free_count > SPARES;
}

void keepers_init(keeper_news *told) {
    tell = told;
    keepers_settle();
}

struct keeper *keeper_take(void) {
    struct keeper *k = keepers;
    while (k && (k->busy || !k->pid)) k = k->next; /* a dead one waits for the end of its socket to be seen */
    if (!k && !keeper_fork()) return NULL;
    k = k ? k : keepers;
    k->busy = true;
    last_taken_ns = now_ns();
    free_count--;
    clear_run(k->run);
    return k;
}

void keeper_release(struct keeper *k) {
    if (k->busy) free_count++;
    k->busy = false;
    k->command = NULL;
    if (free_count <= MOST_SPARES) return;
    free_count--;
    keeper_dismiss(k);
}

static bool order(struct keeper *k, struct keeper_word word, const int *fds, int fd_count) {
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(3 * sizeof(int))];
    } control = {0};
    struct iovec iov = {&word, sizeof word};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd_count) {
        m.msg_control = &control;
        m.msg_controllen = CMSG_SPACE((size_t)fd_count * sizeof(int));
        control.header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
                                          .cmsg_len = CMSG_LEN((size_t)fd_count * sizeof(int))};
        memcpy(CMSG_DATA(&control.header), fds, (size_t)fd_count * sizeof(int));
    }
    return sendmsg(k->socket.fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof word;
}

bool keeper_run(struct keeper *k, const int fds[3]) {
    bool own_stdin = fds[0] >= 0;
    return order(k, (struct keeper_word){.kind = ORDER_RUN, .number = own_stdin}, fds + !own_stdin, 2 + own_stdin);
}

void keeper_signal(struct keeper *k, int signal, int scope) {
    order(k, (struct keeper_word){.kind = ORDER_SIGNAL, .number = signal, .scope = scope}, NULL, 0);
}

void keeper_kill(struct keeper *k) {
    if (!k->pid) return; /* dead: its end of the socket is about to say so */
    kill(k->pid, SIGCONT); /* root inside may have stopped it */
    if (!order(k, (struct keeper_word){.kind = ORDER_KILL}, NULL, 0)) kill(k->pid, SIGKILL);
}

bool keeper_is(pid_t pid) {
    struct keeper *k = keepers;
    while (k && k->pid != pid) k = k->next;
    return k != NULL;
}

void keepers_reap(void) {
    siginfo_t info;
    for (;;) {
        info.si_pid = 0;
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) != 0 || !info.si_pid) return;
        pid_t pid = info.si_pid;
        /* What a keeper said last is still in its socket, whose end tells of its death. */
        for (struct keeper *k = keepers; k; k = k->next) {
            if (k->pid == pid) k->pid = 0;
            else if (k->run->pid == pid && k->busy && !k->run->ended) keeping_note_end(k->run, &info);
        }
        work_reaped(pid);
        waitpid(pid, NULL, WNOHANG | __WALL);
    }
}

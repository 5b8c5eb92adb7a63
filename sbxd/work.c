#include "work.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "keeping.h"
#include "loop.h"
#include "tree.h"

enum { MAX_WORKERS = 32, SOCKET = 3, DIRECTORY = 5, REPORT_SIZE = 256 << 10 };

/* Shared with the worker. Its last word outlives it; without one it was killed, which root inside can do. */
struct report {
    volatile bool complete;
    volatile uint32_t length;
    char text[REPORT_SIZE - 8];
};

struct work {
    struct source source; /* first: events give us this address */
    struct stream *stream;
    struct report *report;
    struct buf input; /* from the host, not yet taken by the worker */
    pid_t pid;        /* 0: reaped */
    bool input_over, deaf;
    struct work *next;
};

static struct work *workers;

void work_fail(struct buf *result, const char *code, int error, const char *format, ...) {
    char message[512];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    buf_free(result);
    error_put(result, code, error, message);
    json_end(result, '}');
}

bool work_write(int socket, const void *bytes, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t got = send(socket, (const char *)bytes + done, n - done, MSG_NOSIGNAL);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return false;
        done += (size_t)got;
    }
    return true;
}

static void __attribute__((noreturn)) work_here(int socket, work_main *run, const struct work_order *order, struct report *report) {
    struct buf result = {0};
    struct work_order mine = *order;
    int fds[] = {socket, tree_proc_fd(), order->directory};
    descriptors_keep(fds, order->directory < 0 ? 2 : 3);
    if (order->directory >= 0) mine.directory = DIRECTORY;
    prctl(PR_SET_NAME, "sbxd-worker");
    umask(0);
    run(SOCKET, &mine, &result);
    if (buf_len(&result) && buf_len(&result) <= sizeof report->text) {
        memcpy(report->text, buf_at(&result), buf_len(&result));
        report->length = (uint32_t)buf_len(&result);
        report->complete = true;
    }
    _exit(0);
}

static void forget(struct work *w) {
    if (w->pid || w->stream) return;
    struct work **p = &workers;
    while (*p != w) p = &(*p)->next;
    *p = w->next;
    free(w);
}

void work_reaped(pid_t pid) {
    struct work *w = workers;
    while (w && w->pid != pid) w = w->next;
    if (!w) return;
    w->pid = 0;
    forget(w);
}

bool work_is(pid_t pid) {
    struct work *w = workers;
    while (w && w->pid != pid) w = w->next;
    return w != NULL;
}

int work_pids(pid_t *pids, int room) {
    int count = 0;
    for (struct work *w = workers; w && count < room; w = w->next)
        if (w->pid) pids[count++] = w->pid;
    return count;
}

static void finish(struct work *w) {
    struct buf b = {0};
    if (w->report->complete && w->report->length <= sizeof w->report->text) {
        buf_put(&b, w->report->text, w->report->length);
        stream_close(w->stream, &b);
    } else {
        stream_error(w->stream, "io", 0, "the process that did this was killed; what it had finished is there");
    }
}

static void want(struct work *w, bool input) {
    source_want(&w->source, (buf_len(&w->input) ? EPOLLOUT : 0u) | (input ? EPOLLIN : 0u));
}

static void flush(struct work *w) {
    size_t sent = 0;
    while (buf_len(&w->input)) {
        ssize_t n = w->deaf ? (ssize_t)buf_len(&w->input)
                            : send(w->source.fd, buf_at(&w->input), buf_len(&w->input), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN) break;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) w->deaf = true; /* it has ended: its report says why, and the rest interests nobody */
        else {
            buf_take(&w->input, (size_t)n);
            sent += (size_t)n;
        }
    }
    if (sent) stream_consumed(w->stream, sent);
    if (buf_len(&w->input)) return;
    buf_free(&w->input);
    if (w->input_over && !w->deaf) shutdown(w->source.fd, SHUT_WR);
}

static void work_ready(struct source *source, uint32_t events) {
    struct work *w = (struct work *)source;
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) stream_ready(w->stream);
    flush(w);
    want(w, !(events & (EPOLLIN | EPOLLHUP | EPOLLERR)));
}

static size_t work_fill(struct stream *s, uint8_t *to, size_t room, uint8_t *channel) {
    struct work *w = s->subject;
    (void)channel;
    ssize_t n = recv(w->source.fd, to, room, MSG_DONTWAIT);
    if (n > 0) return (size_t)n;
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) want(w, true);
    else finish(w); /* also when it left bytes unread, which is told as a reset */
    return 0;
}

static void work_data(struct stream *s, const uint8_t *bytes, size_t n) {
    struct work *w = s->subject;
    bool waiting = buf_len(&w->input) != 0;
    buf_put(&w->input, bytes, n);
    if (!waiting) flush(w);
    want(w, w->source.events & EPOLLIN);
}

static void work_eof(struct stream *s) {
    struct work *w = s->subject;
    w->input_over = true;
    flush(w);
    want(w, w->source.events & EPOLLIN);
}

/* The worker sees the end of its socket, clears up what it has half made, and goes. */
static void work_end(struct stream *s) {
    struct work *w = s->subject;
    source_close(&w->source);
    munmap(w->report, sizeof *w->report);
    buf_free(&w->input);
    w->stream = NULL;
    forget(w);
}

static const struct stream_ops work_ops = {.fill = work_fill, .data = work_data, .eof = work_eof, .end = work_end};

static bool start(struct stream *s, work_main *run, const struct work_order *order) {
    int pair[2] = {-1, -1}, count = 0;
    for (struct work *w = workers; w; w = w->next) count++;
    if (count >= MAX_WORKERS) {
        stream_error(s, "limit", 0, "%d transfers of trees run already", MAX_WORKERS);
        return false;
    }
    struct report *report = mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    int error = report == MAP_FAILED || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0 ? errno : 0;
    pid_t pid = error ? -1 : fork();
    if (pid == 0) work_here(pair[1], run, order, report);
    if (pid < 0) {
        error = error ? error : errno;
        if (report != MAP_FAILED) munmap(report, sizeof *report);
        for (int i = 0; i < 2; i++)
            if (pair[i] >= 0) close(pair[i]);
        stream_error(s, "limit", error, "no process for this: %s", strerror(error));
        return false;
    }
    close(pair[1]);
    madvise(report, sizeof *report, MADV_DONTFORK);
    struct work *w = xalloc(sizeof *w);
    *w = (struct work){.stream = s, .report = report, .pid = pid, .next = workers};
    workers = w;
    source_open(&w->source, pair[0], EPOLLIN, work_ready);
    stream_bind(s, &work_ops, w);
    return true;
}

bool work_start(struct stream *s, work_main *run, const struct work_order *order) {
    bool started = start(s, run, order);
    if (order->directory >= 0) close(order->directory);
    return started;
}

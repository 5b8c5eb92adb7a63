#include "loop.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

/* Events name a descriptor and a generation, not a pointer: a handler may free any other source of the same batch. */
struct slot {
    struct source *source;
    uint32_t generation;
};

static struct slot *slots;
static int slot_count, epoll_fd = -1;
static sigset_t waiting_mask;
static struct timer *timers; /* soonest first */

void loop_init(void) {
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_fd < 0) _exit(72);
    sigfillset(&waiting_mask);
    sigdelset(&waiting_mask, SIGCHLD);
    if (getpid() == 1) return; /* an init takes no orders by signal */
    sigdelset(&waiting_mask, SIGTERM);
    sigdelset(&waiting_mask, SIGINT);
}

int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static bool epoll_set(struct source *s, int how, uint32_t events) {
    struct epoll_event e = {.events = events};
    e.data.u64 = (uint64_t)slots[s->fd].generation << 32 | (uint32_t)s->fd;
    return epoll_ctl(epoll_fd, how, s->fd, &e) == 0;
}

bool source_open(struct source *s, int fd, uint32_t events, void (*ready)(struct source *, uint32_t)) {
    *s = (struct source){.fd = fd, .ready = ready};
    if (fd >= slot_count) {
        int count = fd + 64;
        slots = realloc(slots, (size_t)count * sizeof *slots);
        if (!slots) _exit(70);
        memset(slots + slot_count, 0, (size_t)(count - slot_count) * sizeof *slots);
        slot_count = count;
    }
    slots[fd].source = s;
    slots[fd].generation++;
    if (events && !epoll_set(s, EPOLL_CTL_ADD, events)) {
        slots[fd].source = NULL;
        s->fd = -1;
        return false;
    }
    s->events = events;
    return true;
}

void source_want(struct source *s, uint32_t events) {
    if (s->fd < 0 || s->events == events) return;
    /* A watched descriptor reports hang-ups even with no events asked for, for ever: so it is taken out. */
    epoll_set(s, !events ? EPOLL_CTL_DEL : s->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, events);
    s->events = events;
}

void source_close(struct source *s) {
    if (s->fd < 0) return;
    /* Explicitly, since a copy of the descriptor elsewhere would keep the registration alive. */
    if (s->events) epoll_set(s, EPOLL_CTL_DEL, 0);
    slots[s->fd].source = NULL;
    close(s->fd);
    s->fd = -1;
    s->events = 0;
}

void timer_cancel(struct timer *t) {
    if (!t->armed) return;
    struct timer **p = &timers;
    while (*p != t) p = &(*p)->next;
    *p = t->next;
    t->armed = false;
}

void timer_set(struct timer *t, int64_t after_ms, void (*fire)(struct timer *)) {
    timer_cancel(t);
    t->due_ns = now_ns() + after_ms * 1000000;
    t->fire = fire;
    t->armed = true;
    struct timer **p = &timers;
    while (*p && (*p)->due_ns <= t->due_ns) p = &(*p)->next;
    t->next = *p;
    *p = t;
}

static int wait_ms(bool busy) {
    if (busy) return 0;
    if (!timers) return -1;
    int64_t left = timers->due_ns - now_ns();
    if (left <= 0) return 0;
    return left > 3600000000000LL ? 3600000 : (int)((left + 999999) / 1000000);
}

bool loop_turn(bool busy) {
    struct epoll_event events[32];
    int n = epoll_pwait(epoll_fd, events, 32, wait_ms(busy), &waiting_mask);
    for (int i = 0; i < n; i++) {
        uint32_t fd = (uint32_t)events[i].data.u64, generation = (uint32_t)(events[i].data.u64 >> 32);
        struct source *s = slots[fd].source;
        if (s && slots[fd].generation == generation && s->events) s->ready(s, events[i].events);
    }
    while (timers && timers->due_ns <= now_ns()) {
        struct timer *t = timers;
        timer_cancel(t);
        t->fire(t);
    }
    return n > 0;
}

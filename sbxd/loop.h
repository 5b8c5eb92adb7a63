/* The event loop: descriptors (epoll), timers, and nothing that blocks. */
#ifndef SBXD_LOOP_H
#define SBXD_LOOP_H
#include <stdbool.h>
#include <stdint.h>

struct source {
    int fd;          /* -1 when closed */
    uint32_t events; /* what is asked for now; 0 = not watched at all, not even for hang-ups */
    void (*ready)(struct source *self, uint32_t events);
};

struct timer {
    int64_t due_ns;
    void (*fire)(struct timer *self);
    struct timer *next;
    bool armed;
};

void loop_init(void);
int64_t now_ns(void); /* monotonic */
/* Owns `fd` from here. False when the descriptor cannot be watched (it stays open). */
bool source_open(struct source *s, int fd, uint32_t events, void (*ready)(struct source *, uint32_t));
void source_want(struct source *s, uint32_t events);
void source_close(struct source *s);
void timer_set(struct timer *t, int64_t after_ms, void (*fire)(struct timer *));
void timer_cancel(struct timer *t);
/* Waits for events (not at all when `busy`), handles them and what is due. SIGCHLD ends the wait.
 * True: there were events. */
bool loop_turn(bool busy);
#endif

/* Keepers: one process per command, a child subreaper that starts it, adopts all its orphans and can kill them all.
 * A keeper is forked ahead of need and used again once its command has no process left; sbxd itself never waits. */
#ifndef SBXD_KEEPER_H
#define SBXD_KEEPER_H
#include <stdbool.h>
#include <sys/types.h>

#include "loop.h"
#include "spawn.h"

enum { SCOPE_TREE, SCOPE_GROUP, SCOPE_MAIN };

/* What a keeper tells, as bits of one message. */
enum { KEEPER_STARTED = 1, KEEPER_ENDED = 2, KEEPER_EMPTY = 4, KEEPER_DIED = 8 };

struct keeper {
    struct source socket; /* first: events give us this address */
    pid_t pid;
    struct run *run;
    void *command;        /* whose it is; NULL when the command is forgotten or the keeper is free */
    bool busy;            /* its last command still has processes */
    struct keeper *next;
};

typedef void keeper_news(struct keeper *k, int news);

void keepers_init(keeper_news *tell); /* forks the first ones */
struct keeper *keeper_take(void);     /* a free one with an empty `run`; NULL: none can be made */
void keeper_release(struct keeper *k); /* taken, but not used */
bool keeper_run(struct keeper *k, const int fds[3]);
void keeper_signal(struct keeper *k, int signal, int scope);
void keeper_kill(struct keeper *k); /* every descendant; KEEPER_ENDED comes when they are gone */
bool keeper_is(pid_t pid);
bool keepers_settle(void);          /* in idle moments: some spares, not many; true: ask again later */
void keepers_reap(void);            /* after SIGCHLD: dead keepers, orphans of dead keepers */
#endif

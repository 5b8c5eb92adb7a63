/* Starting one program in a new session. Runs in a keeper; the request and the outcome are in memory shared with sbxd. */
#ifndef SBXD_SPAWN_H
#define SBXD_SPAWN_H
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { RUN_SIZE = 1 << 20, RUN_GROUPS = 64 };
enum run_stage { STAGE_FORK = 1, STAGE_TTY, STAGE_USER, STAGE_CWD, STAGE_EXEC };

struct run {
    /* Outcome. Written at once when it is known, so that it survives the keeper. */
    volatile pid_t pid;
    volatile int stage, error; /* error != 0: the program was not started */
    volatile bool ended;
    volatile int code, signal; /* signal != 0: killed by it */
    /* Request. */
    bool tty, shell, cwd_fallback, as_user;
    uid_t uid;
    gid_t gid;
    size_t group_count;
    gid_t groups[RUN_GROUPS];
    const char *cwd;
    char **argv, **env;
    size_t used; /* bytes taken of this RUN_SIZE block, the strings after this struct included */
};

void *run_alloc(struct run *r, size_t size); /* zeroed, for any type; NULL when the block is full */
char *run_text(struct run *r, const char *a, const char *b); /* both texts joined; NULL likewise */
void spawn(struct run *r, const int fds[3]); /* fds: stdin (-1: the keeper's own /dev/null), stdout, stderr */
#endif

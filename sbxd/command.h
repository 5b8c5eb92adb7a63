/* Commands: their output ring, their stdin, their end. A command lives on when its stream or the connection ends. */
#ifndef SBXD_COMMAND_H
#define SBXD_COMMAND_H
#include "keeper.h"
#include "loop.h"
#include "ring.h"
#include "stream.h"

enum command_state { COMMAND_STARTING, COMMAND_RUNNING, COMMAND_ENDED };

struct command {
    char id[65];
    enum command_state state;
    struct keeper *keeper; /* NULL once nothing of it is left to signal */
    pid_t pid;
    bool tty, killed_by_deadline, status_known;
    int code, signal;
    int64_t started_ns, ended_ns;
    struct source out[2], in;
    size_t drain[2]; /* after the end: bytes that still count as the command's output */
    struct ring ring;
    uint64_t sent;
    struct buf input; /* stdin the program has not taken yet */
    size_t stale_input; /* of it, sent on an earlier stream: owes nobody credit */
    bool input_ends;
    struct timer deadline;
    struct stream *stream;
    struct command *next; /* oldest first */
};

void commands_init(void);
const char *command_kept_by(pid_t keeper); /* the id of the command whose processes descend from it, or NULL */
extern const struct stream_ops command_stream; /* output.c */
bool output_open(struct command *c, const int fds[3]); /* sbxd's ends; -1 where there is none */
void output_input(struct command *c);   /* passes on the stdin that waits, and its end */
void output_end(struct command *c);     /* the main process is gone: settle what still counts */
void output_finish(struct command *c);  /* tells the end when all is acknowledged */
void output_acknowledge(struct command *c, uint64_t upto);
void output_close_terminals(const struct keeper *k);
#endif

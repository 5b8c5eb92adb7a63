/* The inside of a keeper process, and the words it exchanges with sbxd. */
#ifndef SBXD_KEEPING_H
#define SBXD_KEEPING_H
#include <signal.h>
#include <stdint.h>

#include "spawn.h"

enum { ORDER_RUN = 1, ORDER_SIGNAL, ORDER_KILL };

struct keeper_word {
    int32_t kind, number, scope; /* RUN: number = 1 when a stdin is among the descriptors */
};

void keeping_note_end(struct run *r, const siginfo_t *info);
void keeping_main(int socket, struct run *run) __attribute__((noreturn));
void keeping_set_limit(uint64_t soft, uint64_t hard); /* the descriptor limit that commands get */
#endif

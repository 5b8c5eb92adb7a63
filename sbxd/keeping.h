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
/* In a child: `fds` become 3, 4, … (the second is /proc, four at most), and all others above 2 are closed. */
void descriptors_keep(const int *fds, int count);
void keeping_set_limit(uint64_t soft, uint64_t hard); /* the descriptor limit that commands get */
#endif

/* Work that may block or take long, done by a forked copy of sbxd, whose bytes are relayed to and from a stream. */
#ifndef SBXD_WORK_H
#define SBXD_WORK_H
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "buf.h"
#include "stream.h"

struct work_order {
    int directory; /* -1: none; the work's own copy otherwise */
    int64_t max_entries, max_bytes;
};

/* In the worker: reads and writes the stream's bytes on `socket`, leaves the JSON of its CLOSE in `result`, returns. */
typedef void work_main(int socket, const struct work_order *order, struct buf *result);

/* False: the stream was answered with an error. Takes order->directory in either case. */
bool work_start(struct stream *s, work_main *run, const struct work_order *order);
void work_reaped(pid_t pid);
bool work_is(pid_t pid);
int work_pids(pid_t *pids, int room);
bool work_write(int socket, const void *bytes, size_t n); /* all of it; false: nobody reads any more */
void work_fail(struct buf *result, const char *code, int error, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
#endif

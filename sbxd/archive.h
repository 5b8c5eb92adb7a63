/* Trees as tar streams, in a worker process: what packing and unpacking share. */
#ifndef SBXD_ARCHIVE_H
#define SBXD_ARCHIVE_H
#include "buf.h"
#include "work.h"

/* Deeper trees are left out: each level costs a descriptor when packing, a walk for each entry when unpacking. */
enum { ARCHIVE_DEPTH = 256, ARCHIVE_CHUNK = 256 << 10 };

/* What was left out and why: the first ones by name, all of them counted. */
struct skips {
    struct buf list; /* JSON objects with commas between */
    int64_t count;
};

void skip(struct skips *s, const char *path, const char *reason);
void skips_put(struct buf *result, const struct skips *s); /* members, no braces */
void archive_report(struct buf *result, int64_t count, int64_t bytes, const struct skips *s);

work_main pack_main;   /* archive_pack.c */
work_main unpack_main; /* archive_unpack.c */
#endif

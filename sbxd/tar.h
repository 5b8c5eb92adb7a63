/* Tar headers (ustar, with pax and GNU long names): reading, checking and writing them. Never does I/O. */
#ifndef SBXD_TAR_H
#define SBXD_TAR_H
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "buf.h"

enum { TAR_BLOCK = 512, TAR_EXTENDED = 1 << 20 /* the longest pax header or GNU long name that is read */ };
enum tar_type { TAR_FILE = '0', TAR_HARD_LINK = '1', TAR_SYMLINK = '2', TAR_CHAR = '3', TAR_BLOCK_DEVICE = '4',
                TAR_DIR = '5', TAR_FIFO = '6', TAR_SPARSE = 'S', TAR_PAX = 'x', TAR_PAX_GLOBAL = 'g',
                TAR_LONG_NAME = 'L', TAR_LONG_LINK = 'K' };
enum tar_state { TAR_READY, TAR_END, TAR_BROKEN };

struct tar_entry {
    int type;
    char name[PATH_MAX], link[PATH_MAX];
    bool long_name, long_link, has_size, has_mtime; /* said by an extended header, which the plain one does not replace */
    bool unusable;  /* a name that no file can have: too long, or with a NUL */
    bool sparse;    /* in one of the formats that leave holes out */
    bool continued; /* the old GNU sparse format: another block of the map follows */
    int64_t size, mtime_s;
    uint32_t mtime_ns, mode, uid, gid;
};

/* Reads one block into `e`, whose members from extended headers stay. TAR_END: a block of zeros. */
enum tar_state tar_read(const uint8_t block[TAR_BLOCK], struct tar_entry *e);
bool tar_is_extended(const uint8_t block[TAR_BLOCK]); /* its data says something about the next entry */
bool tar_read_pax(const char *text, size_t n, struct tar_entry *e); /* false: malformed */
void tar_read_long(const char *text, size_t n, struct tar_entry *e, bool link);
bool tar_has_data(const struct tar_entry *e);
static inline int64_t tar_padding(int64_t size) { return -size & (TAR_BLOCK - 1); }

/* Writes the header of `e`, before it a pax header if ustar cannot say it all, or `more` (pax records) has to be said. */
void tar_write(struct buf *out, const struct tar_entry *e, const struct buf *more);
void tar_put_record(struct buf *pax, const char *key, const char *value, size_t n);
#endif

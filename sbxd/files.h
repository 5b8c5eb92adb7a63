/* What the file ops share. */
#ifndef SBXD_FILES_H
#define SBXD_FILES_H
#include <stdbool.h>
#include <sys/stat.h>

#include "buf.h"
#include "json.h"
#include "stream.h"

enum { SLICE_NS = 2000000 }; /* how long one step of a long work may keep everybody else waiting */
enum { TEMPORARY_NAME = 40 };

/* An absolute path without NUL. NULL: answered with an error. */
const char *path_of(struct stream *s, const struct json *request, const char *member);
const char *last_name(const char *path);
void info_put(struct buf *b, const char *path, const struct stat *st, const char *target); /* members, no braces */
void info_close(struct stream *s, const char *path, bool follow); /* CLOSE with FileInfo, or the error */
void temporary_name(char to[TEMPORARY_NAME]);             /* another one each time */
int temporary_open(int dir, char name[TEMPORARY_NAME]);   /* a new file to write; -1: errno, and no name */
int directory_open(int at, const char *name); /* of a directory itself, never through a symlink; -1: errno */
int parents_make(const char *path); /* every directory above `path`; 0 or an errno */
#endif

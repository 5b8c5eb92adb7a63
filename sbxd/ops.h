/* What the host can ask for: one table from the name of an op to the function that starts it. */
#ifndef SBXD_OPS_H
#define SBXD_OPS_H
#include <stdint.h>

#include "json.h"
#include "stream.h"

#define SBXD_VERSION "0.1.0"

void op_start(struct stream *s, const struct json *request);

void op_exec(struct stream *s, const struct json *request);      /* command.c */
void op_attach(struct stream *s, const struct json *request);
void op_commands(struct stream *s, const struct json *request);
void op_forget(struct stream *s, const struct json *request);
void op_read(struct stream *s, const struct json *request);      /* transfer.c */
void op_write(struct stream *s, const struct json *request);
void op_list(struct stream *s, const struct json *request);      /* files.c */
void op_stat(struct stream *s, const struct json *request);
void op_mkdir(struct stream *s, const struct json *request);
void op_setattr(struct stream *s, const struct json *request);
void op_move(struct stream *s, const struct json *request);      /* move.c */
void op_remove(struct stream *s, const struct json *request);    /* remove.c */
void op_watch(struct stream *s, const struct json *request);     /* watch.c */
void op_pack(struct stream *s, const struct json *request);      /* archive.c */
void op_unpack(struct stream *s, const struct json *request);
void op_processes(struct stream *s, const struct json *request); /* inspect.c */
void op_ports(struct stream *s, const struct json *request);
void op_port(struct stream *s, const struct json *request);      /* port.c */
void op_configure(struct stream *s, const struct json *request); /* config.c */

void server_listen(const char *path); /* port.c: streams opened from inside */
uint32_t server_last_id(void);
#endif

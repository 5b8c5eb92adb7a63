#include "ops.h"

#include <string.h>

static const struct {
    const char *name;
    void (*start)(struct stream *s, const struct json *request);
} ops[] = {
    {"exec", op_exec},     {"attach", op_attach}, {"commands", op_commands}, {"forget", op_forget},
    {"read", op_read},     {"write", op_write},   {"list", op_list},         {"stat", op_stat},
    {"mkdir", op_mkdir},   {"move", op_move},     {"remove", op_remove},     {"watch", op_watch},
    {"port", op_port},     {"configure", op_configure}, {"setattr", op_setattr},   {"pack", op_pack},
    {"unpack", op_unpack}, {"processes", op_processes}, {"ports", op_ports},
};

void op_start(struct stream *s, const struct json *request) {
    bool bad = false;
    const char *name = json_get_text(request, "op", "", &bad);
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (strcmp(ops[i].name, name) == 0) {
            ops[i].start(s, request);
            return;
        }
    stream_error(s, "unknown_op", 0, "sbxd %s knows no op %.100s", SBXD_VERSION, name);
}

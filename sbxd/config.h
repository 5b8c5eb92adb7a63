/* What `configure` sets for all later commands, and who a `user` is in the sandbox's own /etc. */
#ifndef SBXD_CONFIG_H
#define SBXD_CONFIG_H
#include <stdbool.h>
#include <stddef.h>

#include "json.h"
#include "spawn.h"

const char *config_cwd(void);
/* Puts "NAME=value" strings and the vector of base env + `over` + a HOME when neither has one. */
bool config_build_env(struct run *r, const struct json *over, const char *home);
bool env_is_valid(const struct json *env); /* absent, or an object of strings with usable names */
/* Fills uid, gid and groups of the run. False when the name is unknown. `home`: its directory, or "/". */
bool user_resolve(struct run *r, const char *user, char *home, size_t home_size);
#endif

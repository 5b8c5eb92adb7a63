/* Finding and killing all descendants of a process, the ones that fork while we look included. */
#ifndef SBXD_TREE_H
#define SBXD_TREE_H
#include <stdbool.h>
#include <sys/types.h>

void tree_init(void); /* opens /proc before anybody inside could mount over it */
int tree_proc_fd(void);
void tree_use_proc_fd(int fd);
/* Signals every living descendant of `root` except the `spared` and their descendants; the number signalled. */
int tree_signal(pid_t root, int signal, const pid_t *spared, int spared_count);
/* One attempt to kill them all: stopped first, until a look finds no new one. True: none was left to kill. */
bool tree_kill_pass(pid_t root, const pid_t *spared, int spared_count);
#endif

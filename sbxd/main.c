/* sbxd: the process with pid 1 inside a sandbox. See PROTOCOL.md for what it does, README.md for how. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bridge.h"
#include "command.h"
#include "conn.h"
#include "keeper.h"
#include "keeping.h"
#include "loop.h"
#include "ops.h"
#include "stream.h"
#include "tree.h"

enum { IDLE_MS = 500 };

static struct timer idle;

static void on_child(int signal) { (void)signal; }

/* What can be done later: keepers for the next commands, and giving memory back. */
static void on_idle(struct timer *t) {
    conn_trim();
    if (keepers_settle()) timer_set(t, IDLE_MS, on_idle);
}

/* The stdio socketpair becomes a descriptor that no child inherits; 0 and 1 become /dev/null. The old 1 is kept open
 * too: for gVisor 0 and 1 are two sockets, and closing either shuts down the host's one behind both. */
static int take_stdio(void) {
    int channel = fcntl(0, F_DUPFD_CLOEXEC, 3), twin = fcntl(1, F_DUPFD_CLOEXEC, 3);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    (void)twin;
    for (int i = 0; i < 3; i++)
        if (i < 2 || fcntl(i, F_GETFD) < 0) {
            if (null >= 0 && null != i) dup2(null, i);
            else if (null < 0) close(i);
        }
    if (null > 2) close(null);
    return channel;
}

static void set_up_process(void) {
    struct rlimit files;
    sigset_t all;
    sigfillset(&all);
    if (getpid() != 1) {
        sigdelset(&all, SIGTERM);
        sigdelset(&all, SIGINT);
        prctl(PR_SET_CHILD_SUBREAPER, 1);
    }
    sigprocmask(SIG_SETMASK, &all, NULL);
    signal(SIGCHLD, on_child);
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_DUMPABLE, 0); /* nobody inside without CAP_SYS_PTRACE reads our memory, where the secret is */
    umask(022);
    if (chdir("/") != 0) return;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
    keeping_set_limit(files.rlim_cur, files.rlim_max);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
}

static void __attribute__((noreturn)) init_main(const char *abstract_name, const char *server_path) {
    int channel = take_stdio();
    set_up_process();
    loop_init();
    tree_init();
    conn_init();
    commands_init();
    if (!conn_listen(abstract_name)) dprintf(2, "sbxd: cannot listen on @%s: no reconnect\n", abstract_name);
    server_listen(server_path);
    if (channel < 0 || !conn_stdio(channel)) dprintf(2, "sbxd: stdin is not a socket\n");
    for (;;) {
        keepers_reap();
        bool more = streams_step();
        more |= conn_pump();
        if (loop_turn(more) && !idle.armed) timer_set(&idle, IDLE_MS, on_idle);
    }
}

int main(int argc, char **argv) {
    const char *verb = argc > 1 ? argv[1] : "", *name = "skerry-sbxd", *server = "/run/skerry/server.sock";
    bool init = strcmp(verb, "init") == 0, bridge = strcmp(verb, "bridge") == 0;
    if (strcmp(verb, "--version") == 0) return printf("sbxd %s\n", SBXD_VERSION) < 0;
    for (int i = 2; i + 1 < argc && (bridge || getpid() != 1); i += 2) { /* for tests, outside a sandbox */
        if (strcmp(argv[i], "--name") == 0) name = argv[i + 1];
        else if (strcmp(argv[i], "--server") == 0) server = argv[i + 1];
        else init = bridge = false;
    }
    if (init) init_main(name, server);
    if (bridge) return bridge_main(name);
    dprintf(2, "usage: sbxd init | bridge | --version\n");
    return 2;
}

/* Starting commands, what keepers tell about them, their deadline, and the ops exec, attach, commands and forget. */
#include "command.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include "config.h"
#include "ops.h"

/* Together they keep the answer of `commands` within one frame. */
enum { MAX_RUNNING = 512, MAX_ENDED = 1024, MAX_STALE_INPUT = 4 << 20 };

static struct command *first;
static int running, ended;

static struct command *find(const char *id) {
    struct command *c = first;
    while (c && strcmp(c->id, id) != 0) c = c->next;
    return c;
}

const char *command_kept_by(pid_t keeper) {
    struct command *c = first;
    while (c && (!c->keeper || c->keeper->pid != keeper)) c = c->next;
    return c ? c->id : NULL;
}

static void command_drop(struct command *c) {
    struct command **p = &first;
    while (*p != c) p = &(*p)->next;
    *p = c->next;
    *(c->state == COMMAND_ENDED ? &ended : &running) -= 1;
    if (c->stream) c->stream->subject = NULL;
    if (c->keeper) c->keeper->command = NULL;
    timer_cancel(&c->deadline);
    for (int i = 0; i < 2; i++) source_close(&c->out[i]);
    source_close(&c->in);
    buf_free(&c->input);
    ring_free(&c->ring);
    free(c);
}

static void start_failed(struct command *c, int stage, int error, const char *program) {
    static const char *const what[] = {"", "starting a process", "opening the terminal", "becoming the user",
                                       "entering the working directory", "running"};
    struct stream *s = c->stream;
    c->stream = NULL;
    if (s) s->subject = NULL;
    if (s && stage == STAGE_EXEC) stream_errno(s, error, program);
    else if (s) stream_error(s, stage == STAGE_CWD ? "cwd" : stage == STAGE_USER ? "user" : "limit", error, "%s: %s",
                             what[stage], strerror(error));
    command_drop(c);
}

static void deadline_passed(struct timer *t) {
    struct command *c = (struct command *)((char *)t - offsetof(struct command, deadline));
    if (c->state == COMMAND_ENDED || !c->keeper) return;
    c->killed_by_deadline = true;
    keeper_kill(c->keeper);
}

static void tell_started(struct command *c) {
    struct buf b = {0};
    if (!c->stream) return;
    json_begin(&b, NULL, '{');
    json_string(&b, "event", "started");
    json_number(&b, "pid", c->pid);
    json_end(&b, '}');
    stream_event(c->stream, &b);
}

static void command_started(struct command *c) {
    struct run *r = c->keeper->run;
    c->state = COMMAND_RUNNING;
    c->pid = r->pid;
    tell_started(c);
    for (int i = 0; i < 2; i++)
        if (c->out[i].fd >= 0) source_want(&c->out[i], EPOLLIN);
    output_input(c);
}

static void command_ended(struct command *c, const struct run *r) {
    if (c->state == COMMAND_ENDED) return;
    c->state = COMMAND_ENDED;
    running--;
    ended++;
    c->ended_ns = now_ns();
    c->status_known = r->ended;
    c->code = r->code;
    c->signal = r->signal;
    c->killed_by_deadline &= r->ended && r->signal == SIGKILL;
    timer_cancel(&c->deadline);
    output_end(c);
    for (struct command *old = first; ended > MAX_ENDED && old; old = old->next)
        if (old->state == COMMAND_ENDED && !old->stream) {
            command_drop(old);
            break;
        }
}

static void keeper_tells(struct keeper *k, int news) {
    struct command *c = k->command;
    struct run *r = k->run;
    bool over = news & (KEEPER_EMPTY | KEEPER_DIED);
    if (c && c->state == COMMAND_STARTING && (r->error || (over && !r->pid))) {
        c->keeper = NULL;
        start_failed(c, r->error ? r->stage : STAGE_FORK, r->error ? r->error : EIO, r->error ? r->argv[0] : "");
        c = k->command = NULL;
    }
    if (c && c->state == COMMAND_STARTING) command_started(c);
    /* `command_ended` may tell the host; the record itself stays, since a stream that closes only detaches. */
    if (c && (news & (KEEPER_ENDED | KEEPER_DIED))) command_ended(c, r);
    c = k->command; /* the oldest ended record made room, perhaps this one */
    if (!over) return;
    if (c) c->keeper = NULL;
    output_close_terminals(k);
}

void commands_init(void) { keepers_init(keeper_tells); }

static bool valid_id(const char *id) {
    size_t n = strlen(id);
    return n >= 1 && n <= 64 &&
           strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-") == n;
}

/* NULL, or what is wrong with the request. */
static const char *fill_argv(struct run *r, const struct json *request) {
    bool bad = false;
    const struct json *argv = json_get(request, "argv");
    const char *shell = json_get_text(request, "shell", NULL, &bad);
    size_t count = argv ? argv->length : 3, i = 0;
    if (bad || !argv == !shell || (argv && (argv->type != JSON_ARRAY || !argv->length))) return "exec takes either argv or shell";
    if (!(r->argv = run_alloc(r, (count + 1) * sizeof *r->argv))) return "too many arguments";
    r->shell = shell != NULL;
    if (shell) {
        r->argv[0] = (char *)"/bin/sh";
        r->argv[1] = (char *)"-c";
        return (r->argv[2] = run_text(r, shell, "")) ? NULL : "the shell text is too long";
    }
    for (const struct json *v = argv->child; v; v = v->next) {
        if (v->type != JSON_STRING || v->has_nul) return "argv holds texts without NUL";
        if (!(r->argv[i++] = run_text(r, v->text, ""))) return "the arguments are too long";
    }
    return NULL;
}

static const char *fill_run(struct run *r, const struct json *request, const char **user) {
    bool bad = false;
    char home[4096] = "/root";
    const struct json *env = json_get(request, "env"), *tty = json_get(request, "tty");
    const char *cwd = json_get_text(request, "cwd", config_cwd(), &bad);
    *user = json_get_text(request, "user", NULL, &bad);
    r->cwd_fallback = json_get_bool(request, "cwd_fallback", false, &bad);
    r->tty = tty != NULL;
    if (bad || *cwd != '/' || (tty && tty->type != JSON_OBJECT)) return "cwd is an absolute path, user a text, tty an object";
    if (!env_is_valid(env)) return "env maps names without = to texts";
    if (*user && !user_resolve(r, *user, home, sizeof home)) return "user";
    if (!(r->cwd = run_text(r, cwd, "")) || !config_build_env(r, env, home)) return "the environment is too large";
    return fill_argv(r, request);
}

static bool open_terminal(const struct json *tty, const struct run *r, int ours[3], int theirs[3], bool *bad) {
    int unlocked = 0, number;
    char path[32];
    struct winsize w = {.ws_col = (unsigned short)json_get_int(tty, "cols", 0, 65535, 0, bad),
                        .ws_row = (unsigned short)json_get_int(tty, "rows", 0, 65535, 0, bad)};
    w.ws_col = w.ws_col ? w.ws_col : 80;
    w.ws_row = w.ws_row ? w.ws_row : 24;
    if (*bad) return true;
    int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (master < 0) return false;
    ours[1] = master;
    if (ioctl(master, TIOCSPTLCK, &unlocked) != 0 || ioctl(master, TIOCGPTN, &number) != 0) return false;
    int slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    snprintf(path, sizeof path, "/dev/pts/%d", number);
    if (slave < 0) slave = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC | O_NOFOLLOW); /* gVisor knows no TIOCGPTPEER */
    if (slave < 0) return false;
    theirs[0] = theirs[1] = theirs[2] = slave;
    if (r->as_user && fchown(slave, r->uid, r->gid) != 0 && errno != EPERM) return false;
    /* A second descriptor, since input and output are watched apart. */
    return ioctl(master, TIOCSWINSZ, &w) == 0 && (ours[0] = fcntl(master, F_DUPFD_CLOEXEC, 3)) >= 0;
}

static bool open_pipes(bool with_stdin, int ours[3], int theirs[3]) {
    int p[2];
    for (int i = with_stdin ? 0 : 1; i < 3; i++) {
        if (pipe2(p, O_CLOEXEC) != 0) return false;
        ours[i] = p[i == 0];
        theirs[i] = p[i != 0];
        fcntl(ours[i], F_SETFL, O_NONBLOCK); /* of this end alone: the program's end must block */
    }
    return true;
}

static struct command *command_new(const char *id, struct stream *s) {
    struct command *c = xalloc(sizeof *c), **p = &first;
    snprintf(c->id, sizeof c->id, "%s", id);
    while (*p) p = &(*p)->next;
    *p = c;
    running++;
    c->started_ns = now_ns();
    c->stream = s;
    stream_bind(s, &command_stream, c);
    return c;
}

static void launch(struct stream *s, const struct json *request, struct keeper *k, const char *id) {
    bool bad = false;
    int ours[3] = {-1, -1, -1}, theirs[3] = {-1, -1, -1};
    const struct json *tty = json_get(request, "tty");
    bool with_stdin = json_get_bool(request, "stdin", false, &bad);
    int64_t deadline_ms = json_get_int(request, "deadline_ms", 1, INT64_MAX / 2000000, 0, &bad);
    bool opened = bad || (tty ? open_terminal(tty, k->run, ours, theirs, &bad) : open_pipes(with_stdin, ours, theirs));
    int error = errno;
    struct command *c = NULL;
    if (!bad && opened && keeper_run(k, theirs)) {
        c = command_new(id, s);
        c->tty = tty != NULL;
        c->keeper = k;
        k->command = c;
        output_open(c, ours);
        if (deadline_ms) timer_set(&c->deadline, deadline_ms, deadline_passed);
    }
    for (int i = 0; i < 3; i++) {
        if (theirs[i] >= 0 && (i == 0 || theirs[i] != theirs[0])) close(theirs[i]);
        if (!c && ours[i] >= 0) close(ours[i]);
    }
    if (c) return;
    keeper_release(k);
    if (bad) stream_error(s, "invalid", 0, "stdin is a bool, deadline_ms a number above 0, cols and rows at most 65535");
    else stream_error(s, "limit", error, "no descriptors for the command: %s", strerror(error));
}

void op_exec(struct stream *s, const struct json *request) {
    bool bad = false;
    const char *id = json_get_text(request, "id", "", &bad), *user = NULL;
    if (bad || !valid_id(id)) stream_error(s, "invalid", 0, "id is 1 to 64 characters of A-Z a-z 0-9 _ . -");
    else if (find(id)) stream_error(s, "exists", 0, "a command %s is known already", id);
    else if (running >= MAX_RUNNING) stream_error(s, "limit", 0, "%d commands are running", MAX_RUNNING);
    else {
        struct keeper *k = keeper_take();
        const char *wrong = k ? fill_run(k->run, request, &user) : NULL;
        if (!k) stream_error(s, "limit", errno, "no process for the command: %s", strerror(errno));
        else if (!wrong) launch(s, request, k, id);
        else {
            keeper_release(k);
            if (strcmp(wrong, "user") == 0) stream_error(s, "user", 0, "no such user or group: %.200s", user);
            else stream_error(s, "invalid", 0, "%s", wrong);
        }
    }
}

void op_attach(struct stream *s, const struct json *request) {
    bool bad = false;
    struct buf b = {0};
    struct command *c = find(json_get_text(request, "id", "", &bad));
    int64_t from = json_get_int(request, "from", 0, INT64_MAX, 0, &bad);
    if (bad || (c && (uint64_t)from > c->ring.head)) stream_error(s, "invalid", 0, "from is an offset that was reached");
    else if (!c) stream_error(s, "not_found", 0, "no such command");
    else if (c->state == COMMAND_STARTING) stream_error(s, "busy", 0, "the command is being started");
    else if (buf_len(&c->input) > MAX_STALE_INPUT) stream_error(s, "limit", 0, "too much stdin is waiting to be read");
    else {
        if (c->stream) stream_error(c->stream, "replaced", 0, "another stream took this command over");
        c->stream = s;
        c->stale_input = buf_len(&c->input);
        stream_bind(s, &command_stream, c);
        if ((uint64_t)from > c->ring.acked) c->ring.acked = (uint64_t)from;
        c->sent = c->ring.acked;
        json_begin(&b, NULL, '{');
        json_string(&b, "event", "attached");
        json_number(&b, "pid", c->pid);
        json_number(&b, "from", (int64_t)c->sent);
        json_flag(&b, "running", c->state == COMMAND_RUNNING);
        json_end(&b, '}');
        stream_event(s, &b);
        stream_ready(s);
        output_acknowledge(c, c->ring.acked);
    }
}

void op_commands(struct stream *s, const struct json *request) {
    struct buf b = {0};
    (void)request;
    json_begin(&b, NULL, '{');
    json_begin(&b, "commands", '[');
    for (const struct command *c = first; c; c = c->next) {
        json_begin(&b, NULL, '{');
        json_string(&b, "id", c->id);
        json_number(&b, "pid", c->pid);
        json_flag(&b, "running", c->state != COMMAND_ENDED);
        json_number(&b, "acked", (int64_t)c->ring.acked);
        json_number(&b, "offset", (int64_t)c->ring.head);
        json_end(&b, '}');
    }
    json_end(&b, ']');
    json_end(&b, '}');
    stream_close(s, &b);
}

void op_forget(struct stream *s, const struct json *request) {
    bool bad = false;
    struct command *c = find(json_get_text(request, "id", "", &bad));
    if (bad) stream_error(s, "invalid", 0, "id is a text");
    else if (c && c->state != COMMAND_ENDED) stream_error(s, "busy", 0, "the command is running");
    else {
        if (c && c->stream) stream_error(c->stream, "replaced", 0, "the command was forgotten");
        if (c) command_drop(c);
        stream_close(s, NULL);
    }
}

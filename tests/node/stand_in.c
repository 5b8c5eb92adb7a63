/* A stand-in for sbxd in the tests of runtimes: greets with a HELLO frame, then runs shell commands one by one.
 * Request: u32 length, command. Answer: i32 wait status, u32 length, output. `bridge` joins its stdio to it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char buffer[1 << 20];

static int transfer(int fd, void *data, size_t size, int writing) {
	for (char *at = data; size > 0;) {
		ssize_t n = writing ? write(fd, at, size) : read(fd, at, size);
		if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
			struct pollfd p = {fd, writing ? POLLOUT : POLLIN, 0};
			poll(&p, 1, -1);
			continue;
		}
		if (n <= 0)
			return -1;
		at += n;
		size -= n;
	}
	return 0;
}

static struct sockaddr_un address = {AF_UNIX, "\0skerry-sbxd"};
static const socklen_t address_size = offsetof(struct sockaddr_un, sun_path) + 12;

static int greet(int fd) {
	char hello[14] = {2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
	return transfer(fd, hello, sizeof hello, 1);
}

/* Runs one command; output is read until the shell has ended, then what is left in the pipe. */
static int serve(int fd) {
	uint32_t size;
	if (transfer(fd, &size, 4, 0) || size >= sizeof buffer || transfer(fd, buffer, size, 0))
		return -1;
	buffer[size] = 0;
	if (strcmp(buffer, "exit-init") == 0)
		_exit(3);
	int out[2], status = -1;
	if (pipe2(out, O_CLOEXEC))
		return -1;
	pid_t pid = fork();
	if (pid == 0) {
		int null = open("/dev/null", O_RDONLY);
		dup2(null, 0);
		dup2(out[1], 1);
		dup2(out[1], 2);
		close(fd > 2 ? fd : -1);
		execl("/bin/sh", "sh", "-c", buffer, (char *)0);
		_exit(127);
	}
	close(out[1]);
	fcntl(out[0], F_SETFL, O_NONBLOCK);
	uint32_t have = 0;
	for (int ended = pid < 0;;) {
		struct pollfd p = {out[0], POLLIN, 0};
		poll(&p, 1, ended ? 0 : 5);
		ssize_t n = read(out[0], buffer + have, sizeof buffer - have);
		if (n > 0) {
			have += n;
			continue;
		}
		if (ended)
			break;
		ended = waitpid(pid, &status, WNOHANG) == pid;
	}
	close(out[0]);
	int32_t answer[2] = {status, have};
	if (transfer(fd, answer, sizeof answer, 1) || transfer(fd, buffer, have, 1))
		return -1;
	return 0;
}

static int bridge(void) {
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	if (connect(fd, (struct sockaddr *)&address, address_size))
		return 1;
	struct pollfd p[2] = {{0, POLLIN, 0}, {fd, POLLIN, 0}};
	for (;;) {
		poll(p, 2, -1);
		for (int i = 0; i < 2; i++) {
			if (!p[i].revents)
				continue;
			ssize_t n = read(p[i].fd, buffer, sizeof buffer);
			if (n < 0 && errno == EAGAIN)
				continue;
			if (n <= 0 || transfer(i ? 1 : fd, buffer, n, 1))
				return 0;
		}
	}
}

int main(int argc, char **argv) {
	signal(SIGPIPE, SIG_IGN);
	if (argc > 1 && strcmp(argv[1], "bridge") == 0)
		return bridge();
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (bind(listener, (struct sockaddr *)&address, address_size) || listen(listener, 4) || greet(0))
		return 1;
	struct pollfd p[3] = {{0, POLLIN, 0}, {listener, POLLIN, 0}, {-1, POLLIN, 0}};
	for (;;) {
		poll(p, 3, 100);
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
		if (p[0].revents && serve(0))
			p[0].fd = -1;
		if (p[2].revents && serve(p[2].fd)) {
			close(p[2].fd);
			p[2].fd = -1;
		}
		if (p[1].revents) {
			int peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
			if (peer >= 0 && (p[2].fd >= 0 || greet(peer)))
				close(peer);
			else
				p[2].fd = peer;
		}
	}
}

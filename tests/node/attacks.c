/* What a hostile program tries. `attacks NAME` prints "refused ERRNO" or "OPEN", or does its worst for two seconds. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <linux/keyctl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/personality.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long clone_with(unsigned long flags) {
	long pid = syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
	if (pid == 0)
		_exit(0);
	if (pid > 0)
		waitpid(pid, NULL, 0);
	return pid;
}

static long clone3_user(void) {
	unsigned long long arguments[8] = {CLONE_NEWUSER, 0, 0, 0, SIGCHLD};
	long pid = syscall(435, arguments, sizeof arguments);
	if (pid == 0)
		_exit(0);
	return pid;
}

static long by_handle(void) {
	struct { unsigned bytes; int type; unsigned long inode; } handle = {8, 1, 2};
	return syscall(SYS_open_by_handle_at, AT_FDCWD, &handle, O_RDONLY);
}

/* Refused by the filter (ENOSYS), not by a file system that happens to know no such request (ENOTTY). */
static long btrfs(unsigned long request) {
	static char volume[4096];
	long made = ioctl(open("/tmp", O_RDONLY), request, volume);
	return made < 0 && errno == ENOSYS ? -1 : 0;
}

/* Every request of btrfs's type there could be, of every size that one has; upper halves are no disguise. */
static long btrfs_every(void) {
	static const unsigned long sizes[] = {0, 4, 8, 16, 24, 32, 48, 256, 1024, 1032, 4096};
	int here = open("/tmp", O_RDONLY);
	for (unsigned long number = 0; number < 256; number++)
		for (unsigned long way = 0; way < 4; way++)
			for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
				unsigned long request = way << 30 | sizes[i] << 16 | 0x9400 | number;
				if (request == 0x40049409 || request == 0x4020940d)
					continue; /* sharing blocks between files */
				if (syscall(SYS_ioctl, here, request, 0) >= 0 || errno != ENOSYS)
					return 0;
				if (syscall(SYS_ioctl, here, 1UL << 40 | request, 0) >= 0 || errno != ENOSYS)
					return 0;
			}
	return -1;
}

static long try(const char *name) {
	static char zeros[256];
#define IS(what) (strcmp(name, what) == 0)
	if (IS("mount")) return mount("none", "/tmp", "tmpfs", 0, NULL);
	if (IS("bind")) return mount("/", "/tmp", NULL, MS_BIND, NULL);
	if (IS("umount")) return umount2("/.skerry/sbxd", MNT_DETACH);
	if (IS("remount")) return mount(NULL, "/.skerry/sbxd", NULL, MS_REMOUNT | MS_BIND, NULL);
	if (IS("open_tree")) return syscall(428, AT_FDCWD, "/", 1);
	if (IS("fsopen")) return syscall(430, "tmpfs", 0);
	if (IS("pivot_root")) return syscall(SYS_pivot_root, "/", "/tmp");
	if (IS("unshare_user")) return unshare(CLONE_NEWUSER);
	if (IS("unshare_mount")) return unshare(CLONE_NEWNS);
	if (IS("clone_user")) return clone_with(CLONE_NEWUSER);
	if (IS("clone3_user")) return clone3_user();
	if (IS("clone_net")) return clone_with(CLONE_NEWNET);
	if (IS("setns")) return setns(open("/proc/1/ns/mnt", O_RDONLY), 0);
	if (IS("bpf")) return syscall(SYS_bpf, 0, zeros, sizeof zeros);
	if (IS("perf_event")) return syscall(SYS_perf_event_open, zeros, 0, -1, -1, 0);
	if (IS("userfaultfd")) return syscall(SYS_userfaultfd, 1);
	if (IS("io_uring")) return syscall(425, 8, zeros);
	if (IS("btrfs_subvolume")) return btrfs(0x5000940e);
	if (IS("btrfs_snapshot")) return btrfs(0x50009417);
	if (IS("btrfs_every")) return btrfs_every();
	if (IS("keyctl")) return syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, "x");
	if (IS("add_key")) return syscall(SYS_add_key, "user", "x", "y", 1, KEY_SPEC_PROCESS_KEYRING);
	if (IS("ptrace_init")) return ptrace(PTRACE_SEIZE, 1, 0, 0);
	if (IS("init_memory")) return open("/proc/1/mem", O_RDWR);
	if (IS("signal_init")) return kill(1, SIGSTOP);
	if (IS("open_by_handle")) return by_handle();
	if (IS("init_module")) return syscall(SYS_init_module, zeros, sizeof zeros, "");
	if (IS("finit_module")) return syscall(SYS_finit_module, 0, "", 0);
	if (IS("kexec")) return syscall(SYS_kexec_load, 0, 0, 0, 0);
	if (IS("reboot")) return syscall(SYS_reboot, 0xfee1dead, 672274793, 0x89abcdef, 0);
	if (IS("settime")) return clock_settime(CLOCK_REALTIME, &(struct timespec){1, 0});
	if (IS("sethostname")) return sethostname("x", 1);
	if (IS("swapon")) return syscall(SYS_swapon, "/tmp/x", 0);
	if (IS("iopl")) return syscall(SYS_iopl, 3);
	if (IS("syslog")) return syscall(SYS_syslog, 3, zeros, sizeof zeros);
	if (IS("personality")) return personality(ADDR_NO_RANDOMIZE | READ_IMPLIES_EXEC);
	if (IS("nice")) return syscall(SYS_setpriority, 0, 0, -20);
	if (IS("mknod_block")) return mknod("/tmp/disk", S_IFBLK | 0600, makedev(254, 0));
	if (IS("mknod_memory")) return mknod("/tmp/mem", S_IFCHR | 0600, makedev(1, 1));
	if (IS("raw_socket")) return socket(AF_INET, SOCK_RAW, 1);
	if (IS("packet_socket")) return socket(AF_PACKET, SOCK_RAW, 0);
	if (IS("vsock")) return socket(40, SOCK_STREAM, 0);
	if (IS("alg_socket")) return socket(38, SOCK_SEQPACKET, 0);
	if (IS("sysrq")) return open("/proc/sysrq-trigger", O_WRONLY);
	if (IS("core_pattern")) return open("/proc/sys/kernel/core_pattern", O_WRONLY);
	if (IS("sysctl_net")) return open("/proc/sys/net/ipv4/ip_forward", O_WRONLY | O_TRUNC);
	if (IS("write_sbxd")) return open("/.skerry/sbxd", O_WRONLY);
	if (IS("write_hosts")) return open("/etc/hosts", O_WRONLY);
	if (IS("remove_sbxd")) return unlink("/.skerry/sbxd");
	if (IS("device_disk")) return open("/dev/vda", O_RDONLY);
	errno = 0;
	return -2;
#undef IS
}

static void *nothing(void *argument) {
	return argument;
}

static int threads(void) {
	for (int i = 0; i < 3; i++) {
		pthread_t thread;
		int failed = pthread_create(&thread, NULL, nothing, NULL);
		if (failed)
			return failed;
		pthread_join(thread, NULL);
	}
	return 0;
}

/* Exits 0 when the memory barriers that membarrier(2) announces can be had: 1 << 4 registers for 1 << 3. */
static int barriers(void) {
	if ((syscall(SYS_membarrier, 0, 0) & 0x19) != 0x19)
		return 1;
	return syscall(SYS_membarrier, 1 << 4, 0) || syscall(SYS_membarrier, 1 << 3, 0) || syscall(SYS_membarrier, 1, 0);
}

static void fork_bomb(void) {
	time_t end = time(NULL) + 2;
	long refused = 0;
	while (time(NULL) < end) {
		if (fork() < 0) {
			refused++;
			usleep(1000);
		}
	}
	_exit(refused > 0 ? 0 : 1);
}

static void memory_hog(void) {
	for (long mib = 1;; mib++) {
		char *block = malloc(1 << 20);
		if (block == NULL)
			_exit(3);
		memset(block, 0x5a, 1 << 20);
	}
}

static void cpu_hog(void) {
	for (int i = 0; i < 4; i++)
		if (fork() == 0)
			break;
	for (time_t end = time(NULL) + 3; time(NULL) < end;)
		;
	while (wait(NULL) > 0)
		;
}

int main(int argc, char **argv) {
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (strstr(argv[0], "whoami") != NULL) {
		printf("%d %d\n", (int)getuid(), (int)geteuid());
		return 0;
	}
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "threads") == 0)
			return threads();
		if (strcmp(argv[i], "barriers") == 0)
			return barriers();
		if (strcmp(argv[i], "fork_bomb") == 0)
			fork_bomb();
		if (strcmp(argv[i], "memory_hog") == 0)
			memory_hog();
		if (strcmp(argv[i], "cpu_hog") == 0) {
			cpu_hog();
			continue;
		}
		long result = try(argv[i]);
		if (result == -2)
			printf("%s unknown\n", argv[i]);
		else if (result == -1)
			printf("%s refused %d\n", argv[i], errno);
		else
			printf("%s OPEN\n", argv[i]);
	}
	return 0;
}

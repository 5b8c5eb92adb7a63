"""The system calls that a sandbox may make.

Where it shares the host's kernel: a list of what is allowed; all else is refused. Two refusals: what programs probe
for, and can do without, answers ENOSYS, so that they fall back to an older call; what is dangerous answers EPERM, so
that they report it.

Under gVisor no call reaches the host's kernel, and a short list of what is refused is enough.
"""

import errno
import platform

# Flags of clone(2) that make a namespace: a new user namespace hands out capabilities over kernel code that nobody
# else may reach, which is where most of the kernel's privilege escalations are.
CLONE_NAMESPACES = 0x7E02_0000

_FILES = """
    access chdir chmod chown chown32 close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2
    fadvise64 fadvise64_64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchown32 fchownat fcntl fcntl64 fdatasync
    fgetxattr flistxattr flock fremovexattr fsetxattr fstat fstat64 fstatat64 fstatfs fstatfs64 fsync ftruncate
    ftruncate64 futimesat getcwd getdents getdents64 getxattr inotify_add_watch inotify_init inotify_init1
    inotify_rm_watch lchown lchown32 lgetxattr link linkat listxattr llistxattr _llseek lremovexattr lseek
    lsetxattr lstat lstat64 mkdir mkdirat newfstatat open openat openat2 pread64 preadv preadv2 pwrite64 pwritev
    pwritev2 read readahead readlink readlinkat readv removexattr rename renameat renameat2 rmdir sendfile sendfile64
    setxattr splice stat stat64 statfs statfs64 statx symlink symlinkat sync sync_file_range sync_file_range2 syncfs
    tee truncate truncate64 umask unlink unlinkat utime utimensat utimensat_time64 utimes vmsplice write writev
    mknod mknodat
    chroot landlock_add_rule landlock_create_ruleset landlock_restrict_self
"""  # mknod is how FIFOs are made; device nodes need CAP_MKNOD, which no sandbox has
_MEMORY = """
    brk get_mempolicy madvise membarrier memfd_create mincore mlock mlock2 mlockall mmap mmap2 mprotect mremap msync
    munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect process_mrelease remap_file_pages set_mempolicy mbind
    map_shadow_stack cachestat mseal
"""
_PROCESSES = """
    alarm arch_prctl capget capset execve execveat exit exit_group fork futex futex_time64 futex_waitv get_robust_list
    get_thread_area getcpu getegid getegid32 geteuid geteuid32 getgid getgid32 getgroups getgroups32 getitimer getpgid
    getpgrp getpid getppid getpriority getresgid getresgid32 getresuid getresuid32 getrlimit getrusage getsid gettid
    getuid getuid32 ioprio_get ioprio_set kill pidfd_open pidfd_send_signal prctl prlimit64 restart_syscall rseq
    rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait
    rt_sigtimedwait_time64 rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity
    sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval sched_rr_get_interval_time64
    sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield seccomp set_robust_list
    set_thread_area set_tid_address setfsgid setfsgid32 setfsuid setfsuid32 setgid setgid32 setgroups setgroups32
    setitimer setpgid setpriority setregid setregid32 setresgid setresgid32 setresuid setresuid32 setreuid setreuid32
    setrlimit setsid setuid setuid32 sigaltstack sigreturn tgkill times tkill ugetrlimit uname vfork wait4 waitid
    waitpid sysinfo
"""
_WAITING = """
    clock_getres clock_getres_time64 clock_gettime clock_gettime64 clock_nanosleep clock_nanosleep_time64 epoll_create
    epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2
    gettimeofday io_cancel io_destroy io_getevents io_pgetevents io_pgetevents_time64 io_setup io_submit nanosleep
    _newselect pause pipe pipe2 poll ppoll ppoll_time64 pselect6 pselect6_time64 select signalfd signalfd4 time
    timer_create timer_delete timer_getoverrun timer_gettime timer_gettime64 timer_settime timer_settime64
    timerfd_create timerfd_gettime timerfd_gettime64 timerfd_settime timerfd_settime64
"""
_TALKING = """
    accept accept4 bind connect getpeername getsockname getsockopt listen recv recvfrom recvmmsg recvmmsg_time64
    recvmsg send sendmmsg sendmsg sendto setsockopt shutdown socketpair
    mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedreceive_time64 mq_timedsend mq_timedsend_time64 mq_unlink
    msgctl msgget msgrcv msgsnd semctl semget semop semtimedop semtimedop_time64 shmat shmctl shmdt shmget ipc
    getrandom
"""
ALLOWED = tuple(" ".join((_FILES, _MEMORY, _PROCESSES, _WAITING, _TALKING)).split())

_DANGEROUS = """
    mount umount umount2 pivot_root move_mount open_tree fsopen fsconfig fsmount fspick mount_setattr setns unshare
    bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register fanotify_init
    keyctl add_key request_key
    ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd
    open_by_handle_at name_to_handle_at
    init_module finit_module delete_module create_module query_module kexec_load kexec_file_load reboot
    swapon swapoff acct quotactl quotactl_fd syslog lookup_dcookie vhangup nfsservctl
    settimeofday stime adjtimex clock_adjtime clock_settime clock_adjtime64 clock_settime64 sethostname setdomainname
    iopl ioperm vm86 vm86old modify_ldt uselib ustat sysfs _sysctl
    move_pages migrate_pages set_mempolicy_home_node
"""
# Refused with EPERM. Everything that is in no list is refused with ENOSYS.
DANGEROUS = tuple(_DANGEROUS.split())

# personality(2): Linux, 32-bit Linux, both with the kernel's version shown as 2.6, and the query. The others weaken
# the process itself (no address randomisation, a readable page 0).
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFF_FFFF)
# unix, inet, inet6, netlink. Not packet, vsock (the host behind the host), alg, can, tipc and the other rarities.
_FAMILIES = (1, 2, 10, 16)

# ioctl(2) by the type byte of its request: all but btrfs's own (0x94), with which a sandbox could make subvolumes and
# snapshots that escape its disk limit. Of those only the two that share blocks between files are let through.
_BTRFS_TYPE = 0x94
_FICLONE, _FICLONERANGE = 0x4004_9409, 0x4020_940D

_ARCHITECTURES = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}


def for_shared_kernel(machine: str = "") -> dict[str, object]:
    """The `linux.seccomp` member of an OCI configuration, for the native system calls of `machine` only.

    Calls of another architecture (32-bit programs, x32) kill the caller: their entry points are a second kernel
    interface, little tested.
    """
    no_namespaces = _masked(0, CLONE_NAMESPACES, 0)
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.ENOSYS,
        "architectures": [_ARCHITECTURES[machine or platform.machine()]],
        "syscalls": [
            _allow(*ALLOWED),
            _allow("clone", argument=no_namespaces),
            *(_allow("ioctl", argument=differs) for differs in _other_types(_BTRFS_TYPE)),
            *(_allow("ioctl", argument=_equals(1, request)) for request in (_FICLONE, _FICLONERANGE)),
            *(_allow("personality", argument=_equals(0, value)) for value in _PERSONALITIES),
            *(_allow("socket", argument=_equals(0, family)) for family in _FAMILIES),
            _refuse(errno.EPERM, *DANGEROUS),
            # Its flags are behind a pointer, out of the filter's sight. ENOSYS makes every libc fall back to clone.
            _refuse(errno.ENOSYS, "clone3"),
        ],
    }


def for_gvisor(machine: str = "") -> dict[str, object]:
    """As `for_shared_kernel`, for runsc with `--oci-seccomp`: no namespaces.

    Root of a new user namespace has CAP_NET_RAW in gVisor, also over the sandbox's own interface, and could forge the
    packets that leave it.
    """
    bits = [1 << bit for bit in range(32) if CLONE_NAMESPACES >> bit & 1]
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": [_ARCHITECTURES[machine or platform.machine()]],
        "syscalls": [
            _refuse(errno.EPERM, "unshare", "setns"),
            *(_refuse(errno.EPERM, "clone", argument=_masked(0, bit, bit)) for bit in bits),
            # runsc answers EPERM whatever errno it is told, and no libc makes a thread then. A trace without a tracer
            # is answered with ENOSYS; and a tracer, which could let the call through, cannot be.
            {"names": ["clone3"], "action": "SCMP_ACT_TRACE"},
            _refuse(errno.EPERM, "ptrace"),
        ],
    }


def _allow(*names: str, argument: dict[str, object] | None = None) -> dict[str, object]:
    rule: dict[str, object] = {"names": list(names), "action": "SCMP_ACT_ALLOW"}
    return rule if argument is None else rule | {"args": [argument]}


def _refuse(number: int, *names: str, argument: dict[str, object] | None = None) -> dict[str, object]:
    rule: dict[str, object] = {"names": list(names), "action": "SCMP_ACT_ERRNO", "errnoRet": number}
    return rule if argument is None else rule | {"args": [argument]}


def _other_types(kind: int) -> list[dict[str, object]]:
    """Conditions of which one holds for every request whose type byte is not `kind`: a bit of it differs."""
    bits = [1 << bit for bit in range(8)]
    return [_masked(1, bit << 8, (~kind & bit) << 8) for bit in bits]


def _masked(index: int, mask: int, value: int) -> dict[str, object]:
    return {"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}


def _equals(index: int, value: int) -> dict[str, object]:
    return {"index": index, "value": value, "valueTwo": 0, "op": "SCMP_CMP_EQ"}

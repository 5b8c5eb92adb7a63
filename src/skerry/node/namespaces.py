"""Mount and network namespaces, entered thread by thread through libc, since Python 3.11 has no calls for them.

A namespace belongs to a thread, and what the thread starts inherits it. So everything here that says *the calling
thread* is for a throwaway one (`processes.in_thread`), never for the event loop's.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import socket
import threading
from collections.abc import Callable
from pathlib import Path

_CLONE_NEWNS = 0x00020000
_CLONE_NEWNET = 0x40000000
_MS_RDONLY = 1
_MS_BIND = 4096
_MS_REC = 16384
_MS_SLAVE = 1 << 19
_MNT_DETACH = 2
_SETRESUID = {"x86_64": 117, "aarch64": 147}

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    """Raise OSError, with `what` was tried, for a libc call that did not return 0."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def private_mounts() -> None:
    """Give the calling thread a mount namespace of its own that sees the host's later unmounts and leaks nothing."""
    check(libc.unshare(_CLONE_NEWNS), "unshare(CLONE_NEWNS)")
    check(libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None), "mount --make-rslave /")


def cover_with_tmpfs(path: str) -> None:
    """Hide a directory under an empty read-only tmpfs, in the calling thread's mount namespace."""
    check(
        libc.mount(b"none", os.fsencode(path), b"tmpfs", ctypes.c_ulong(_MS_RDONLY), b"size=4k"), f"mount tmpfs {path}"
    )


def detach_mount(path: str) -> None:
    """Take a mount out of the calling thread's mount namespace."""
    check(libc.umount2(os.fsencode(path), _MNT_DETACH), f"umount {path}")


def enter_netns(path: Path) -> None:
    """Put the calling thread, which must be a throwaway one, into a bound network namespace."""
    with path.open("rb") as namespace:
        check(libc.setns(namespace.fileno(), _CLONE_NEWNET), f"setns {path}")


def connect_inside(pid: int, address: bytes) -> socket.socket:
    """A non-blocking connection to an abstract unix socket in the network namespace of `pid`.

    Made as the user who is root in the user namespace of `pid`, so that the listener sees uid 0. For a throwaway
    thread only, which is left in that namespace and without its privileges.
    """
    inside_uid, outside_uid, _ = Path(f"/proc/{pid}/uid_map").read_text().splitlines()[0].split()
    if inside_uid != "0":
        raise OSError(errno.EPERM, f"the user namespace of {pid} has no root")
    enter_netns(Path(f"/proc/{pid}/ns/net"))
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The system call, not libc's function, which would change the user of every thread.
        number = _SETRESUID[platform.machine()]
        check(libc.syscall(number, -1, int(outside_uid), -1), "setresuid")
        connection.setblocking(False)  # a full backlog is an error then, not a wait
        connection.connect(address)
    except BaseException:
        connection.close()
        raise
    return connection


def make_netns(path: Path) -> None:
    """Bind a new network namespace, with nothing but its loopback, at `path`. Blocking."""

    def work() -> None:
        check(libc.unshare(_CLONE_NEWNET), "unshare(CLONE_NEWNET)")
        _bring_loopback_up()
        source = f"/proc/self/task/{threading.get_native_id()}/ns/net".encode()
        check(libc.mount(source, os.fsencode(path), None, ctypes.c_ulong(_MS_BIND), None), f"mount {path}")

    path.touch()
    _run_thread(work)


def drop_netns(path: Path) -> None:
    """Undo `make_netns`. Safe to call twice."""
    with contextlib.suppress(OSError):
        detach_mount(str(path))
    path.unlink(missing_ok=True)


def _run_thread(function: Callable[[], None]) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            function()
        except OSError as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def _bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = b"lo".ljust(16, b"\0") + (0x1).to_bytes(2, "little").ljust(24, b"\0")  # ifreq with IFF_UP
        fcntl.ioctl(control, 0x8914, request)  # SIOCSIFFLAGS

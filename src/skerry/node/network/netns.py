"""Network namespaces that outlive their maker: made in a thread of their own, bound to a file.

A thread that has entered another namespace ends there. It never goes back to a pool, where the next user would work
on the wrong network without knowing.
"""

import ctypes
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_CLONE_NEWNET = 0x40000000
_MS_BIND = 0x1000
_MNT_DETACH = 2
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_SIOCETHTOOL, _ETHTOOL_GLINK = 0x8946, 0x0A
_IFF_UP = 1
_OWN = "/proc/thread-self/ns/net"

_libc = ctypes.CDLL(None, use_errno=True)


def create(path: Path, prepare: Callable[[], None]) -> None:
    """Make a namespace with loopback up, run `prepare` in it, and bind it to `path`, which must not exist.

    Nothing is left behind when it fails. Raises OSError, or what `prepare` raises.
    """

    def make() -> None:
        _check(_libc.unshare(_CLONE_NEWNET), "unshare")
        set_up("lo")
        prepare()
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDONLY | os.O_CLOEXEC, 0o600))
        try:
            _check(_libc.mount(_OWN.encode(), os.fsencode(path), b"none", _MS_BIND, None), f"bind {path}")
        except OSError:
            path.unlink()
            raise

    in_own_thread(make)


def is_bound(path: Path) -> bool:
    """Whether `path` holds a namespace. After a reboot it is an ordinary empty file."""
    try:
        return path.stat().st_dev == Path(_OWN).stat().st_dev
    except FileNotFoundError:
        return False


def remove(path: Path) -> None:
    """Unbind and delete. The kernel frees the namespace when its last process has ended. Absent: nothing happens."""
    if is_bound(path):
        _check(_libc.umount2(os.fsencode(path), _MNT_DETACH), f"unmount {path}")
    # Unlinking also takes the mount out of every mount namespace that was copied from ours meanwhile.
    path.unlink(missing_ok=True)


def inside(path: Path, action: Callable[[], T]) -> T:
    """Run `action` in the namespace bound to `path`, in a thread made for it, and return what it returned."""

    def enter() -> T:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check(_libc.setns(fd, _CLONE_NEWNET), f"enter {path}")
        finally:
            os.close(fd)
        return action()

    return in_own_thread(enter)


def in_scratch(action: Callable[[], T]) -> T:
    """Run `action` in a namespace that vanishes afterwards. Programs it starts run there, too."""

    def make() -> T:
        _check(_libc.unshare(_CLONE_NEWNET), "unshare")
        set_up("lo")
        return action()

    return in_own_thread(make)


def in_own_thread(action: Callable[[], T]) -> T:
    """Run `action` in a new thread that ends with it; what it raises is raised here."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(action())
        except BaseException as error:  # noqa: BLE001 - carried over to the caller, whole
            errors.append(error)

    thread = threading.Thread(target=run, name="netns", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def set_up(interface: str) -> None:
    """Set an interface of the calling thread's namespace up. Twice: nothing happens."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        request = struct.pack("16sH14x", interface.encode(), 0)
        flags = struct.unpack("16xH14x", fcntl.ioctl(sock, _SIOCGIFFLAGS, request))[0]
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH14x", interface.encode(), flags | _IFF_UP))


def settle_link(interface: str) -> None:
    """Have the kernel act on a link's coming up now. On its own it may take a second, and drops all packets until then.

    Asking whether the link is up does it (ETHTOOL_GLINK, since Linux 6.8); older kernels just answer. Raises OSError.
    """
    question = ctypes.create_string_buffer(struct.pack("II", _ETHTOOL_GLINK, 0))
    request = struct.pack("16sP16x", interface.encode(), ctypes.addressof(question))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        fcntl.ioctl(sock, _SIOCETHTOOL, request)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")

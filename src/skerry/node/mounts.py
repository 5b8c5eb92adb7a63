"""The kernel's mount calls that Python lacks: mount, unmount, id-mapped clones, an overlay built from descriptors.

Blocking and short: call from a thread. It knows nothing of pools, sandboxes or quotas.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_REMOUNT = 0x20
MS_NOATIME = 0x400
MS_BIND = 0x1000
MS_SHARED = 0x100000

# The same numbers on every architecture: they came after the tables were unified.
_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_MOUNT_SETATTR = 442

_AT_EMPTY_PATH = 0x1000
_AT_SYMLINK_NOFOLLOW = 0x100
_OPEN_TREE_CLONE = 0x1
_OPEN_TREE_CLOEXEC = os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 0x4
_MOUNT_ATTR_NOSUID = 0x2
_MOUNT_ATTR_NODEV = 0x4
_MOUNT_ATTR_IDMAP = 0x100000
_MNT_DETACH = 0x2
_UMOUNT_NOFOLLOW = 0x8
_STATX_ATTR_MOUNT_ROOT = 0x2000
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class MountEntry:
    """One line of mountinfo: where, what kind, from what."""

    target: Path
    fstype: str
    source: str


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def mount(source: str, target: Path, fstype: str, flags: int = 0, data: str = "") -> None:
    """mount(2). `OSError` names the target."""
    result = _libc.mount(
        os.fsencode(source), os.fsencode(target), fstype.encode(), ctypes.c_ulong(flags), os.fsencode(data)
    )
    _check(result, f"mount {fstype or source} on {target}")


def make_shared(target: Path) -> None:
    """Let unmounts here reach the copies that other mount namespaces hold.

    A service started with a private namespace copies our mounts; without propagation each copy would pin a
    sandbox's files until that service ends.
    """
    mount("none", target, "", MS_SHARED)


def unmount_all(target: Path) -> None:
    """Unmount everything stacked at `target`; busy mounts are detached. Nothing mounted, or no such path: success."""
    while True:
        result = _libc.umount2(os.fsencode(target), _MNT_DETACH | _UMOUNT_NOFOLLOW)
        if result < 0:
            if ctypes.get_errno() in (errno.EINVAL, errno.ENOENT):
                return
            _check(result, f"unmount {target}")


def unmount(target: Path) -> None:
    """Unmount the top mount at `target`, if nobody uses it (`OSError` EBUSY otherwise)."""
    _check(_libc.umount2(os.fsencode(target), _UMOUNT_NOFOLLOW), f"unmount {target}")


def is_mount_root(target: Path) -> bool:
    """Whether something is mounted exactly at `target`; constant time, unlike reading mountinfo."""
    buffer = ctypes.create_string_buffer(256)
    if _libc.statx(-100, os.fsencode(target), _AT_SYMLINK_NOFOLLOW, 0, buffer) < 0:
        if ctypes.get_errno() == errno.ENOENT:
            return False
        _check(-1, f"statx {target}")
    attributes: int = struct.unpack_from("=Q", buffer, 8)[0]
    return bool(attributes & _STATX_ATTR_MOUNT_ROOT)


def mounts_under(directory: Path) -> list[MountEntry]:
    """Every mount at or below `directory`, in the order in which they were made; targets without symlinks."""
    directory = directory.resolve()
    with open("/proc/self/mountinfo", "rb") as file:  # noqa: PTH123 - bytes: paths need not be UTF-8
        entries = [_parse(line) for line in file.read().splitlines()]
    return [entry for entry in entries if entry.target == directory or directory in entry.target.parents]


def _parse(line: bytes) -> MountEntry:
    head, _, tail = line.partition(b" - ")
    fstype, source = tail.split(b" ")[:2]
    return MountEntry(Path(_unescape(head.split(b" ")[4])), fstype.decode(), _unescape(source))


def _unescape(field: bytes) -> str:
    for code in (b"040", b"011", b"012", b"134"):  # the backslash last
        field = field.replace(b"\\" + code, bytes([int(code, 8)]))
    return os.fsdecode(field)


@contextmanager
def cloned(path: Path, userns_fd: int | None) -> Generator[int]:
    """A descriptor of a private clone of the mount at `path`, id-mapped through `userns_fd` when one is given."""
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_SYMLINK_NOFOLLOW
    fd = _check(_libc.syscall(_SYS_OPEN_TREE, -100, os.fsencode(path), flags), f"open_tree {path}")
    try:
        set_attributes = _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV
        if userns_fd is not None:
            set_attributes |= _MOUNT_ATTR_IDMAP
        # struct mount_attr: set, clear, propagation, userns_fd
        attributes = struct.pack("=QQQQ", set_attributes, 0, 0, 0 if userns_fd is None else userns_fd)
        result = _libc.syscall(_SYS_MOUNT_SETATTR, fd, b"", _AT_EMPTY_PATH, attributes, ctypes.c_size_t(32))
        _check(result, f"id-map {path}")
        yield fd
    finally:
        os.close(fd)


def attach(tree_fd: int, target: Path) -> None:
    """Mount a cloned tree at `target`."""
    result = _libc.syscall(_SYS_MOVE_MOUNT, tree_fd, b"", -100, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)
    _check(result, f"move_mount to {target}")


@contextmanager
def standing(tree_fd: int, place: Path) -> Generator[None]:
    """Have a cloned tree mounted at the directory `place`, which is made for it and goes with it."""
    unmount_all(place)  # what a crash left
    place.mkdir(mode=0o700, exist_ok=True)
    attach(tree_fd, place)
    try:
        yield
    finally:
        unmount_all(place)
        place.rmdir()


def overlay(lower_fd: int, layer_fd: int, target: Path, *, owner: int = 0) -> None:
    """Mount an overlay at `target`: `lower_fd` read-only below, `layer_fd`'s `upper` and `work` above.

    `owner` is the host id that the layer's id 0 is mapped to. The kernel makes the work directory with the
    mounter's file-system ids; an id that the mapping does not know would leave the mount read-only, silently.
    Paths go through descriptors, so that no character of a directory's name can be read as an option.
    """
    # redirect_dir, metacopy and index tie a layer to one lower or hide data from whoever copies the upper directory.
    options = (
        f"lowerdir=/proc/self/fd/{lower_fd},upperdir=/proc/self/fd/{layer_fd}/upper,"
        f"workdir=/proc/self/fd/{layer_fd}/work,redirect_dir=nofollow,metacopy=off,index=off"
    )
    with acting_as(owner):
        mount("overlay", target, "overlay", MS_NOSUID | MS_NODEV | MS_NOATIME, options)
    if os.statvfs(target).f_flag & os.ST_RDONLY:
        unmount_all(target)
        raise OSError(errno.EROFS, f"the kernel would mount {target} read-only only: its id mapping was not accepted")


@contextmanager
def acting_as(owner: int) -> Generator[None]:
    """Act on files as `owner` in this thread alone, with all capabilities kept."""
    if owner == 0:
        yield
        return
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    capabilities = ctypes.create_string_buffer(24)
    _check(_libc.capget(header, capabilities), "capget")
    try:
        _libc.setfsgid(owner)
        _libc.setfsuid(owner)
        # Leaving id 0 takes the file capabilities out of the effective set.
        _check(_libc.capset(header, capabilities), "capset")
        yield
    finally:
        _libc.setfsuid(0)
        _libc.setfsgid(0)
        _check(_libc.capset(header, capabilities), "capset")

"""btrfs by its ioctls: subvolumes, snapshots, searches in its trees. Blocking; no subprocess, no policy."""

import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

FIRST_INODE = 256  # a subvolume's root directory
_LAST_INODE = 2**64 - 256
_ROOT_TREE = 1
_INODE_ITEM = 1
_ROOT_ITEM = 132
_ROOT_REF = 156
_SUPER_MAGIC = 0x9123683E

_READONLY = 1 << 1
_BY_ID = 1 << 4
_INHERIT = 1 << 2

_FULL_RETRIES = 5
_NAME_LENGTH = 4040
_ARGS_SIZE = 4096
_KEY = struct.Struct("=7Q4I4Q")
_HEADER = struct.Struct("=QQQII")


def _ioctl_number(direction: int, number: int, size: int) -> int:
    return direction << 30 | size << 16 | 0x94 << 8 | number


_SNAP_DESTROY = _ioctl_number(1, 15, _ARGS_SIZE)
_TREE_SEARCH = _ioctl_number(3, 17, _ARGS_SIZE)
_INO_LOOKUP = _ioctl_number(3, 18, _ARGS_SIZE)
_SNAP_CREATE_V2 = _ioctl_number(1, 23, _ARGS_SIZE)
_SUBVOL_CREATE_V2 = _ioctl_number(1, 24, _ARGS_SIZE)
_SUBVOL_GETFLAGS = _ioctl_number(2, 25, 8)
_SUBVOL_SETFLAGS = _ioctl_number(1, 26, 8)
_FS_INFO = _ioctl_number(2, 31, 1024)
_SYNC = _ioctl_number(0, 8, 0)
_RESIZE = _ioctl_number(1, 3, _ARGS_SIZE)
_SNAP_DESTROY_V2 = _ioctl_number(1, 63, _ARGS_SIZE)


@contextmanager
def opened(path: Path) -> Generator[int]:
    """A descriptor of a directory, never through a symlink at its end."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def is_btrfs(path: Path) -> bool:
    """Whether `path` lies on btrfs, by the file system's magic number."""
    buffer = ctypes.create_string_buffer(256)
    if ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(path), buffer) < 0:
        return False
    magic: int = struct.unpack_from("=q", buffer)[0]
    return magic == _SUPER_MAGIC


def create_subvolume(path: Path, *, qgroup: int | None = None) -> None:
    """Make an empty subvolume, charged to `qgroup` too. `OSError` EEXIST if the name is taken."""
    _make(path, 0, _SUBVOL_CREATE_V2, flags=0, qgroup=qgroup)


def snapshot(source: Path, path: Path, *, readonly: bool = False, qgroup: int | None = None) -> None:
    """Make `path` a snapshot of the subvolume `source`. Costs a commit of the whole file system."""
    with opened(source) as fd:
        _make(path, fd, _SNAP_CREATE_V2, flags=_READONLY if readonly else 0, qgroup=qgroup)


def _make(path: Path, source_fd: int, request: int, *, flags: int, qgroup: int | None) -> None:
    inherit = None
    if qgroup is not None:
        # flags, one group, no copies, an empty limit, the group
        inherit = ctypes.create_string_buffer(struct.pack("=QQQQ5QQ", 0, 1, 0, 0, 0, 0, 0, 0, 0, qgroup), 80)
        flags |= _INHERIT
    union = struct.pack("=QQQQ", 80, ctypes.addressof(inherit), 0, 0) if inherit is not None else bytes(32)
    arguments = struct.pack("=qQQ", source_fd, 0, flags) + union + _name(path.name)
    with opened(path.parent) as parent_fd:
        fcntl.ioctl(parent_fd, request, bytearray(arguments))


def _name(name: str) -> bytes:
    raw = os.fsencode(name)
    if not 0 < len(raw) < 256 or b"/" in raw:
        raise OSError(errno.EINVAL, f"not a subvolume's name: {name!r}")
    return raw.ljust(_NAME_LENGTH, b"\0")


def delete_subvolume(path: Path) -> list[int]:
    """Delete a subvolume and all that were made inside it; the ids deleted. Constant time per subvolume.

    Contents are not visited, so no name or link in them matters. No such path: an empty list.
    """
    try:
        with opened(path) as fd:
            root = subvolume_id(fd)
    except FileNotFoundError:
        return []
    deleted: list[int] = []
    with opened(path.parent) as parent_fd:
        # A sandbox may have made subvolumes of its own; an inner one goes before its outer.
        for inner in reversed(_descendants(parent_fd, root)):
            by_id = struct.pack("=qQQ32xQ", 0, 0, _BY_ID, inner)
            patient_ioctl(parent_fd, _SNAP_DESTROY_V2, by_id.ljust(_ARGS_SIZE, b"\0"))
            deleted.append(inner)
        arguments = struct.pack("=q", 0) + os.fsencode(path.name).ljust(_ARGS_SIZE - 8, b"\0")
        patient_ioctl(parent_fd, _SNAP_DESTROY, arguments)
    return [*deleted, root]


def patient_ioctl(fd: int, request: int, arguments: bytes) -> None:
    """An ioctl, tried again on a full file system: what earlier removals gave back can be had after a commit."""
    for attempt in range(_FULL_RETRIES + 1):
        try:
            fcntl.ioctl(fd, request, bytearray(arguments))
        except OSError as error:
            if error.errno != errno.ENOSPC or attempt == _FULL_RETRIES:
                raise
            fcntl.ioctl(fd, _SYNC)
        else:
            return


def _descendants(fd: int, root: int) -> list[int]:
    """Ids of the subvolumes inside `root`, outer ones before their inner ones."""
    found: list[int] = []
    queue = [root]
    while queue:
        parent = queue.pop()
        inside = [key[2] for key, _ in search(fd, _ROOT_TREE, (parent, _ROOT_REF, 0), (parent, _ROOT_REF, 2**64 - 1))]
        found += inside
        queue += inside
    return found


def subvolumes(fd: int) -> set[int]:
    """Ids of all subvolumes of the file system, those that are being deleted included."""
    items = search(fd, _ROOT_TREE, (FIRST_INODE, 0, 0), (_LAST_INODE, _ROOT_ITEM, 2**64 - 1))
    return {key[0] for key, _ in items if key[1] == _ROOT_ITEM}


def is_subvolume(path: Path) -> bool:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return status.st_ino == FIRST_INODE and is_btrfs(path)


def subvolume_id(fd: int) -> int:
    """The id of the subvolume that the open file `fd` lies in."""
    arguments = bytearray(struct.pack("=QQ", 0, FIRST_INODE).ljust(_ARGS_SIZE, b"\0"))
    fcntl.ioctl(fd, _INO_LOOKUP, arguments)
    found: int = struct.unpack_from("=Q", arguments)[0]
    return found


def set_readonly(path: Path, readonly: bool) -> None:
    """Seal a subvolume against every change, or open it again."""
    with opened(path) as fd:
        flags = bytearray(8)
        fcntl.ioctl(fd, _SUBVOL_GETFLAGS, flags)
        value = struct.unpack("=Q", flags)[0]
        value = value | _READONLY if readonly else value & ~_READONLY
        patient_ioctl(fd, _SUBVOL_SETFLAGS, struct.pack("=Q", value))


def grow(path: Path) -> None:
    """Let the file system take all of its (grown) device."""
    with opened(path) as fd:
        arguments = struct.pack("=q", 0) + b"max".ljust(_ARGS_SIZE - 8, b"\0")
        fcntl.ioctl(fd, _RESIZE, bytearray(arguments))


def filesystem_id(path: Path) -> str:
    """The file system's UUID, as sysfs names it."""
    with opened(path) as fd:
        arguments = bytearray(1024)
        fcntl.ioctl(fd, _FS_INFO, arguments)
    text = arguments[16:32].hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


Key = tuple[int, int, int]  # object id, item type, offset


def search(fd: int, tree: int, least: Key, most: Key, *, batch: int = 4096) -> Iterator[tuple[Key, bytes]]:
    """The items of a tree (0: the one `fd` lies in) from one key to another, in order. Needs CAP_SYS_ADMIN.

    Keys compare as tuples: items of every type lie between two object ids.
    """
    position = least
    while position <= most:
        arguments = bytearray(_ARGS_SIZE)
        _KEY.pack_into(
            arguments, 0, tree, position[0], most[0], position[2], most[2], 0, 2**64 - 1,
            position[1], most[1], batch, 0, 0, 0, 0, 0,
        )  # fmt: skip
        fcntl.ioctl(fd, _TREE_SEARCH, arguments)
        count = _KEY.unpack_from(arguments)[9]
        if not count:
            return
        offset = _KEY.size
        key = position
        for _ in range(count):
            _, objectid, item_offset, kind, length = _HEADER.unpack_from(arguments, offset)
            key = (objectid, kind, item_offset)
            start = offset + _HEADER.size
            yield key, bytes(arguments[start : start + length])
            offset = start + length
        position = _after(key)


def _after(key: Key) -> Key:
    if key[2] < 2**64 - 1:
        return key[0], key[1], key[2] + 1
    return (key[0], key[1] + 1, 0) if key[1] < 255 else (key[0] + 1, 0, 0)


def has_inode_from(fd: int, least: int) -> bool:
    """Whether the subvolume of `fd` holds an inode numbered `least` or higher. One call, whatever its size."""
    found = search(fd, 0, (least, 0, 0), (_LAST_INODE, 255, 2**64 - 1), batch=1)
    return next(found, None) is not None


def count_inodes(fd: int, most: int) -> int:
    """How many inodes the subvolume of `fd` holds; stops counting beyond `most`. About six seconds a million."""
    count, least = 0, FIRST_INODE
    while count <= most:
        # The first item of every inode is its INODE_ITEM: step from one object id to the next.
        found = next(search(fd, 0, (least, _INODE_ITEM, 0), (_LAST_INODE, 255, 2**64 - 1), batch=1), None)
        if found is None:
            break
        count += 1
        least = found[0][0] + 1
    return count

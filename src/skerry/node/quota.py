"""Disk limits on btrfs: one group a sandbox, over all its subvolumes. Simple quotas where the kernel has them.

Simple quotas (Linux ≥ 6.7) charge an extent to whoever wrote it and cost next to nothing; full ones (older kernels)
count sharing too, and are limited by what is exclusive, so that a fork is charged for new data only.
"""

import errno
import fcntl
import hashlib
import struct
from collections.abc import Callable
from pathlib import Path

from skerry.node import btrfs

SIMPLE = "simple-quota"
FULL = "qgroup"

_QUOTA_TREE = 8
_QGROUP_INFO = 242
_QGROUP_RELATION = 246
_MAX_REFERENCED = 1 << 0
_MAX_EXCLUSIVE = 1 << 1
_CLEAR = 2**64 - 1
_FIRST_SUBVOLUME = 256

_QUOTA_CTL = 0xC0109428
_QGROUP_ASSIGN = 0x40189429
_QGROUP_CREATE = 0x4010942A
_QGROUP_LIMIT = 0x8030942B
_ENABLE_FULL = 1
_ENABLE_SIMPLE = 4

# ENOTCONN: quotas are off; EINVAL: the relation went with the member.
_NOT_THERE = (errno.ENOENT, errno.ENOTCONN, errno.EINVAL)


def group_of(name: str) -> int:
    """The group of a sandbox: level 1 and 48 bits of a hash, so that it can be found again without a record."""
    return 1 << 48 | int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big")


def shown(group: int) -> str:
    """A group as btrfs-progs writes it."""
    return f"{group >> 48}/{group & (1 << 48) - 1}"


def mode(pool: Path) -> str | None:
    """SIMPLE, FULL, or None while quotas are off."""
    directory = _sysfs(pool)
    if not directory.exists():
        return None
    file = directory / "mode"  # only kernels that know simple quotas have it
    return SIMPLE if file.exists() and file.read_text().strip() == "squota" else FULL


def enable(pool: Path, *, full: bool) -> str | None:
    """Turn quotas on, simple ones if the kernel can, full ones only if `full`; the mode then in force.

    Quotas that are on stay as they are. A kernel that can do neither: None.
    """
    found = mode(pool)
    if found is not None:
        return found
    with btrfs.opened(pool) as fd:
        for command in (_ENABLE_SIMPLE, _ENABLE_FULL) if full else (_ENABLE_SIMPLE,):
            try:
                fcntl.ioctl(fd, _QUOTA_CTL, bytearray(struct.pack("=QQ", command, 0)))
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTTY):
                    raise
            else:
                return mode(pool)
    return None


def create(fd: int, group: int) -> None:
    """Make a group. One that exists stays."""
    try:
        fcntl.ioctl(fd, _QGROUP_CREATE, struct.pack("=QQ", 1, group))
    except FileExistsError:
        return


def limit(fd: int, group: int, size_bytes: int | None, kind: str) -> None:
    """Set how much the group's subvolumes may hold together. Writers beyond it see EDQUOT. None: without end."""
    size_bytes = _CLEAR if size_bytes is None else size_bytes
    flag = _MAX_REFERENCED if kind == SIMPLE else _MAX_EXCLUSIVE
    values = (size_bytes, _CLEAR) if kind == SIMPLE else (_CLEAR, size_bytes)
    fcntl.ioctl(fd, _QGROUP_LIMIT, bytearray(struct.pack("=QQQQQQ", group, flag, *values, 0, 0)))


def usage_bytes(pool: Path, group: int, kind: str) -> int:
    """What is charged to a group now. An unknown group holds nothing."""
    return usage_reader(pool, kind)(group)


def referenced_bytes(pool: Path, subvolume: int) -> int:
    """What a subvolume's own group refers to. Under simple quotas: what was written to it and is there still."""
    return usage_reader(pool, SIMPLE)(subvolume)


def usage_reader(pool: Path, kind: str) -> Callable[[int], int]:
    """`usage_bytes` for many groups: which file system it is, is asked once."""
    directory, name = _sysfs(pool), "referenced" if kind == SIMPLE else "exclusive"

    def read(group: int) -> int:
        try:
            return int((directory / f"{group >> 48}_{group & (1 << 48) - 1}" / name).read_text())
        except FileNotFoundError:
            return 0

    return read


def release(fd: int, subvolume: int) -> None:
    """Take a subvolume that is to be deleted out of its groups: its charge goes at once, not when it is cleaned up."""
    for group in _members(fd, subvolume):
        _forgiving(fd, _QGROUP_ASSIGN, struct.pack("=QQQ", 0, subvolume, group), errno.ENOSPC)


def remove(fd: int, groups: list[int]) -> list[int]:
    """Remove groups, whatever is in them; those that a full file system would not let go. Unknown: nothing happens."""
    left: list[int] = []
    for group in groups:
        try:
            for member in _members(fd, group):
                _forgiving(fd, _QGROUP_ASSIGN, struct.pack("=QQQ", 0, member, group))
            _forgiving(fd, _QGROUP_CREATE, struct.pack("=QQ", 0, group))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            left.append(group)
    return left


def _members(fd: int, group: int) -> list[int]:
    try:
        found = btrfs.search(fd, _QUOTA_TREE, (group, _QGROUP_RELATION, 0), (group, _QGROUP_RELATION, 2**64 - 1))
        return [key[2] for key, _ in found]
    except FileNotFoundError:  # no quota tree: quotas are off
        return []


def remove_stale(fd: int, subvolumes: list[int]) -> list[int]:
    """Remove the own groups of deleted subvolumes; those the kernel still cleans up are returned for another try.

    New kernels remove them by themselves.
    """
    left: list[int] = []
    for subvolume in subvolumes:
        try:
            fcntl.ioctl(fd, _QGROUP_CREATE, struct.pack("=QQ", 0, subvolume))
        except OSError as error:
            if error.errno in (errno.EBUSY, errno.ENOSPC):
                left.append(subvolume)
            elif error.errno not in _NOT_THERE:
                raise
    return left


def without_subvolume(fd: int) -> set[int]:
    """The own groups of subvolumes that are not there any more."""
    own = {group for group in groups(fd) if _FIRST_SUBVOLUME <= group < 1 << 48}
    return own - btrfs.subvolumes(fd)


def groups(fd: int) -> set[int]:
    """All groups of the file system."""
    found = btrfs.search(fd, _QUOTA_TREE, (0, _QGROUP_INFO, 0), (0, _QGROUP_INFO, 2**64 - 1))
    return {key[2] for key, _ in found if key[1] == _QGROUP_INFO}


def _forgiving(fd: int, request: int, arguments: bytes, *more: int) -> None:
    try:
        fcntl.ioctl(fd, request, arguments)
    except OSError as error:
        if error.errno not in (*_NOT_THERE, *more):
            raise


def _sysfs(pool: Path) -> Path:
    return Path("/sys/fs/btrfs") / btrfs.filesystem_id(pool) / "qgroups"

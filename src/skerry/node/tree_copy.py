"""A copy of a directory tree, file by file, for pools whose file system cannot snapshot. Blocking: call from a thread.

Works by descriptors: nothing that is in the tree, or that changes in it meanwhile, leads out of it. What vanishes while
it is copied is left out. Kept: contents (shared where the file system can), holes, modes, owners, times, links hard and
soft, extended attributes but `trusted.*`. Device nodes are left out.
"""

import errno
import fcntl
import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

DEEPEST = 4000  # directories in each other: each one holds two descriptors while it is copied
_FICLONE = 0x40049409
_AT_ONCE = 1 << 26


@dataclass(slots=True)
class _Copying:
    """A copy under way. `links`: a directory beside the copy that holds the first copy of each hard-linked file."""

    links: int
    linked: set[int] = field(default_factory=set[int])
    device: int = 0


@dataclass(slots=True)
class _Level:
    """A directory that is being copied: the entries that are left, and where they go."""

    source: int
    target: int
    status: os.stat_result
    names: list[str]


def copy_tree(source: Path, target: Path) -> None:
    """Copy `source` to `target`, which must not exist.

    Raises:
        OSError: The target cannot be written, or (ELOOP) the tree is more than `DEEPEST` directories deep.
    """
    links = target.with_name(target.name + ".links")
    links.mkdir(mode=0o700)
    target.mkdir(mode=0o700)
    links_fd = _open_directory(os.fspath(links), None)
    try:
        root = _open_directory(os.fspath(source), None)
        copying = _Copying(links_fd, device=os.fstat(root).st_dev)
        _copy_all(copying, _level(root, _open_directory(os.fspath(target), None)))
        for name in os.listdir(links_fd):  # noqa: PTH208 - by its descriptor
            os.unlink(name, dir_fd=links_fd)
    finally:
        os.close(links_fd)
    links.rmdir()


def _open_directory(name: str, within: int | None) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)


def _level(source: int, target: int) -> _Level:
    return _Level(source, target, os.fstat(source), os.listdir(source))


def _copy_all(copying: _Copying, root: _Level) -> None:
    levels = [root]
    try:
        while levels:
            level = levels[-1]
            if not level.names:
                _finish(levels.pop())
                continue
            if (inner := _entry(copying, level, level.names.pop())) is not None:
                levels.append(inner)
                if len(levels) > DEEPEST:
                    raise OSError(errno.ELOOP, f"more than {DEEPEST} directories in each other")
    finally:
        for level in levels:
            os.close(level.source)
            os.close(level.target)


def _finish(level: _Level) -> None:
    """A directory's own attributes last: they may take away the right to write, and each entry changes its times."""
    try:
        _attributes(level.source, level.target, level.status)
    finally:
        os.close(level.source)
        os.close(level.target)


def _entry(copying: _Copying, level: _Level, name: str) -> _Level | None:
    """Copy one entry; a directory is only made, and returned to be gone through."""
    try:
        status = os.stat(name, dir_fd=level.source, follow_symlinks=False)
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFDIR:
            return _directory(copying, level, name)
        if kind not in (stat.S_IFREG, stat.S_IFLNK, stat.S_IFIFO, stat.S_IFSOCK):
            return None
        if status.st_nlink > 1 and status.st_ino in copying.linked:
            os.link(str(status.st_ino), name, src_dir_fd=copying.links, dst_dir_fd=level.target)
            return None
        if not _leaf(level, name, status, kind):
            return None
    except FileNotFoundError:
        return None
    if status.st_nlink > 1:
        os.link(name, str(status.st_ino), src_dir_fd=level.target, dst_dir_fd=copying.links, follow_symlinks=False)
        copying.linked.add(status.st_ino)
    return None


def _directory(copying: _Copying, level: _Level, name: str) -> _Level | None:
    try:
        source = _open_directory(name, level.source)
    except (NotADirectoryError, OSError) as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.ENOENT):
            return None  # it became something else meanwhile
        raise
    try:
        os.mkdir(name, mode=0o700, dir_fd=level.target)
        if os.fstat(source).st_dev != copying.device:
            os.close(source)
            return None  # another file system is no part of the tree
        return _level(source, _open_directory(name, level.target))
    except BaseException:
        os.close(source)
        raise


def _leaf(level: _Level, name: str, status: os.stat_result, kind: int) -> bool:
    if kind == stat.S_IFREG:
        return _file(level, name)
    if kind == stat.S_IFLNK:
        os.symlink(os.readlink(name, dir_fd=level.source), name, dir_fd=level.target)
    else:
        os.mknod(name, kind | 0o600, dir_fd=level.target)
        os.chmod(name, stat.S_IMODE(status.st_mode), dir_fd=level.target)
    os.chown(name, status.st_uid, status.st_gid, dir_fd=level.target, follow_symlinks=False)
    if kind != stat.S_IFLNK:
        os.chmod(name, stat.S_IMODE(status.st_mode), dir_fd=level.target)
    times = (status.st_atime_ns, status.st_mtime_ns)
    os.utime(name, ns=times, dir_fd=level.target, follow_symlinks=False)
    return True


def _file(level: _Level, name: str) -> bool:
    try:
        source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=level.source)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            return False  # it became a link or a FIFO meanwhile
        raise
    try:
        status = os.fstat(source)
        if not stat.S_ISREG(status.st_mode):
            return False
        target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=level.target)
        try:
            _contents(source, target, status.st_size)
            _attributes(source, target, status)
        finally:
            os.close(target)
    finally:
        os.close(source)
    return True


def _contents(source: int, target: int, size: int) -> None:
    try:
        fcntl.ioctl(target, _FICLONE, source)
        return
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL):
            raise
    os.ftruncate(target, size)
    at = 0
    while at < size:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
            end = min(size, os.lseek(source, at, os.SEEK_HOLE))
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        while at < end:
            copied = os.copy_file_range(source, target, min(end - at, _AT_ONCE), at, at)
            if not copied:  # it was cut meanwhile
                return
            at += copied


def _attributes(source: int, target: int, status: os.stat_result) -> None:
    os.fchown(target, status.st_uid, status.st_gid)
    os.fchmod(target, stat.S_IMODE(status.st_mode))
    with suppress(FileNotFoundError):  # one that went meanwhile
        for name in os.listxattr(source):
            if not name.startswith("trusted."):
                try:
                    os.setxattr(target, name, os.getxattr(source, name))
                except OSError as error:
                    if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP):
                        raise
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))

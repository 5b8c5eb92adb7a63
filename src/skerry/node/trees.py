"""Directory trees of two kinds behind one interface: btrfs subvolumes with a limit, or plain directories without.

A tree is empty, hostile once a sandbox has had it, and removed as a whole. Blocking: call from a thread.
"""

import ctypes
import errno
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from skerry.model.ids import SandboxId
from skerry.node import btrfs, quota
from skerry.node.tree_copy import copy_tree

FLUSHING = ".flushing"  # ends the name of a copy that is there only while a tree is written out


class Trees(Protocol):
    """Where trees are kept. Paths lie in the pool; every verb may be called twice."""

    disk_limit: str  # "simple-quota", "qgroup", "none"

    def make(self, paths: list[Path], owner: str | None, limit_bytes: int | None) -> None:
        """Make empty trees that may hold `limit_bytes` together, charged to `owner`. None: to nobody, without limit.

        Raises:
            OSError: One exists, or the pool is full.
        """
        ...

    def limit(self, owner: str, limit_bytes: int | None) -> None:
        """Change the limit; None: there is none. Where nothing can be limited, nothing happens."""
        ...

    def usage_bytes(self, paths: list[Path], owner: str) -> int: ...

    def charged_bytes(self, owners: Sequence[SandboxId]) -> Mapping[SandboxId, int]:
        """What is charged to each, at the cost of a read. Empty where nothing is charged to anybody."""
        ...

    def has_more_inodes(self, paths: list[Path], most: int) -> bool:
        """Whether the trees hold more than `most` files and directories together. Where that is not known: no."""
        ...

    def remove(self, paths: list[Path], owner: str | None) -> None:
        """Remove trees, whatever a sandbox left in them, and their owner's charge. None: the charge stays as it is."""
        ...

    def copy(self, source: Path, path: Path, *, owner: str | None = None, sealed: bool = False) -> None:
        """Make `path` a copy of the tree `source` as it is at one instant; what is written to it is `owner`'s charge.

        Raises:
            OSError: ENOENT where there is no source; the pool is full; the tree is beyond what can be copied here.
        """
        ...

    def held_bytes(self, path: Path, inherited: int) -> int | None:
        """At most what a tree holds that has `inherited` bytes from others, as of the last copy. None: not counted."""
        ...

    def seal(self, path: Path, sealed: bool) -> None:
        """Let nobody change a tree, or let it be changed again."""
        ...

    def flush(self, path: Path) -> None:
        """Put all of a tree on the disk itself, whether it was synced by whoever wrote it or not."""
        ...

    def tidy(self) -> None:
        """Let go of what could not go before. To be called at the start, and now and then."""
        ...

    def groups(self) -> list[int]:
        """The quota groups of owners that there are, whether the owners are or not."""
        ...

    def make_image(self, path: Path) -> None:
        """Make an empty tree for a template, not charged to anybody."""
        ...

    def seal_image(self, path: Path) -> None:
        """Make it read-only for good."""
        ...

    def remove_image(self, path: Path) -> None:
        """Remove a template's tree, sealed or not. No such path: nothing happens."""
        ...


# Inodes of a layer are numbered from 256 up, a template's from here: an overlay shows the numbers of both as they are,
# and programs take two files of one number for one ("'a' and 'b' are the same file").
_TEMPLATE_FIRST_INODE = 200_000


@dataclass(slots=True)
class _Leftovers:
    """Quota groups that the kernel would not let go of yet."""

    groups: list[int] = field(default_factory=list[int])
    subvolumes: list[int] = field(default_factory=list[int])


class BtrfsTrees:
    """Subvolumes. `base` is a subvolume in which inode numbers start high; images are made as its snapshots."""

    def __init__(self, pool: Path, disk_limit: str) -> None:
        self.disk_limit = disk_limit
        self._pool = pool
        self._base = pool / "images" / ".base"
        self._lock = threading.Lock()
        self._leftovers = _Leftovers()

    def make(self, paths: list[Path], owner: str | None, limit_bytes: int | None) -> None:
        group = None
        if self.disk_limit != "none" and owner is not None:
            group = quota.group_of(owner)
            with btrfs.opened(self._pool) as fd:
                quota.create(fd, group)
                quota.limit(fd, group, limit_bytes, self.disk_limit)
        for path in paths:
            btrfs.create_subvolume(path, qgroup=group)

    def limit(self, owner: str, limit_bytes: int | None) -> None:
        if self.disk_limit != "none":
            with btrfs.opened(self._pool) as fd:
                quota.limit(fd, quota.group_of(owner), limit_bytes, self.disk_limit)

    def usage_bytes(self, paths: list[Path], owner: str) -> int:
        if self.disk_limit == "none":
            return sum(disk_usage(path) for path in paths)
        return quota.usage_bytes(self._pool, quota.group_of(owner), self.disk_limit)

    def charged_bytes(self, owners: Sequence[SandboxId]) -> Mapping[SandboxId, int]:
        if self.disk_limit == "none":
            return {}
        usage_of = quota.usage_reader(self._pool, self.disk_limit)
        return {owner: usage_of(quota.group_of(owner)) for owner in owners}

    def has_more_inodes(self, paths: list[Path], most: int) -> bool:
        # Numbers are never given twice, so the highest one bounds the count; a walk is needed by few.
        share = most // len(paths)
        if not any(self._has_inode_from(path, btrfs.FIRST_INODE + share) for path in paths):
            return False
        count = 0
        for path in paths:
            with btrfs.opened(path) as fd:
                count += btrfs.count_inodes(fd, most - count)
        return count > most

    def _has_inode_from(self, path: Path, least: int) -> bool:
        with btrfs.opened(path) as fd:
            return btrfs.has_inode_from(fd, least)

    def remove(self, paths: list[Path], owner: str | None) -> None:
        with self._lock:
            earlier, self._leftovers = self._leftovers, _Leftovers()
        with btrfs.opened(self._pool) as fd:
            # The group first: at its limit even a removal may see EDQUOT.
            groups = quota.remove(fd, [*earlier.groups, *([] if owner is None else [quota.group_of(owner)])])
            if owner is None and self.disk_limit == quota.SIMPLE:
                self._release(fd, paths)
            deleted = [number for path in paths for number in btrfs.delete_subvolume(path)]
            # A full file system lets subvolumes go first; what does not go even then is tried at the next removal.
            groups = quota.remove(fd, groups)
            subvolumes = quota.remove_stale(fd, earlier.subvolumes + deleted)
        with self._lock:
            self._leftovers.groups += groups
            self._leftovers.subvolumes += subvolumes

    def _release(self, fd: int, paths: list[Path]) -> None:
        for path in paths:
            with suppress(FileNotFoundError), btrfs.opened(path) as tree:
                quota.release(fd, btrfs.subvolume_id(tree))

    def copy(self, source: Path, path: Path, *, owner: str | None = None, sealed: bool = False) -> None:
        group = None if owner is None or self.disk_limit == "none" else quota.group_of(owner)
        btrfs.snapshot(source, path, readonly=sealed, qgroup=group)

    def held_bytes(self, path: Path, inherited: int) -> int | None:
        if self.disk_limit == "none":
            return None
        with btrfs.opened(path) as fd:
            own = quota.referenced_bytes(self._pool, btrfs.subvolume_id(fd))
        # Full quotas count what a tree refers to, whoever wrote it.
        return own + inherited if self.disk_limit == quota.SIMPLE else own

    def seal(self, path: Path, sealed: bool) -> None:
        btrfs.set_readonly(path, sealed)

    def flush(self, path: Path) -> None:
        # A snapshot writes out its source, and no more: syncfs would wait for what the neighbours write, too.
        passing = path.with_name(path.name + FLUSHING)
        btrfs.delete_subvolume(passing)
        try:
            btrfs.snapshot(path, passing, readonly=True)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            sync(path)
        self.remove([passing], None)

    def tidy(self) -> None:
        if self.disk_limit == "none":
            return
        with self._lock:
            earlier, self._leftovers = self._leftovers, _Leftovers()
        with btrfs.opened(self._pool) as fd:
            groups = quota.remove(fd, earlier.groups)
            # Under simple quotas a deleted subvolume is charged for as long as a copy shares what it wrote.
            quota.remove_stale(fd, sorted(quota.without_subvolume(fd)))
        with self._lock:
            self._leftovers.groups += groups

    def groups(self) -> list[int]:
        if self.disk_limit == "none":
            return []
        with btrfs.opened(self._pool) as fd:
            return sorted(group for group in quota.groups(fd) if group >> 48)

    def make_image(self, path: Path) -> None:
        with self._lock:
            if not btrfs.is_subvolume(self._base):
                self._make_base()
        btrfs.snapshot(self._base, path)
        (path / ".first").unlink()

    def _make_base(self) -> None:
        unfinished = self._base.with_name(".base.new")
        btrfs.delete_subvolume(unfinished)
        btrfs.create_subvolume(unfinished)
        # A number is used up by making an inode, and the kernel goes on from the highest that is there.
        for _ in range(_TEMPLATE_FIRST_INODE):
            os.close(os.open(unfinished, os.O_TMPFILE | os.O_WRONLY, 0o600))
        (unfinished / ".first").touch()
        unfinished.rename(self._base)

    def seal_image(self, path: Path) -> None:
        btrfs.set_readonly(path, True)

    def remove_image(self, path: Path) -> None:
        btrfs.delete_subvolume(path)


class PlainTrees:
    """Directories on any file system: no limit of disk or files, removal in the time the files take."""

    disk_limit = "none"

    def make(self, paths: list[Path], owner: str | None, limit_bytes: int | None) -> None:
        for path in paths:
            path.mkdir(mode=0o755)

    def limit(self, owner: str, limit_bytes: int | None) -> None:
        return None

    def usage_bytes(self, paths: list[Path], owner: str) -> int:
        return sum(disk_usage(path) for path in paths)

    def charged_bytes(self, owners: Sequence[SandboxId]) -> Mapping[SandboxId, int]:
        return {}

    def has_more_inodes(self, paths: list[Path], most: int) -> bool:
        return False

    def remove(self, paths: list[Path], owner: str | None) -> None:
        for path in paths:
            remove_tree(path)
            remove_tree(path.with_name(path.name + ".links"))  # of a copy that was broken off

    def copy(self, source: Path, path: Path, *, owner: str | None = None, sealed: bool = False) -> None:
        copy_tree(source, path)
        if not source.is_dir():
            raise FileNotFoundError(errno.ENOENT, "it went while it was copied", os.fspath(source))

    def held_bytes(self, path: Path, inherited: int) -> int | None:
        return None

    def seal(self, path: Path, sealed: bool) -> None:
        """Nothing to do: what is not mounted for a sandbox is changed by nobody."""

    def flush(self, path: Path) -> None:
        sync(path)

    def tidy(self) -> None:
        """Nothing is charged to anybody."""

    def groups(self) -> list[int]:
        return []

    def make_image(self, path: Path) -> None:
        path.mkdir(mode=0o755)

    def seal_image(self, path: Path) -> None:
        """Nothing to do: an overlay never writes below."""

    def remove_image(self, path: Path) -> None:
        remove_tree(path)


def sync(path: Path) -> None:
    """Put all of the file system that `path` lies on on its disk."""
    with btrfs.opened(path) as fd:
        if ctypes.CDLL(None, use_errno=True).syncfs(fd) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), os.fspath(path))


def disk_usage(path: Path) -> int:
    """Bytes on disk below `path`, by walking it; hard links count once. Trees of any depth, links never followed."""
    du = subprocess.run(
        ["du", "-sxB1", "--", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=600, check=False
    )
    return int(du.stdout.split(b"\t")[0] or 0)


def remove_tree(path: Path) -> None:
    """Remove a directory of any depth and content, never through a symlink. No such path: nothing happens.

    Inner directories are moved up beside their parent instead of being descended into, so neither the depth of a
    tree nor the length of its paths matters.
    """
    trash = path.with_name(path.name + ".removing")
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    else:
        trash.mkdir(mode=0o700, exist_ok=True)
        path.rename(trash / str(_highest([entry.name for entry in trash.iterdir()]) + 1))
    if not trash.is_dir():  # else: this removal, or an earlier one that was interrupted
        return
    # Opened anew each round: btrfs shows an open directory no names that came after.
    while names := [entry.name for entry in trash.iterdir()]:
        number = _highest(names)
        with btrfs.opened(trash) as fd:
            for name in names:
                number = _empty_into(fd, name, number)
                os.rmdir(name, dir_fd=fd)
    trash.rmdir()


def _highest(names: list[str]) -> int:
    return max(map(int, names), default=0)


def _empty_into(fd: int, name: str, number: int) -> int:
    """Unlink the files of one directory and move its directories to `fd`; the last number given out."""
    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    try:
        with os.scandir(inner) as entries:
            kinds = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for entry, is_directory in kinds:
            if is_directory:
                number += 1
                os.rename(entry, str(number), src_dir_fd=inner, dst_dir_fd=fd)
            else:
                os.unlink(entry, dir_fd=inner)
    finally:
        os.close(inner)
    return number

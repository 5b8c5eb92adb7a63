"""Going through a directory tree by descriptors alone: never by a path, never through a link, never without end.

Of the deepest directories only the current one is open: the way up is `..`, and whether it leads back is checked.
"""

import os
import stat
from dataclasses import dataclass
from typing import Generic, TypeVar

from skerry.blobs.limits import Limits, over
from skerry.model.errors import Unavailable

OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KEPT_OPEN = 100

T = TypeVar("T")


@dataclass(slots=True)
class Level(Generic[T]):
    """A directory on the way down. `fd` is -1 while a deeper one is open in its stead."""

    fd: int
    name: bytes
    identity: tuple[int, int]  # device, inode
    data: T


class Descent(Generic[T]):
    """The directories from a tree's root to the current one. Owns their descriptors, the root's too."""

    def __init__(self, root_fd: int, data: T, limits: Limits) -> None:
        self._limits = limits
        self.levels = [Level(root_fd, b"", _identity(os.fstat(root_fd)), data)]

    @property
    def here(self) -> Level[T]:
        return self.levels[-1]

    def enter(self, fd: int, name: bytes, data: T) -> None:
        """Make an open directory below the current one the current one; `fd` is taken over."""
        if len(self.levels) > self._limits.depth:
            os.close(fd)
            raise over("depth", self._limits.depth, self.where(name))
        if len(self.levels) > _KEPT_OPEN:
            os.close(self.here.fd)
            self.here.fd = -1
        self.levels.append(Level(fd, name, _identity(os.fstat(fd)), data))

    def leave(self) -> None:
        """Go back up. Of the root: all is closed.

        Raises:
            Unavailable: `..` leads elsewhere.
        """
        left = self.levels.pop()
        try:
            if self.levels and self.here.fd == -1:
                fd = os.open("..", OPEN_DIRECTORY, dir_fd=left.fd)
                if _identity(os.fstat(fd)) != self.here.identity:
                    os.close(fd)
                    raise Unavailable("A directory was moved meanwhile; the tree has to be left alone.")
                self.here.fd = fd
        finally:
            os.close(left.fd)

    def close(self) -> None:
        for level in self.levels:
            if level.fd != -1:
                os.close(level.fd)
        self.levels.clear()

    def where(self, name: bytes) -> str:
        """For messages: the last names of the path to `name`, in ASCII."""
        names = [level.name for level in self.levels[1:]][-3:]
        start = "…/" if len(self.levels) > 4 else ""
        return start + b"/".join([*names, name])[-200:].decode("ascii", "backslashreplace")


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def open_tree(path: os.PathLike[str]) -> int:
    """The root of a tree, open. The caller vouches for the path to it, and the last name is no link."""
    return os.open(path, OPEN_DIRECTORY)


def is_directory(status: os.stat_result) -> bool:
    return stat.S_ISDIR(status.st_mode)

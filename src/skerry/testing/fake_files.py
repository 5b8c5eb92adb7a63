"""Files of a `FakeGuest`: a tree in a dict, with the errors a real one gives. No symbolic links, no I/O."""

import asyncio
import os
import posixpath
from dataclasses import dataclass

from skerry.model.errors import GuestError
from skerry.model.files import ChangeKind, FileChange, FileInfo, FileType

_NAME_BYTES = 255


@dataclass(frozen=True, slots=True)
class Node:
    """A directory (`data` is None) or a regular file."""

    data: bytes | None
    mode: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Watcher:
    path: str
    recursive: bool
    changes: asyncio.Queue[FileChange | None]  # None: the sandbox has died


class FakeFiles:
    """`nodes` maps absolute, normal paths; tests may look at it and change it."""

    def __init__(self) -> None:
        self._now_ns = 1_700_000_000_000_000_000
        self.watchers: list[Watcher] = []
        self.told_sizes: dict[str, int] = {}  # as the kernel tells of files that it makes up while they are read
        self.nodes: dict[str, Node] = {path: Node(None, 0o755, self._now_ns) for path in ("/", "/workspace", "/tmp")}

    def tick(self) -> int:
        """A time of change: each is later than the one before, so that tests can order them."""
        self._now_ns += 1_000_000
        return self._now_ns

    def tell(self, kind: ChangeKind, path: str) -> None:
        for watcher in self.watchers:
            inside = path.startswith(watcher.path.rstrip("/") + "/")
            if posixpath.dirname(path) == watcher.path or path == watcher.path or (watcher.recursive and inside):
                watcher.changes.put_nowait(FileChange(kind, path))

    def info(self, path: str) -> FileInfo:
        path = normal(path)
        node = self._node(path)
        return FileInfo(
            name=posixpath.basename(path) or "/",
            path=path,
            type=FileType.DIR if node.data is None else FileType.FILE,
            size_bytes=self.told_sizes.get(path, len(node.data or b"")),
            mode=node.mode,
            uid=0,
            gid=0,
            mtime_ns=node.mtime_ns,
        )

    def _node(self, path: str) -> Node:
        self._check_parents(path)
        if path not in self.nodes:
            raise GuestError("not_found", f"{path}: No such file or directory")
        return self.nodes[path]

    def _check_parents(self, path: str) -> None:
        for parent in parents(path):
            node = self.nodes.get(parent)
            if node is not None and node.data is not None:
                raise GuestError("not_a_directory", f"{path}: Not a directory")

    def data(self, path: str) -> bytes:
        node = self._node(normal(path))
        if node.data is None:
            raise GuestError("is_a_directory", f"{path}: Is a directory")
        return node.data

    def children(self, path: str) -> list[str]:
        path = normal(path)
        if self._node(path).data is not None:
            raise GuestError("not_a_directory", f"{path}: Not a directory")
        return [other for other in self.nodes if other != "/" and posixpath.dirname(other) == path]

    def check_target(self, path: str) -> None:
        """What is known of a file to be written before its bytes have come."""
        self._check_parents(normal(path))

    def put(self, path: str, data: bytes, mode: int | None = None) -> None:
        """Write a file with its parents."""
        path = normal(path)
        old = self.nodes.get(path)
        if old is not None and old.data is None:
            raise GuestError("is_a_directory", f"{path}: Is a directory")
        self._make_parents(path)
        kept = old.mode if old is not None else 0o644
        self.nodes[path] = Node(data, kept if mode is None else mode, self.tick())
        self.tell(ChangeKind.MODIFY if old else ChangeKind.CREATE, path)

    def _make_parents(self, path: str) -> None:
        self._check_parents(path)
        for parent in parents(path):
            if parent not in self.nodes:
                self.nodes[parent] = Node(None, 0o755, self.tick())

    def make_directory(self, path: str, *, parents: bool, mode: int) -> None:
        path = normal(path)
        self._check_parents(path)
        old = self.nodes.get(path)
        if old is not None:
            if parents and old.data is None:
                return
            raise GuestError("exists", f"{path}: File exists")
        if parents:
            self._make_parents(path)
        elif posixpath.dirname(path) not in self.nodes:
            raise GuestError("not_found", f"{path}: No such file or directory")
        self.nodes[path] = Node(None, mode, self.tick())
        self.tell(ChangeKind.CREATE, path)

    def set_attributes(self, path: str, *, mode: int | None, mtime_ns: int | None, now: bool, create: bool) -> None:
        path = normal(path)
        if create and path not in self.nodes:
            self.put(path, b"")
        node = self._node(path)
        time_ns = self.tick() if now else node.mtime_ns if mtime_ns is None else mtime_ns
        self.nodes[path] = Node(node.data, node.mode if mode is None else mode, time_ns)

    def move(self, source: str, target: str, *, overwrite: bool) -> None:
        source, target = normal(source), normal(target)
        node = self._node(source)
        self._check_parents(target)
        old = self.nodes.get(target)
        if old is not None and not overwrite:
            raise GuestError("exists", f"{target}: File exists")
        if posixpath.dirname(target) not in self.nodes:
            raise GuestError("not_found", f"{target}: No such file or directory")
        if old is not None and old.data is None:
            if node.data is not None:
                raise GuestError("is_a_directory", f"{target}: Is a directory")
            if self.children(target):
                raise GuestError("not_empty", f"{target}: Directory not empty")
        for path in [path for path in self.nodes if path == source or path.startswith(source + "/")]:
            self.nodes[target + path[len(source) :]] = self.nodes.pop(path)
        self.tell(ChangeKind.MOVE_FROM, source)
        self.tell(ChangeKind.MOVE_TO, target)

    def remove(self, path: str, *, recursive: bool) -> int:
        path = normal(path)
        self._node(path)
        inside = [other for other in self.nodes if other.startswith(path.rstrip("/") + "/") and other != path]
        if inside and not recursive:
            raise GuestError("not_empty", f"{path}: Directory not empty")
        for other in (*inside, path):
            del self.nodes[other]
        self.tell(ChangeKind.REMOVE, path)
        return len(inside) + 1


def normal(path: str) -> str:
    """The path without `.`, `..` and doubled slashes; a name that no file system takes is refused."""
    path = posixpath.normpath(path)
    if any(len(os.fsencode(name)) > _NAME_BYTES for name in path.split("/")):
        raise GuestError("name_too_long", f"{path}: File name too long")
    return "/" + path.lstrip("/")


def parents(path: str) -> list[str]:
    """The directories above, from the root down."""
    names = path.split("/")[1:-1]
    return ["/", *("/" + "/".join(names[: count + 1]) for count in range(len(names)))]

"""Trees to archive, what there is to know of one, and a vault in a directory, for tests of archives."""
# ruff: noqa: PTH118, PTH115, PTH208 - names are bytes here

import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from skerry.blobs.capture import Vaulted, archive_tree
from skerry.blobs.files import FileObjects
from skerry.blobs.keys import Keys
from skerry.blobs.limits import LIMITS, Limits
from skerry.blobs.objects import Objects
from skerry.blobs.restore import restore_tree
from skerry.blobs.root import Root
from skerry.blobs.stat_cache import RACY_NS
from skerry.model.capture import Archive, Vault
from skerry.model.ids import new_archive_id, new_vault_id

LATER_NS = 10_000_000_000  # a capture long after all changes: what is in the stat cache counts
Told = tuple[object, ...]


def quiet(done: int, total: int | None, sent: int) -> None:
    """Progress that nobody looks at."""


@dataclass(frozen=True, slots=True)
class Store:
    """A vault and this host's memory of it. `objects` may be wrapped to fail."""

    directory: Path
    vaulted: Vaulted

    def archive(
        self, tree: Path, *, name: str = "one", captured_at_ns: int | None = None, limits: Limits = LIMITS
    ) -> Archive:
        return archive_tree(
            self.vaulted,
            tree,
            new_archive_id(),
            captured_at_ns=captured_at_ns or time.time_ns() + LATER_NS,
            cache_name=name,
            progress=quiet,
            limits=limits,
        )

    def restore(self, archive: Archive, into: Path, *, name: str = "two", limits: Limits = LIMITS) -> Root:
        into.mkdir()
        return restore_tree(self.vaulted, into, archive.id, cache_name=name, progress=quiet, limits=limits)

    def names(self, kind: str) -> set[str]:
        directory = self.directory / "store" / self.vaulted.keys.vault_id / kind
        return set(os.listdir(directory)) if directory.exists() else set()

    def file(self, kind: str, name: str) -> Path:
        return self.directory / "store" / self.vaulted.keys.vault_id / kind / name


def new_store(directory: Path, wrap: Callable[[Objects], Objects] = lambda objects: objects) -> Store:
    keys = Keys(Vault(new_vault_id(), os.urandom(32)))
    objects = wrap(FileObjects(directory / "store"))
    return Store(directory, Vaulted(objects, keys, directory / "cache"))


def told(root: Path) -> dict[bytes, Told]:
    """All that an archive promises of a tree, by path. Hard links are told by the first path of their group."""
    top = os.fsencode(root)
    found: dict[bytes, Told] = {b"": _told(top, b"", {})}
    groups: dict[int, bytes] = {}
    for directory, names, files in os.walk(top):
        names.sort()
        for name in sorted(names + files):
            path = os.path.join(directory, name)
            if stat.S_IFMT(os.lstat(path).st_mode) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
                found[path[len(top) + 1 :]] = _told(path, path[len(top) + 1 :], groups)
    return found


def _told(path: bytes, name: bytes, groups: dict[int, bytes]) -> Told:
    status = os.lstat(path)
    kind = stat.S_IFMT(status.st_mode)
    attributes = {one: os.getxattr(path, one, follow_symlinks=False) for one in _kept_xattrs(path)}
    content: object = None
    if kind == stat.S_IFLNK:
        content = os.readlink(path)
    elif kind == stat.S_IFREG:
        content = _runs(path)
    first = groups.setdefault(status.st_ino, name) if kind != stat.S_IFDIR and status.st_nlink > 1 else name
    size = status.st_size if kind == stat.S_IFREG else 0
    return (status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, size, attributes, content, first)


def _kept_xattrs(path: bytes) -> list[str]:
    names = os.listxattr(path, follow_symlinks=False)
    return sorted(name for name in names if name.startswith(("user.", "system.posix_acl")))


def _runs(path: bytes) -> list[tuple[int, bytes]]:
    """The data between the holes."""
    runs: list[tuple[int, bytes]] = []
    fd = os.open(path, os.O_RDONLY)
    try:
        size, at = os.fstat(fd).st_size, 0
        while at < size:
            try:
                start = os.lseek(fd, at, os.SEEK_DATA)
            except OSError:
                break
            at = os.lseek(fd, start, os.SEEK_HOLE)
            runs.append((start, os.pread(fd, at - start, start)))
    finally:
        os.close(fd)
    return runs


def settle(tree: Path) -> None:
    """Return when the last change is so long ago that a capture made now is believed."""
    newest = max(os.lstat(path).st_ctime_ns for path in tree.rglob("*"))
    while time.time_ns() < newest + RACY_NS + 50_000_000:
        time.sleep(0.02)


def assert_same(one: Path, other: Path) -> None:
    left, right = told(one), told(other)
    assert left.keys() == right.keys()
    for name in left:
        assert left[name] == right[name], name

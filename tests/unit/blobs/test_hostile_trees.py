"""Trees that are deep, wide, or made to hurt: handled, or refused with the limit's name."""
# ruff: noqa: PTH208 - names, not paths

import os
import resource
from dataclasses import replace
from pathlib import Path

import pytest
from unit.blobs.trees import Store, new_store

from skerry.blobs.limits import LIMITS
from skerry.model.errors import Refused, Unavailable


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new_store(tmp_path)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    tree.mkdir()
    return tree


def dig(tree: Path, depth: int, name: str = "d") -> None:
    """Directories within each other, with a file at the bottom; by descriptors, since no path is that long."""
    fd = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    file = os.open("bottom", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=fd)
    os.write(file, b"deep")
    os.close(file)
    os.close(fd)


def depth_of(tree: Path, name: str = "d") -> tuple[int, bytes]:
    fd, depth = os.open(tree, os.O_RDONLY | os.O_DIRECTORY), 0
    while True:
        try:
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        except FileNotFoundError:
            break
        os.close(fd)
        fd, depth = below, depth + 1
    file = os.open("bottom", os.O_RDONLY, dir_fd=fd)
    content = os.read(file, 100)
    os.close(file)
    os.close(fd)
    return depth, content


def fill_up(tree: Path) -> None:
    """Undo `dig`: pytest's own removal walks by paths."""
    os.system(f"rm -rf {tree}")


def test_a_tree_ten_thousand_levels_deep(store: Store, tree: Path, tmp_path: Path) -> None:
    dig(tree, 10_000)
    back = tmp_path / "back"
    try:
        before = len(os.listdir("/proc/self/fd"))
        archive = store.archive(tree)
        store.restore(archive, back)
        assert depth_of(back) == (10_000, b"deep")
        assert archive.entries == 10_001
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        fill_up(tree)
        fill_up(back)


def test_a_deep_tree_needs_few_descriptors(store: Store, tree: Path, tmp_path: Path) -> None:
    dig(tree, 1000, "x" * 200)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 150, hard))
    try:
        store.restore(store.archive(tree), tmp_path / "back")
        assert depth_of(tmp_path / "back", "x" * 200) == (1000, b"deep")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        fill_up(tree)
        fill_up(tmp_path / "back")


def test_a_tree_beyond_the_depth_is_refused(store: Store, tree: Path) -> None:
    dig(tree, 60)
    limits = replace(LIMITS, depth=50)
    with pytest.raises(Refused, match="depth is 50") as caught:
        store.archive(tree, limits=limits)
    assert caught.value.code == "archive_limit"
    assert store.names("archives") == set()


def test_a_tree_of_just_the_depth_is_taken(store: Store, tree: Path) -> None:
    dig(tree, 50)
    store.archive(tree, limits=replace(LIMITS, depth=50))


def test_more_entries_than_an_archive_holds_are_refused(store: Store, tree: Path) -> None:
    for directory in "ab":
        (tree / directory).mkdir()
        for i in range(20):
            (tree / directory / str(i)).touch()
    store.archive(tree, limits=replace(LIMITS, entries=42))
    with pytest.raises(Refused, match="entries is 41"):
        store.archive(tree, limits=replace(LIMITS, entries=41))


def test_more_attributes_than_an_archive_holds_are_refused(store: Store, tree: Path) -> None:
    (tree / "file").touch()
    os.setxattr(tree / "file", "user.large", b"x" * 3000)
    with pytest.raises(Refused, match="xattr_bytes is 1,000"):
        store.archive(tree, limits=replace(LIMITS, xattr_bytes=1000))


def test_a_file_in_more_pieces_than_an_archive_holds_is_refused(store: Store, tree: Path) -> None:
    with (tree / "file").open("wb") as file:
        for i in range(30):
            file.seek(i * 65_536)
            file.write(b"x")
    with pytest.raises(Refused, match="file_pieces is 20, at file"):
        store.archive(tree, limits=replace(LIMITS, file_pieces=20))


def test_a_manifest_beyond_its_size_is_refused(store: Store, tree: Path) -> None:
    for i in range(300):
        (tree / f"{i:0200}").touch()
    with pytest.raises(Refused, match="manifest_bytes is 10,000"):
        store.archive(tree, limits=replace(LIMITS, manifest_bytes=10_000))


def test_a_file_of_thousands_of_holes_comes_back(store: Store, tree: Path, tmp_path: Path) -> None:
    with (tree / "file").open("wb") as file:
        for i in range(3000):
            file.seek(i * 65_536)
            file.write(b"%d" % i)
    (tree / "file2").write_text("after it")
    back = tmp_path / "back"
    store.restore(store.archive(tree), back)
    with (tree / "file").open("rb") as one, (back / "file").open("rb") as other:
        for i in range(3000):
            one.seek(i * 65_536)
            other.seek(i * 65_536)
            assert one.read(10) == other.read(10)
    assert (back / "file").stat().st_blocks <= (tree / "file").stat().st_blocks + 64
    assert (back / "file2").read_text() == "after it"


def test_a_root_that_is_a_link_is_not_followed(store: Store, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(NotADirectoryError):
        store.archive(tmp_path / "link")


def test_what_is_opened_is_what_was_looked_at(store: Store, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A swap between the look and the open, without the race: the first look is made to see something else."""
    (tree / "a").write_text("x")
    (tree / "b").write_text("x")
    look = os.stat
    monkeypatch.setattr(os, "stat", lambda name, **how: look(b"b" if name == b"a" else name, **how))
    with pytest.raises(Unavailable, match="replaced"):
        store.archive(tree)
    assert store.names("archives") == set()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_million_entries_in_bounded_memory(store: Store, tmp_path: Path) -> None:
    tree, back = tmp_path / "tree", tmp_path / "back"
    for i in range(1000):
        directory = tree / f"d{i}"
        directory.mkdir(parents=True)
        fd = os.open(directory, os.O_RDONLY)
        for j in range(999):
            os.close(os.open(f"f{j}", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=fd))
        os.close(fd)
    try:
        archive = store.archive(tree)
        assert archive.entries == 1_000_000
        store.restore(archive, back)
        assert sum(len(os.listdir(back / name)) for name in os.listdir(back)) == 999_000
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 1_000_000  # kilobytes
    finally:
        fill_up(tree)
        fill_up(back)

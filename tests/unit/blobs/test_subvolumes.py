"""Subvolumes within a tree, which anybody who may write to btrfs can make."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from unit.blobs.trees import Store, new_store, settle

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mkfs.btrfs") is None, reason="makes and mounts a btrfs image"
)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Path]:
    image, pool = tmp_path / "image", tmp_path / "pool"
    with image.open("wb") as file:
        file.truncate(1 << 28)
    pool.mkdir()
    subprocess.run(["mkfs.btrfs", "-q", image], check=True)
    if subprocess.run(["mount", "-o", "loop", image, pool]).returncode != 0:
        pytest.skip("cannot mount here")
    yield pool
    subprocess.run(["umount", pool], check=True)


@pytest.fixture
def tree(pool: Path) -> Path:
    subvolume("create", pool / "tree")
    (pool / "tree/file").write_text("outer")
    subvolume("create", pool / "tree/inner")
    (pool / "tree/inner/file").write_text("inner")
    return pool / "tree"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new_store(tmp_path)


def subvolume(*words: str | Path) -> None:
    subprocess.run(["btrfs", "-q", "subvolume", *words], check=True)


def test_a_subvolume_in_the_tree_is_a_directory(store: Store, tree: Path, tmp_path: Path) -> None:
    settle(tree)
    for name in ("one", "two"):  # the second with a stat cache, in which inodes of both would be mixed up
        archive = store.archive(tree)
        assert (archive.skipped, archive.entries) == (0, 3)
        back = tmp_path / name
        store.restore(archive, back)
        assert (back / "file").read_text() == "outer"
        assert (back / "inner/file").read_text() == "inner"


def test_what_a_snapshot_lost_of_a_subvolume_is_counted(store: Store, tree: Path, tmp_path: Path, pool: Path) -> None:
    subvolume("snapshot", "-r", tree, pool / "snapshot")
    archive = store.archive(pool / "snapshot")
    assert (archive.skipped, archive.entries) == (1, 2)
    back = tmp_path / "back"
    store.restore(archive, back)
    assert sorted(file.name for file in back.iterdir()) == ["file", "inner"]
    assert list((back / "inner").iterdir()) == []


def test_any_second_of_64_bits_is_a_time_of_a_file(store: Store, tree: Path, pool: Path) -> None:
    """On btrfs. Nanoseconds of it do not fit into 64 bits, and a sandbox may set it."""
    settle(tree)
    os.utime(tree / "file", ns=(0, 10**9 * 10**11))
    subvolume("create", pool / "back")
    back = pool / "back/again"
    for _ in range(2):
        archive = store.archive(tree)
    store.restore(archive, back)
    assert (back / "file").stat().st_mtime_ns == 10**9 * 10**11

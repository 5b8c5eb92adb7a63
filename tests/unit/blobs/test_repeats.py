"""Archives of a tree that was archived before: what is read again, what is sent again, and what a failure leaves."""
# ruff: noqa: PTH208 - names, not paths

import os
import subprocess
import time
from pathlib import Path
from typing import cast

import pytest
from unit.blobs.failing_objects import WatchedObjects
from unit.blobs.trees import Store, assert_same, new_store, settle

from skerry.blobs import content
from skerry.blobs.stat_cache import cache_path, load
from skerry.model.errors import Unavailable


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new_store(tmp_path, WatchedObjects)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    for i in range(300):
        directory = tree / f"d{i // 50}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"file{i}").write_bytes(os.urandom(20_000))
    return tree


def watched(store: Store) -> WatchedObjects:
    return cast(WatchedObjects, store.vaulted.objects)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the files whose content is read."""
    sizes: list[int] = []
    pieces = content.pieces

    def noted(fd: int, size: int, cutter):
        sizes.append(size)
        return pieces(fd, size, cutter)

    monkeypatch.setattr(content, "pieces", noted)
    return sizes


def test_a_second_archive_reads_only_what_changed(store: Store, tree: Path, read: list[int], tmp_path: Path) -> None:
    settle(tree)
    store.archive(tree)
    assert len(read) == 300
    read.clear()
    (tree / "d0/file0").write_bytes(os.urandom(20_001))
    (tree / "d1/new").write_bytes(b"new")
    (tree / "d2/file100").unlink()
    (tree / "d3/file150").rename(tree / "d4/renamed")
    second = store.archive(tree)
    # A rename changes an inode's change time, so the renamed file is read, and found to be known.
    assert sorted(read) == [3, 20_000, 20_001]
    assert second.stored_bytes < 100_000
    store.restore(second, tmp_path / "back")
    assert_same(tree, tmp_path / "back")


def test_a_megabyte_that_changed_costs_about_a_megabyte(store: Store, tree: Path) -> None:
    big = tree / "big"
    big.write_bytes(os.urandom(20_000_000))
    store.archive(tree)
    with big.open("r+b") as file:
        file.seek(9_000_000)
        file.write(os.urandom(1_000_000))
    assert store.archive(tree).stored_bytes <= 3_000_000  # and the chunks at both of its ends
    big.write_bytes(b"inserted" + big.read_bytes())
    assert store.archive(tree).stored_bytes <= 1_500_000  # cut by content, so what follows is known


def test_a_restored_tree_is_known_at_once(store: Store, tree: Path, read: list[int], tmp_path: Path) -> None:
    first = store.archive(tree)
    back = tmp_path / "back"
    store.restore(first, back, name="back")
    read.clear()
    again = store.archive(back, name="back", captured_at_ns=time.time_ns() + 2_000_000_000)
    assert len(read) == 0
    assert again.stored_bytes < 1000


def test_a_restored_file_of_many_pieces_is_known_at_once(
    store: Store, tree: Path, read: list[int], tmp_path: Path
) -> None:
    with (tree / "sparse").open("wb") as file:
        for i in range(1100):  # more than one record holds
            file.seek(i * 8192)
            file.write(os.urandom(4096))
    first = store.archive(tree)
    store.restore(first, tmp_path / "back", name="back")
    read.clear()
    again = store.archive(tmp_path / "back", name="back", captured_at_ns=time.time_ns() + 2_000_000_000)
    assert len(read) == 0
    assert again.stored_bytes < 1000
    assert again.size_bytes == first.size_bytes


def test_what_is_remembered_of_a_file_is_of_its_name_alone(store: Store, tree: Path) -> None:
    settle(tree)
    store.archive(tree)
    cache = load(cache_path(store.vaulted.cache_dir, "one"), store.vaulted.keys)
    status = (tree / "d0/file0").stat()
    assert cache.records(status, b"file0", b"") is not None
    assert cache.records(status, b"file", b"") is None
    assert cache.records(status, b"file0", b"g" * 16) is None


def test_what_changes_right_after_a_restore_is_seen(store: Store, tree: Path, tmp_path: Path) -> None:
    back = tmp_path / "back"
    store.restore(store.archive(tree), back, name="back")
    file = back / "d0/file0"
    before = file.stat()
    file.write_bytes(os.urandom(20_000))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    changed = store.archive(back, name="back")
    store.restore(changed, tmp_path / "again", name="again")
    assert (tmp_path / "again/d0/file0").read_bytes() == file.read_bytes()


def test_a_file_that_may_have_changed_after_the_capture_is_not_trusted(
    store: Store, tree: Path, read: list[int]
) -> None:
    store.archive(tree, captured_at_ns=time.time_ns())  # right after the files were written
    read.clear()
    store.archive(tree)
    assert len(read) == 300


def test_a_capture_in_the_future_is_not_believed(store: Store, tree: Path) -> None:
    (tree / "new").write_text("just now")
    store.archive(tree, captured_at_ns=time.time_ns() + 3_600_000_000_000)
    cache = load(cache_path(store.vaulted.cache_dir, "one"), store.vaulted.keys)
    assert cache.records((tree / "new").stat(), b"new", b"") is None


@pytest.mark.parametrize("at", [0, 8, 40, -1])
def test_a_damaged_cache_is_as_good_as_none(store: Store, tree: Path, at: int) -> None:
    settle(tree)
    store.archive(tree)
    file = cache_path(store.vaulted.cache_dir, "one")
    data = bytearray(file.read_bytes())
    assert len(load(file, store.vaulted.keys)) == 300
    data[at] ^= 1
    file.write_bytes(data)
    assert len(load(file, store.vaulted.keys)) == 0
    assert store.archive(tree).stored_bytes < 1000  # read again, and all of it known


def test_a_cache_that_cannot_be_written_fails_no_archive(store: Store, tree: Path, tmp_path: Path) -> None:
    store.vaulted.cache_dir.mkdir()
    (store.vaulted.cache_dir / "stat").write_text("in the way")
    (store.vaulted.cache_dir / "indices").write_text("in the way")
    archive = store.archive(tree)
    store.restore(archive, tmp_path / "back")
    assert_same(tree, tmp_path / "back")


def test_what_killed_workers_left_is_removed(store: Store, tree: Path) -> None:
    directory = store.vaulted.cache_dir / "stat"
    directory.mkdir(parents=True)
    ended = subprocess.Popen(["true"])
    ended.wait()
    (directory / f".{ended.pid}.ab.unfinished").touch()
    (directory / f".{os.getpid()}.ab.unfinished").touch()
    store.archive(tree)
    assert set(os.listdir(directory)) == {"one", f".{os.getpid()}.ab.unfinished"}


def test_a_cache_of_another_vault_is_as_good_as_none(store: Store, tree: Path, tmp_path: Path) -> None:
    settle(tree)
    store.archive(tree)
    other = new_store(tmp_path / "other")
    assert len(load(cache_path(store.vaulted.cache_dir, "one"), other.vaulted.keys)) == 0


def test_a_cache_whose_chunks_the_vault_lost_is_not_believed(store: Store, tree: Path, tmp_path: Path) -> None:
    settle(tree)
    store.archive(tree)
    for name in store.names("packs"):
        store.file("packs", name).unlink()
    second = store.archive(tree)
    store.restore(second, tmp_path / "back")
    assert_same(tree, tmp_path / "back")


def test_an_archive_that_was_broken_off_is_gone_on_with(store: Store, tree: Path, tmp_path: Path) -> None:
    for i in range(40):
        (tree / f"more{i}").write_bytes(os.urandom(1_000_000))
    objects = watched(store)
    objects.fails_at = 4
    with pytest.raises(Unavailable, match="unplugged"):
        store.archive(tree)
    assert store.names("archives") == set()
    sent = len(store.names("indices"))
    assert sent >= 1
    objects.fails_at = None
    second = store.archive(tree)
    assert second.stored_bytes < 46_500_000 - sent * 15_000_000
    store.restore(second, tmp_path / "back")
    assert_same(tree, tmp_path / "back")


@pytest.mark.parametrize("failing", range(3))
def test_a_store_that_fails_at_any_put_leaves_no_archive(store: Store, tree: Path, failing: int) -> None:
    watched(store).fails_at = failing  # the pack, its index, the root
    with pytest.raises(Unavailable):
        store.archive(tree)
    assert store.names("archives") == set()
    assert not cache_path(store.vaulted.cache_dir, "one").exists()
    assert os.listdir(store.vaulted.cache_dir / "stat") == []


@pytest.mark.parametrize("kind", ["packs", "indices", "archives"])
def test_what_is_not_read_back_as_written_is_no_archive(store: Store, tree: Path, kind: str) -> None:
    watched(store).lies = f"/{kind}/"
    with pytest.raises(Unavailable, match="does not give back"):
        store.archive(tree)


def test_all_that_is_written_is_read_back(store: Store, tree: Path) -> None:
    archive = store.archive(tree)
    assert watched(store).got_bytes >= archive.stored_bytes


def test_the_root_is_written_last(store: Store, tree: Path) -> None:
    archive = store.archive(tree)
    assert watched(store).puts[-1].endswith(f"/archives/{archive.id}")

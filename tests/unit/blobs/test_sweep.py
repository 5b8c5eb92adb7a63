"""A sweep takes what no archive needs, and never anything that one does."""

import os
from collections.abc import Collection
from pathlib import Path

import pytest
from unit.blobs.failing_objects import WatchedObjects
from unit.blobs.trees import Store, assert_same, new_store

from skerry.blobs.sweep import sweep_vault
from skerry.model.capture import Archive, Swept
from skerry.model.errors import Refused


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new_store(tmp_path)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    tree.mkdir()
    for i in range(20):
        (tree / f"file{i}").write_bytes(os.urandom(100_000))
    return tree


def sweep(store: Store, keep: Collection[Archive], *, older_than_s: float = 0, dry: bool = False) -> Swept:
    return sweep_vault(store.vaulted, [one.id for one in keep], older_than_s=older_than_s, dry=dry)


def test_of_two_archives_that_share_packs_one_may_go(store: Store, tree: Path, tmp_path: Path) -> None:
    first = store.archive(tree)
    (tree / "new").write_bytes(os.urandom(200_000))
    second = store.archive(tree)
    swept = sweep(store, [second])
    assert swept.freed_objects == 1
    assert store.names("archives") == {second.id}
    store.restore(second, tmp_path / "back")
    assert_same(tree, tmp_path / "back")
    assert first.id not in store.names("archives")


def test_what_only_the_one_that_goes_needs_goes_too(store: Store, tree: Path, tmp_path: Path) -> None:
    first = store.archive(tree)
    (tree / "new").write_bytes(os.urandom(200_000))
    second = store.archive(tree)
    (tree / "new").unlink()
    swept = sweep(store, [first])
    assert swept.freed_objects == 3  # root, index, pack
    assert swept.freed_bytes == second.stored_bytes
    store.restore(first, tmp_path / "back")
    (tree / "new").exists()
    assert len(store.names("packs")) == len(store.names("indices")) == 1


def test_nothing_is_left_where_nothing_is_kept(store: Store, tree: Path) -> None:
    archive = store.archive(tree)
    swept = sweep(store, [])
    assert (swept.stored_bytes, swept.freed_bytes, swept.archives) == (archive.stored_bytes, archive.stored_bytes, 1)
    assert not store.names("packs") | store.names("indices") | store.names("archives")
    assert sweep(store, []) == Swept(0, 0, 0, 0)


def test_a_dry_sweep_removes_nothing(store: Store, tree: Path, tmp_path: Path) -> None:
    archive = store.archive(tree)
    assert sweep(store, [], dry=True).freed_bytes == archive.stored_bytes
    store.restore(archive, tmp_path / "back")


def test_what_is_young_stays_with_all_that_it_needs(store: Store, tree: Path, tmp_path: Path) -> None:
    archive = store.archive(tree)
    for kind in ("packs", "indices"):  # old packs of an archive that is not on record yet
        for name in store.names(kind):
            os.utime(store.file(kind, name), (0, 0))
    assert sweep(store, [], older_than_s=3600).freed_objects == 0
    store.restore(archive, tmp_path / "back")


def test_what_a_broken_off_archive_left_goes_when_it_is_old(tmp_path: Path, tree: Path) -> None:
    store = new_store(tmp_path, WatchedObjects)
    store.vaulted.objects.fails_at = 1  # type: ignore[attr-defined]
    with pytest.raises(Exception, match="unplugged"):
        store.archive(tree)
    assert len(store.names("packs")) == 1
    assert sweep(store, [], older_than_s=3600).freed_objects == 0
    assert sweep(store, []).freed_objects == 1
    assert store.names("packs") == set()


def test_a_damaged_archive_that_is_to_be_kept_stops_the_sweep(store: Store, tree: Path, tmp_path: Path) -> None:
    kept = store.archive(tree)
    gone = store.archive(tree)
    os.truncate(store.file("archives", kept.id), 50)
    with pytest.raises(Refused, match=kept.id):
        sweep(store, [kept])
    assert store.names("archives") == {kept.id, gone.id}
    assert len(store.names("packs")) == 1


def test_an_archive_that_is_kept_and_not_there_is_no_obstacle(store: Store, tree: Path) -> None:
    kept, gone = store.archive(tree), store.archive(tree)
    store.file("archives", gone.id).unlink()
    assert sweep(store, [kept, gone]).freed_objects == 0


def test_an_archive_after_a_sweep_sends_what_was_swept(store: Store, tree: Path, tmp_path: Path) -> None:
    store.archive(tree)
    sweep(store, [])
    again = store.archive(tree)
    store.restore(again, tmp_path / "back")
    assert_same(tree, tmp_path / "back")


def test_another_vault_is_not_touched(store: Store, tree: Path, tmp_path: Path) -> None:
    archive = store.archive(tree)
    other = new_store(tmp_path)  # the same directory
    other.archive(tree)
    sweep(other, [])
    store.restore(archive, tmp_path / "back")


def test_what_killed_workers_left_in_a_directory_goes_after_an_hour(store: Store, tree: Path, tmp_path: Path) -> None:
    archive = store.archive(tree)
    old, new = (tmp_path / "store/.unfinished" / name for name in ("old", "new"))
    old.touch()
    new.touch()
    os.utime(old, (0, 0))
    sweep(store, [archive])
    assert (old.exists(), new.exists()) == (False, True)

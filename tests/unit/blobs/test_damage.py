"""Whatever happens to an object, and to every kind of byte in it: it is told, by name, and nothing false comes back."""

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from unit.blobs.trees import Store, assert_same, new_store

from skerry.blobs.catalogue import Catalogue
from skerry.blobs.keys import Keys
from skerry.blobs.packs import MAGIC, decode_index
from skerry.blobs.root import Root, encode_root, root_key
from skerry.model.capture import Archive, Vault
from skerry.model.errors import NotFound, Refused
from skerry.model.ids import new_archive_id


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new_store(tmp_path)


@pytest.fixture
def archive(store: Store, tmp_path: Path) -> Archive:
    tree = tmp_path / "tree"
    tree.mkdir()
    for i in range(12):
        (tree / f"file{i}").write_bytes(os.urandom(300_000))
    os.link(tree / "file0", tree / "z")
    return store.archive(tree)


def forget(store: Store) -> None:
    """As on another host: nothing of the vault is remembered."""
    os.system(f"rm -rf {store.vaulted.cache_dir}")


def refused(store: Store, archive: Archive, tmp_path: Path) -> str:
    with pytest.raises(Refused) as caught:
        store.restore(archive, tmp_path / f"back{os.urandom(4).hex()}")
    assert caught.value.code == "archive_damaged"
    return caught.value.message


def flip(file: Path, at: int) -> bytes:
    data = file.read_bytes()
    file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    return data


def test_any_flipped_byte_of_a_segment_is_told(store: Store, archive: Archive, tmp_path: Path) -> None:
    (pack,) = store.names("packs")
    index = decode_index(store.vaulted.keys, store.file("indices", pack).read_bytes(), pack)
    assert len(index.segments) >= 4
    for number, segment in enumerate(index.segments):
        last = segment.offset + segment.stored_bytes - 1
        for at in (segment.offset, segment.offset + 12, segment.offset + 1000, last):  # nonce, first, middle, tag
            file = store.file("packs", pack)
            whole = flip(file, min(at, last))
            assert f"pack {pack} segment {number}" in refused(store, archive, tmp_path)
            file.write_bytes(whole)


def test_a_restore_that_fails_amid_files_leaves_no_thread_and_no_descriptor(
    store: Store, archive: Archive, tmp_path: Path
) -> None:
    (pack,) = store.names("packs")
    index = decode_index(store.vaulted.keys, store.file("indices", pack).read_bytes(), pack)
    flip(store.file("packs", pack), index.segments[2].offset + 100)
    before = len(list(Path("/proc/self/fd").iterdir())), threading.active_count()
    refused(store, archive, tmp_path)
    assert (len(list(Path("/proc/self/fd").iterdir())), threading.active_count()) == before


def test_any_flipped_byte_of_an_index_or_root_is_told(store: Store, archive: Archive, tmp_path: Path) -> None:
    (pack,) = store.names("packs")
    for kind, name, words in (
        ("indices", pack, f"the index of pack {pack}"),
        ("archives", archive.id, f"the root of archive {archive.id}"),
    ):
        file = store.file(kind, name)
        for at in (0, 12, file.stat().st_size // 2, file.stat().st_size - 1):
            forget(store)
            whole = flip(file, at)
            assert words in refused(store, archive, tmp_path)
            file.write_bytes(whole)


@pytest.mark.parametrize("kind", ["packs", "indices", "archives"])
@pytest.mark.parametrize("left", [0, 5, 27, 28, 100])
def test_an_object_that_is_cut_off_is_told(
    store: Store, archive: Archive, tmp_path: Path, kind: str, left: int
) -> None:
    (name,) = store.names(kind)
    forget(store)
    os.truncate(store.file(kind, name), left)
    assert name in refused(store, archive, tmp_path)


def test_a_pack_that_is_missing_is_told(store: Store, archive: Archive, tmp_path: Path) -> None:
    (pack,) = store.names("packs")
    store.file("packs", pack).unlink()
    assert f"pack {pack} is not in the object store" in refused(store, archive, tmp_path)


def test_an_index_that_is_missing_is_told(store: Store, archive: Archive, tmp_path: Path) -> None:
    (pack,) = store.names("packs")
    forget(store)
    store.file("indices", pack).unlink()
    assert f"pack {pack} has no index" in refused(store, archive, tmp_path)


def test_an_archive_that_is_missing_is_not_found(store: Store, archive: Archive, tmp_path: Path) -> None:
    store.file("archives", archive.id).unlink()
    with pytest.raises(NotFound) as caught:
        store.restore(archive, tmp_path / "back")
    assert caught.value.code == "archive_missing"


def test_another_key_opens_nothing(store: Store, archive: Archive, tmp_path: Path) -> None:
    keys = Keys(Vault(store.vaulted.keys.vault_id, os.urandom(32)))  # type: ignore[arg-type]
    other = replace(store, vaulted=replace(store.vaulted, keys=keys))
    assert "of another vault's key" in refused(other, archive, tmp_path)


def test_an_object_is_good_in_its_own_place_alone(store: Store, archive: Archive, tmp_path: Path) -> None:
    other = new_archive_id()
    store.file("archives", other).write_bytes(store.file("archives", archive.id).read_bytes())
    assert other in refused(store, replace(archive, id=other), tmp_path)


def test_segments_cannot_be_exchanged(store: Store, archive: Archive, tmp_path: Path) -> None:
    (pack,) = store.names("packs")
    index = decode_index(store.vaulted.keys, store.file("indices", pack).read_bytes(), pack)
    file = store.file("packs", pack)
    data = file.read_bytes()
    parts = [data[one.offset : one.offset + one.stored_bytes] for one in index.segments]
    file.write_bytes(MAGIC + parts[1] + parts[0] + b"".join(parts[2:]))
    assert f"pack {pack} segment" in refused(store, archive, tmp_path)


def test_a_later_format_is_told_as_one(store: Store, archive: Archive, tmp_path: Path) -> None:
    sealed = encode_root(store.vaulted.keys, archive.id, Root([], [], 0, 0, 0, 0, version=2))
    store.vaulted.objects.put(root_key(store.vaulted.keys.vault_id, archive.id), sealed)
    with pytest.raises(Refused, match="has format 2") as caught:
        store.restore(archive, tmp_path / "back")
    assert caught.value.code == "archive_version"


def test_a_damaged_cache_of_indices_is_fetched_again(store: Store, archive: Archive, tmp_path: Path) -> None:
    (pack,) = store.names("packs")
    (cached,) = (store.vaulted.cache_dir / "indices" / store.vaulted.keys.vault_id).iterdir()
    flip(cached, 20)
    store.restore(archive, tmp_path / "back")
    assert_same(tmp_path / "tree", tmp_path / "back")
    assert cached.read_bytes() == store.file("indices", pack).read_bytes()


def test_a_damaged_index_makes_its_chunks_unknown_and_no_more(store: Store, archive: Archive, tmp_path: Path) -> None:
    (pack,) = store.names("packs")
    forget(store)
    flip(store.file("indices", pack), 20)
    again = store.archive(tmp_path / "tree")
    assert again.stored_bytes > 3_000_000
    store.restore(again, tmp_path / "back")
    assert_same(tmp_path / "tree", tmp_path / "back")


def test_the_store_sees_no_content_and_no_name(store: Store, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    secret = b"a secret that a store must not learn "
    (tree / "telling-name").write_bytes(secret * 100)
    store.archive(tree)
    for file in (tmp_path / "store").rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            assert secret not in data and b"telling-name" not in data


def test_two_vaults_name_the_same_content_differently(tmp_path: Path) -> None:
    one, other = (new_store(tmp_path / name).vaulted.keys for name in "ab")
    assert one.chunk_id(b"x") != other.chunk_id(b"x")
    assert one.cut_seed != other.cut_seed


def test_a_pack_that_is_no_longer_listed_is_not_relied_on(store: Store, archive: Archive, tmp_path: Path) -> None:
    (pack,) = store.names("packs")
    store.file("packs", pack).unlink()  # its index is still there, and in the cache
    catalogue = Catalogue(store.vaulted.objects, store.vaulted.keys, store.vaulted.cache_dir / "indices")
    from skerry.blobs.limits import LIMITS

    catalogue.load_all(LIMITS)
    assert not catalogue.places
    again = store.archive(tmp_path / "tree")
    store.restore(again, tmp_path / "back")
    assert_same(tmp_path / "tree", tmp_path / "back")


@pytest.mark.parametrize("kind", ["archives", "indices", "packs"])
def test_what_is_no_file_holds_nobody_up(store: Store, archive: Archive, tmp_path: Path, kind: str) -> None:
    forget(store)
    for name in store.names(kind):
        store.file(kind, name).unlink()
        os.mkfifo(store.file(kind, name))
    with pytest.raises((Refused, NotFound)):
        store.restore(archive, tmp_path / "back")


@pytest.mark.parametrize("kind", ["archives", "indices"])
def test_an_object_that_was_blown_up_is_not_read_into_memory(
    store: Store, archive: Archive, tmp_path: Path, kind: str
) -> None:
    forget(store)
    for name in store.names(kind):
        os.truncate(store.file(kind, name), 1 << 42)
    assert "larger than any" in refused(store, archive, tmp_path)

"""What comes back from an archive is what went in: content, names, links, holes, owners, modes, times, attributes."""
# ruff: noqa: PTH102, PTH123, PTH208, PTH211 - names are bytes here

import os
import socket
import stat
from pathlib import Path

import pytest
from unit.blobs.trees import Store, assert_same, new_store, settle, told

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to others")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new_store(tmp_path)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    tree.mkdir()
    return tree


def round_trip(store: Store, tree: Path, tmp_path: Path) -> Path:
    back = tmp_path / "back"
    store.restore(store.archive(tree), back)
    assert_same(tree, back)
    return back


def test_an_empty_tree(store: Store, tree: Path, tmp_path: Path) -> None:
    os.utime(tree, ns=(1, 1_234_567_891_234_567_891))
    tree.chmod(0o1751)
    round_trip(store, tree, tmp_path)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 262_144, 262_145, 1 << 20, (1 << 22) + 1, 13_000_001])
def test_a_file_of_any_size(store: Store, tree: Path, tmp_path: Path, size: int) -> None:
    (tree / "file").write_bytes(os.urandom(size))
    round_trip(store, tree, tmp_path)


def test_files_of_the_same_content_are_stored_once(store: Store, tree: Path, tmp_path: Path) -> None:
    data = os.urandom(2_000_000)
    for i in range(5):
        (tree / f"file{i}").write_bytes(data)
    assert store.archive(tree).stored_bytes < 2_100_000
    round_trip(store, tree, tmp_path)


def test_directories_empty_and_nested(store: Store, tree: Path, tmp_path: Path) -> None:
    (tree / "a/b/c").mkdir(parents=True)
    (tree / "a/empty").mkdir()
    (tree / "a/b/file").write_text("x")
    (tree / "z").mkdir(mode=0o000)
    for i, path in enumerate([tree / "a/b/c", tree / "a/b", tree / "a/empty", tree / "a", tree / "z", tree]):
        os.utime(path, ns=(0, 1_000_000_000_000_000_001 + i))
    round_trip(store, tree, tmp_path)


def test_odd_names(store: Store, tree: Path, tmp_path: Path) -> None:
    for name in (b"\xff\xfe", b"new\nline", b" ", b"-rf", b"~", b"*", b"\x01\x7f", b"x" * 255, "ä€𝄞".encode(), b"a\\b"):
        path = os.fsencode(tree) + b"/" + name
        os.mkdir(path)
        with open(path + b"/" + name, "wb") as file:
            file.write(name)
        os.symlink(name, path + b"/link")
    round_trip(store, tree, tmp_path)


def test_symlinks_are_kept_and_never_followed(store: Store, tree: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("of the host")
    (tree / "absolute").symlink_to("/etc/passwd")
    (tree / "up").symlink_to(outside)
    (tree / "loop").symlink_to("loop")
    (tree / "dangling").symlink_to("\udcff nowhere")
    (tree / "long").symlink_to("x" * 4000)
    os.utime(tree / "up", ns=(5, 7_000_000_001), follow_symlinks=False)
    round_trip(store, tree, tmp_path)
    assert store.archive(tree).size_bytes == 0


def test_hard_links_within_the_tree(store: Store, tree: Path, tmp_path: Path) -> None:
    (tree / "b").mkdir()
    (tree / "b/first").write_bytes(os.urandom(300_000))
    os.utime(tree / "b/first", ns=(0, 123_456_789))
    os.link(tree / "b/first", tree / "a")
    os.link(tree / "b/first", tree / "b/second")
    (tree / "empty").touch()
    os.link(tree / "empty", tree / "empty2")
    (tree / "link").symlink_to("x")
    os.link(tree / "link", tree / "link2", follow_symlinks=False)
    os.utime(tree / "b", ns=(0, 77))
    back = round_trip(store, tree, tmp_path)
    assert (back / "a").stat().st_nlink == 3
    assert sorted(os.listdir(back)) == ["a", "b", "empty", "empty2", "link", "link2"]


def test_a_hard_link_to_outside_the_tree_is_a_file(store: Store, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("shared")
    os.link(tmp_path / "outside", tree / "inside")
    back = tmp_path / "back"
    store.restore(store.archive(tree), back)
    assert (back / "inside").read_text() == "shared"
    assert (back / "inside").stat().st_nlink == 1


@pytest.mark.parametrize("mode", [0o000, 0o644, 0o755, 0o777, 0o4755, 0o2755, 0o1777, 0o6711, 0o7777])
def test_modes(store: Store, tree: Path, tmp_path: Path, mode: int) -> None:
    (tree / "file").write_text("x")
    (tree / "file").chmod(mode)
    (tree / "directory").mkdir()
    (tree / "directory").chmod(mode)
    round_trip(store, tree, tmp_path)


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_modes_whatever_the_umask(store: Store, tree: Path, tmp_path: Path, umask: int) -> None:
    for mode in (0o666, 0o640, 0o4755, 0o000):
        (tree / oct(mode)).write_text("")
        (tree / oct(mode)).chmod(mode)
    archive = store.archive(tree)
    before = os.umask(umask)
    try:
        store.restore(archive, tmp_path / "back")
    finally:
        assert os.umask(before) == umask
    assert_same(tree, tmp_path / "back")


@root_only
def test_owners_with_setuid_and_setgid(store: Store, tree: Path, tmp_path: Path) -> None:
    for i, (uid, gid) in enumerate([(0, 0), (1000, 100), (65534, 65534), (4_000_000_000, 7)]):
        file = tree / f"file{i}"
        file.write_text("x")
        os.chown(file, uid, gid)
        file.chmod(0o6755)
        (tree / f"link{i}").symlink_to("x")
        os.chown(tree / f"link{i}", uid, gid, follow_symlinks=False)
    os.chown(tree, 1000, 1000)
    back = round_trip(store, tree, tmp_path)
    assert stat.S_IMODE((back / "file1").stat().st_mode) == 0o6755


@pytest.mark.parametrize("mtime_ns", [0, 1, -1, -1_500_000_001, 1_700_000_000_999_999_999, 15_032_385_535_000_000_000])
def test_times_to_the_nanosecond(store: Store, tree: Path, tmp_path: Path, mtime_ns: int) -> None:
    (tree / "file").write_text("x")
    os.utime(tree / "file", ns=(0, mtime_ns))
    round_trip(store, tree, tmp_path)


def test_sparse_files_stay_sparse(store: Store, tree: Path, tmp_path: Path) -> None:
    with (tree / "ends in a hole").open("wb") as file:
        file.write(b"data")
        file.truncate(10_000_000)
    with (tree / "begins with a hole").open("wb") as file:
        file.seek(5_000_000)
        file.write(b"data")
    with (tree / "holes between").open("wb") as file:
        for i in range(40):
            file.seek(i * 131_072)
            file.write(os.urandom(4096 * (i % 3 + 1)))
    with (tree / "no data").open("wb") as file:
        file.truncate(1 << 40)
    archive = store.archive(tree)
    assert archive.size_bytes < 1_000_000
    back = round_trip(store, tree, tmp_path)
    assert (back / "no data").stat().st_size == 1 << 40
    for file in tree.iterdir():
        assert (back / file.name).stat().st_blocks <= file.stat().st_blocks + 8, file


def test_zeros_that_are_data_come_back(store: Store, tree: Path, tmp_path: Path) -> None:
    (tree / "zeros").write_bytes(bytes(3_000_000))
    round_trip(store, tree, tmp_path)


def test_user_attributes_and_acls_are_kept(store: Store, tree: Path, tmp_path: Path) -> None:
    acl = bytes.fromhex("0200000001000600ffffffff02000700e803000004000400ffffffff10000700ffffffff20000400ffffffff")
    (tree / "file").write_text("x")
    (tree / "directory").mkdir()
    for path in (tree / "file", tree / "directory", tree):
        os.setxattr(path, "user.note", b"\x00\xff" * 50)
        os.setxattr(path, "user.empty", b"")
        os.setxattr(path, "system.posix_acl_access", acl)
    os.setxattr(tree / "directory", "system.posix_acl_default", acl)
    (tree / "directory/inside").write_text("inherits")
    os.removexattr(tree / "directory/inside", "system.posix_acl_access")
    round_trip(store, tree, tmp_path)


@root_only
def test_attributes_of_the_host_are_dropped_and_counted(store: Store, tree: Path, tmp_path: Path) -> None:
    (tree / "file").write_text("x")
    os.setxattr(tree / "file", "trusted.overlay.opaque", b"y")
    os.setxattr(tree / "file", "security.capability", bytes.fromhex("0100000200200000000000000000000000000000"))
    back = tmp_path / "back"
    settle(tree)
    for _ in range(2):  # also when the file is known
        root = store.restore(store.archive(tree), back)
        assert root.dropped_xattrs == 2
        assert os.listxattr(back / "file") == []
        (back / "file").unlink()
        back.rmdir()


@root_only
def test_sockets_pipes_and_devices_are_skipped_and_counted(store: Store, tree: Path, tmp_path: Path) -> None:
    os.mkfifo(tree / "pipe")
    os.mknod(tree / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(tree / "disk", stat.S_IFBLK | 0o666, os.makedev(7, 200))
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tree / "socket"))
    (tree / "file").write_text("x")
    archive = store.archive(tree)
    assert (archive.skipped, archive.entries) == (4, 1)
    back = tmp_path / "back"
    store.restore(archive, back)
    assert os.listdir(back) == ["file"]


@root_only
def test_what_is_mounted_in_the_tree_is_skipped_and_counted(store: Store, tree: Path, tmp_path: Path) -> None:
    (tree / "proc").mkdir()
    if os.system(f"mount -t tmpfs none {tree}/proc 2>/dev/null") != 0:
        pytest.skip("cannot mount here")
    try:
        (tree / "proc/file").write_text("of another file system")
        archive = store.archive(tree)
    finally:
        os.system(f"umount {tree}/proc")
    assert (archive.skipped, archive.entries) == (1, 0)


def test_totals_count_data_once(store: Store, tree: Path) -> None:
    (tree / "a").write_bytes(b"x" * 1000)
    os.link(tree / "a", tree / "b")
    with (tree / "c").open("wb") as file:
        file.truncate(1 << 30)
    archive = store.archive(tree)
    assert (archive.size_bytes, archive.entries, archive.skipped) == (1000, 3, 0)
    assert store.archive(tree).size_bytes == 1000


def test_archives_of_one_tree_share_all_but_the_root(store: Store, tree: Path) -> None:
    for i in range(50):
        (tree / f"file{i}").write_bytes(os.urandom(10_000))
    first = store.archive(tree)
    second = store.archive(tree)
    assert first.stored_bytes > 500_000
    assert second.stored_bytes < 1000
    assert len(store.names("packs")) == 1


def test_what_told_compares_is_worth_comparing(tree: Path) -> None:
    (tree / "file").write_bytes(b"x")
    before = told(tree)
    (tree / "file").write_bytes(b"y")
    assert told(tree) != before

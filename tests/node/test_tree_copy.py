"""Copies of directory trees on file systems that cannot snapshot."""

import os
import socket
import stat
from pathlib import Path

import pytest

from skerry.node.tree_copy import DEEPEST, copy_tree
from skerry.node.trees import PlainTrees, remove_tree

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="owners need root")


def looks(path: Path) -> tuple[object, ...]:
    told = path.lstat()
    return stat.S_IFMT(told.st_mode), stat.S_IMODE(told.st_mode), told.st_uid, told.st_gid, told.st_mtime_ns


def test_everything_of_a_tree_is_copied(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "closed").mkdir(parents=True)
    (source / "file").write_bytes(b"content")
    os.setxattr(source / "file", "user.note", b"x\0y")
    os.link(source / "file", source / "closed/same")
    (source / "\n -rf %s \udcff").touch()
    (source / "empty").touch()
    (source / "link").symlink_to("/etc/passwd")
    os.mkfifo(source / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(source / "socket"))
    with (source / "sparse").open("wb") as sparse:
        sparse.seek(50 << 20)
        sparse.write(b"end")
    for path in (source / "file", source / "link", source / "fifo"):
        os.chown(path, 1000, 7, follow_symlinks=False)
    (source / "file").chmod(0o4751)
    for path in sorted(source.rglob("*"), reverse=True):
        os.utime(path, ns=(1_000_000_001, 2_000_000_003), follow_symlinks=False)
    (source / "closed").chmod(0o000)
    copy = tmp_path / "copy"
    copy_tree(source, copy)
    names = sorted(path.relative_to(source) for path in source.rglob("*"))
    assert sorted(path.relative_to(copy) for path in copy.rglob("*")) == names
    for name in names:
        assert looks(copy / name) == looks(source / name), name
    assert (copy / "file").read_bytes() == b"content" and os.getxattr(copy / "file", "user.note") == b"x\0y"
    assert (copy / "file").stat().st_ino == (copy / "closed/same").stat().st_ino
    assert (copy / "file").stat().st_ino != (source / "file").stat().st_ino
    assert (copy / "link").readlink() == Path("/etc/passwd")
    assert (copy / "sparse").stat().st_blocks < 1000 and (copy / "sparse").read_bytes()[-3:] == b"end"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "source"]


def test_a_link_in_place_of_a_directory_leads_nowhere(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").touch()
    (tmp_path / "source").symlink_to(outside)
    with pytest.raises(OSError, match="Not a directory"):
        copy_tree(tmp_path / "source", tmp_path / "copy")
    assert not (tmp_path / "copy/secret").exists()


def deep(path: Path, depth: int) -> None:
    path.mkdir()
    fd = os.open(path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)


def test_a_thousand_levels_are_copied_and_too_many_refused(tmp_path: Path) -> None:
    for name, depth in (("deep", 1500), ("deeper", DEEPEST + 1)):
        deep(tmp_path / name, depth)
    copy_tree(tmp_path / "deep", tmp_path / "copy")
    with pytest.raises(OSError, match=f"more than {DEEPEST}"):
        copy_tree(tmp_path / "deeper", tmp_path / "broken")
    PlainTrees().remove([tmp_path / "broken"], None)
    for name in ("deep", "deeper", "copy"):
        remove_tree(tmp_path / name)
    assert list(tmp_path.iterdir()) == []

"""The other kinds of pool: a home on btrfs itself, and plain directories where there is no btrfs."""
# ruff: noqa: ASYNC221 - nothing else runs in the loop of these tests

import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.config import Config
from skerry.model.bundle import IdRange
from skerry.model.errors import Refused
from skerry.model.ids import new_sandbox_id
from skerry.model.sandbox import Limits
from skerry.node import btrfs, mounts, pool, quota
from skerry.node.layers import Layers
from skerry.node.trees import PlainTrees, disk_usage, remove_tree

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")


@pytest.fixture
def btrfs_home() -> Iterator[Path]:
    """A home directory on a btrfs of the user's own."""
    directory = Path(tempfile.mkdtemp(prefix="skerry-native-"))
    image, target = directory / "disk", directory / "home"
    image.touch()
    os.truncate(image, 1 << 30)
    subprocess.run(["mkfs.btrfs", "--quiet", image], check=True, stdout=subprocess.DEVNULL)
    target.mkdir()
    subprocess.run(["mount", "-o", "loop", image, target], check=True)
    yield target
    assert [entry.target for entry in mounts.mounts_under(target)] == [target], "a mount was left behind"
    mounts.unmount(target)
    shutil.rmtree(directory)


async def test_a_home_on_btrfs_needs_no_image(btrfs_home: Path) -> None:
    if quota.enable(btrfs_home, full=False) != quota.SIMPLE:
        pytest.skip("this kernel has no simple quotas")
    config = Config(home=btrfs_home)
    layers = Layers(config)
    await layers.open()
    await layers.open()
    assert layers.disk_limit == quota.SIMPLE
    assert not (btrfs_home / "pool.img").exists()
    flags = os.statvfs(config.pool_dir).f_flag
    assert flags & os.ST_NOSUID and flags & os.ST_NODEV
    template = layers.pool.images / "template"
    template.mkdir()
    sandbox_id = new_sandbox_id()
    rootfs = await layers.create(sandbox_id, template, Limits(disk_mb=64), IdRange(1_000_000))
    with mounts.acting_as(1_000_000), pytest.raises(OSError) as caught:
        (rootfs.workspace / "a").write_bytes(os.urandom(80 << 20))
    assert caught.value.errno == errno.EDQUOT
    await layers.destroy(sandbox_id)
    assert await layers.list() == set()
    await layers.close()


async def test_a_home_on_btrfs_with_full_qgroups_keeps_them(btrfs_home: Path) -> None:
    subprocess.run(["btrfs", "quota", "enable", btrfs_home], check=True)
    layers = Layers(Config(home=btrfs_home))
    await layers.open()
    assert layers.disk_limit == quota.FULL
    await layers.close()


@pytest.fixture
def plain_pool() -> Iterator[pool.Pool]:
    directory = Path(tempfile.mkdtemp(prefix="skerry-plain-"))
    yield pool.open_plain(directory, "asked for by a test")
    assert mounts.mounts_under(directory) == []
    shutil.rmtree(directory)


def test_plain_directories_say_that_they_limit_nothing(plain_pool: pool.Pool) -> None:
    assert not plain_pool.probe.ok and "btrfs-progs" in plain_pool.probe.remedy
    assert plain_pool.trees.disk_limit == "none"
    assert pool.open_plain(plain_pool.path, "again").path == plain_pool.path
    assert len(mounts.mounts_under(plain_pool.path)) == 1
    pool.close_pool(plain_pool)


async def test_x4_what_cannot_be_limited_is_refused_unless_the_operator_permits_it(plain_pool: pool.Pool) -> None:
    pool.prepare(plain_pool)
    layers = Layers(Config(home=plain_pool.path.parent), opened=plain_pool)
    with pytest.raises(Refused, match="allow_unlimited_disk"):
        await layers.create(new_sandbox_id(), plain_pool.images / "template", Limits())
    assert await layers.list() == set()
    await layers.close()


async def test_a_sandbox_works_on_plain_directories(plain_pool: pool.Pool) -> None:
    pool.prepare(plain_pool)
    layers = Layers(Config(home=plain_pool.path.parent, allow_unlimited_disk=True), opened=plain_pool)
    template = plain_pool.images / "template"
    plain_pool.trees.make_image(template)
    (template / "file").write_text("below")
    sandbox_id = new_sandbox_id()
    rootfs = await layers.create(sandbox_id, template, Limits(), IdRange(1_000_000))
    assert (rootfs.root / "file").stat().st_uid == 1_000_000
    with mounts.acting_as(1_000_000):
        (rootfs.root / "file").write_text("above")
        (rootfs.workspace / "big").write_bytes(bytes(1 << 20))
    assert (template / "file").read_text() == "below"
    assert await layers.usage_bytes(sandbox_id) > 1 << 20
    assert await layers.enforce_inodes() == set()
    await layers.destroy(sandbox_id)
    assert await layers.list() == set()
    await layers.close()


def test_a_tree_is_removed_whatever_is_in_it(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("kept")
    tree = tmp_path / "tree"
    PlainTrees().make([tree], "x", 0)
    (tree / "link").symlink_to(outside)
    (tree / "\n \udcff").touch()
    (tree / "closed").mkdir(mode=0o000)
    os.mkfifo(tree / "fifo")
    fd = os.open(tree, os.O_RDONLY)
    for _ in range(3000):
        for name in ("link", "d"):
            os.mkdir("d", dir_fd=fd) if name == "d" else os.symlink(outside, f"{name}2", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    assert disk_usage(tree) > 0
    remove_tree(tree)
    remove_tree(tree)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside"]
    assert (outside / "file").read_text() == "kept"


def test_an_interrupted_removal_is_finished_by_the_next(tmp_path: Path) -> None:
    trash = tmp_path / "tree.removing"
    (trash / "1/inner/more").mkdir(parents=True)
    (trash / "7").mkdir()
    (tmp_path / "tree/new").mkdir(parents=True)
    remove_tree(tmp_path / "tree")
    assert list(tmp_path.iterdir()) == []


def test_a_removal_never_follows_a_link_in_place_of_the_tree(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "tree").symlink_to(tmp_path / "outside")
    remove_tree(tmp_path / "tree")
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]


def test_only_the_root_of_a_subvolume_is_one(btrfs_home: Path) -> None:
    btrfs.create_subvolume(btrfs_home / "sub")
    (btrfs_home / "dir").mkdir()
    assert btrfs.is_subvolume(btrfs_home / "sub")
    assert not btrfs.is_subvolume(btrfs_home / "dir")
    assert not btrfs.is_subvolume(btrfs_home / "none")
    btrfs.delete_subvolume(btrfs_home / "sub")

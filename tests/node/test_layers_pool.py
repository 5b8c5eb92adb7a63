"""Pools on a loop image: found, made, grown, shared with what a crash left."""
# ruff: noqa: ASYNC220, ASYNC221 - nothing else runs in the loop of these tests

import asyncio
import errno
import os
import subprocess
from collections.abc import Iterator

import pytest
from layers_home import FIRST, SMALL, fill, loop_files, owner_of, temporary_home

from skerry.config import Config
from skerry.model.errors import Refused
from skerry.model.ids import new_sandbox_id
from skerry.node import loops, mounts
from skerry.node.layers import Layers
from skerry.node.pool import open_pool

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")


@pytest.fixture
def config() -> Iterator[Config]:
    with temporary_home() as config:
        yield config


async def test_a_loop_device_left_by_a_crash_is_detached(config: Config) -> None:
    layers = Layers(config)
    await layers.open()
    await layers.close()
    subprocess.run(["losetup", "--find", config.home / "pool.img"], check=True)
    subprocess.run(["losetup", "--find", config.home / "pool.img"], check=True)
    await layers.open()
    assert loop_files().count(str(config.home / "pool.img")) == 1
    await layers.close()


async def test_a_loop_device_of_a_deleted_image_is_given_back(config: Config) -> None:
    old = config.home / "pool.img"
    old.touch()
    os.truncate(old, 1 << 20)
    subprocess.run(["losetup", "--find", old], check=True)
    old.unlink()
    layers = Layers(config)
    await layers.open()
    assert [d for d in loop_files() if d.startswith(str(old))] == [str(old)]
    await layers.close()


async def test_a_file_of_the_same_name_in_another_mount_namespace_is_not_taken_for_the_pool(config: Config) -> None:
    image, elsewhere = config.home / "pool.img", config.home / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "pool.img").touch()
    os.truncate(elsewhere / "pool.img", 1 << 20)
    image.touch()
    script = 'mount --bind "$1/elsewhere" "$1" && losetup --find --show "$1/pool.img" && exec cat'
    argv = ["unshare", "--mount", "sh", "-c", script, "sh", str(config.home)]
    other = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout
    device = other.stdout.readline().strip()
    try:
        assert str(image) in loop_files(), "its name is the same as ours"
        with loops.found(image) as devices:
            assert devices == []
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)
        other.communicate()


async def test_a_pool_opens_while_a_copy_of_its_old_mount_lives_on(config: Config) -> None:
    layers = Layers(config)
    await layers.open()
    (layers.pool.path / "mark").touch()
    holder = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdin and holder.stdout
        holder.stdin.write(b"x")
        holder.stdin.flush()
        assert holder.stdout.read(1) == b"x"
        await layers.close()
        await layers.open()
        assert (layers.pool.path / "mark").exists()
        assert loop_files().count(str(config.home / "pool.img")) == 1
    finally:
        holder.communicate()
        await layers.close()


async def test_a_half_made_image_is_made_anew(config: Config) -> None:
    (config.home / "pool.img.new").write_bytes(b"half")
    layers = Layers(config)
    await layers.open()
    assert not (config.home / "pool.img.new").exists()
    await layers.close()


async def test_a_larger_pool_setting_grows_the_image_mounted_or_not(config: Config) -> None:
    layers = Layers(config)
    await layers.open()
    size = os.statvfs(config.pool_dir).f_blocks
    larger = Layers(config.model_copy(update={"pool_mb": 1536}))
    await larger.open()
    assert os.statvfs(config.pool_dir).f_blocks == size * 3 // 2
    await larger.close()
    largest = Layers(config.model_copy(update={"pool_mb": 2048}))
    await largest.open()
    assert os.statvfs(config.pool_dir).f_blocks == size * 2
    await largest.close()


async def test_a_home_may_have_any_name_and_be_reached_by_a_link(config: Config) -> None:
    odd = config.home / "a b,c:d\\e😀"
    odd.mkdir()
    (config.home / "link").symlink_to(odd)
    layers = Layers(Config(home=config.home / "link", pool_mb=1024))
    await layers.open()
    await layers.open()
    template = layers.pool.images / "template"
    template.mkdir()
    for ids in (None, FIRST):
        rootfs = await layers.create(new_sandbox_id(), template, SMALL, ids)
        with mounts.acting_as(owner_of(ids)):
            (rootfs.root / "file").touch()
    assert len(mounts.mounts_under(odd)) == 4  # the pool, two roots, one mapped workspace
    await layers.close()
    assert mounts.mounts_under(odd) == []


async def test_something_else_mounted_there_is_refused(config: Config) -> None:
    config.pool_dir.mkdir()
    mounts.mount("tmpfs", config.pool_dir, "tmpfs")
    try:
        with pytest.raises(Refused, match="tmpfs is mounted there"):
            await Layers(config).open()
    finally:
        mounts.unmount_all(config.pool_dir)


def test_full_qgroups_are_taken_as_they_are(config: Config) -> None:
    pool = open_pool(config)
    subprocess.run(["btrfs", "quota", "disable", pool.path], check=True)
    subprocess.run(["btrfs", "quota", "enable", pool.path], check=True)
    assert open_pool(config).trees.disk_limit == "qgroup"

    async def fill_one() -> None:
        layers = Layers(config)
        await layers.open()
        root = layers.pool.images / "template"
        root.mkdir()
        rootfs = await layers.create(new_sandbox_id(), root, SMALL)
        assert fill(rootfs.workspace / "a", 40 << 20) == 0
        assert fill(rootfs.root / "b", 40 << 20) == errno.EDQUOT
        for sandbox_id in await layers.list():
            await layers.destroy(sandbox_id)
        await layers.close()

    asyncio.run(fill_one())

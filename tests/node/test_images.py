"""Building templates: real, small ones, from packages made here, and the built-in ones (slow, from Debian)."""
# ruff: noqa: ASYNC221, ASYNC240, PTH208 - nothing else runs in the loop of these tests

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from skerry.config import Config
from skerry.model.errors import NotFound, Refused, TooBusy
from skerry.model.ids import new_sandbox_id
from skerry.model.sandbox import Limits
from skerry.model.template import BuildProgress, TemplateStatus
from skerry.node import btrfs, mounts
from skerry.node.images import Images
from skerry.node.layers import Layers

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")

TINY = """
name = "tiny"
description = "The least that Debian can be"
suite = "bookworm"
packages = []

[[file]]
path = "/etc/motd"
content = "hello"

[[link]]
path = "/usr/local/bin/hello"
target = "/bin/true"
"""


@pytest.fixture
def config() -> Iterator[Config]:
    home = Path(tempfile.mkdtemp(prefix="skerry-images-"))
    yield Config(home=home, pool_mb=4096)
    assert mounts.mounts_under(home) == [], "a mount was left behind"
    shutil.rmtree(home)


@pytest.fixture
async def layers(config: Config) -> AsyncIterator[Layers]:
    layers = Layers(config)
    await layers.open()
    yield layers
    for sandbox_id in await layers.list():
        await layers.destroy(sandbox_id)
    await layers.close()


@pytest.fixture
def declared(tmp_path: Path) -> Path:
    (tmp_path / "tiny.toml").write_text(TINY)
    return tmp_path


async def follow(images: Images, name: str) -> list[BuildProgress]:
    return [progress async for progress in images.build(name)]


async def test_an_unknown_template_is_told_with_the_known_ones(config: Config, layers: Layers, declared: Path) -> None:
    images = Images(config, layers, declared)
    with pytest.raises(NotFound, match="Known: tiny"):
        await images.ready("nope")
    with pytest.raises(NotFound, match="Known: tiny"):
        await follow(images, "nope")
    with pytest.raises(Refused) as caught:
        await images.ready("tiny")
    assert caught.value.code == "template_not_ready"
    assert [s.status for s in await images.states()] == [TemplateStatus.PENDING]


async def test_no_template_is_built_into_a_pool_without_room(config: Config, declared: Path) -> None:
    layers = Layers(config.model_copy(update={"pool_mb": 1024}))
    await layers.open()
    with (layers.pool.path / "rest").open("wb") as rest:
        rest.write(bytes(400 << 20))
        os.fsync(rest.fileno())
    images = Images(config, layers, declared)
    assert [probe.ok for probe in await images.probes()] == [True]
    with pytest.raises(TooBusy) as caught:
        await follow(images, "tiny")
    assert caught.value.code == "disk_full"
    assert [n for n in os.listdir(layers.pool.images) if n != ".base"] == []
    await layers.close()


@pytest.mark.slow
async def test_a_template_is_built_once_for_all_who_ask_and_found_again(
    config: Config, layers: Layers, declared: Path
) -> None:
    images = Images(config, layers, declared)
    first, second = await asyncio.gather(follow(images, "tiny"), follow(images, "tiny"))
    for told in (first, second):
        fractions = [progress.fraction for progress in told]
        assert fractions == sorted(fractions) and fractions[-1] == 1.0 and len(fractions) > 5
    image = await images.ready("tiny")
    assert os.listdir(layers.pool.images / image.digest) and btrfs.is_subvolume(image.root)
    check_root(image.root)
    await check_sandbox(layers, image.root)
    # Another node of this home finds it, and builds nothing.
    again = Images(config, layers, declared)
    assert await follow(again, "tiny") == [BuildProgress("tiny", 1.0, "ready")]
    (state,) = await again.states()
    assert (state.status, state.digest) == (TemplateStatus.READY, image.digest)
    assert 50 << 20 < state.size_bytes < 200 << 20


def check_root(root: Path) -> None:
    assert (root / "workspace").is_dir() and (root / "run/skerry").is_dir()
    assert (root / ".skerry/sbxd").read_bytes() == b""
    for name in ("machine-id", "resolv.conf", "hostname"):
        assert not (root / "etc" / name).is_symlink() and (root / "etc" / name).read_bytes() == b""
    assert (root / "etc/motd").read_text() == "hello"
    assert (root / "usr/local/bin/hello").readlink() == Path("/bin/true")
    assert "deb.debian.org" in (root / "etc/apt/sources.list").read_text()
    assert os.listdir(root / "var/lib/apt/lists") == ["partial"]
    assert os.listdir(root / "dev") == []
    with pytest.raises(OSError):
        (root / "new").touch()


async def check_sandbox(layers: Layers, root: Path) -> None:
    """A layer over it runs Debian's own programs, and its new files have numbers of their own."""
    rootfs = await layers.create(new_sandbox_id(), root, Limits(disk_mb=256))
    subprocess.run(["chroot", rootfs.root, "sh", "-c", "echo x > /etc/new && cat /etc/os-release"], check=True)
    highest = max(path.lstat().st_ino for path in (rootfs.root / "etc").iterdir() if path.name == "new")
    assert highest < min(path.lstat().st_ino for path in root.rglob("*"))


async def test_a_failed_build_tells_its_last_lines_and_leaves_nothing(
    config: Config, layers: Layers, declared: Path
) -> None:
    nowhere = config.model_copy(update={"mirror": "file:///nonexistent-mirror"})
    images = Images(nowhere, layers, declared)
    with pytest.raises(Refused, match="nonexistent-mirror"):
        await follow(images, "tiny")
    (state,) = await images.states()
    assert state.status is TemplateStatus.FAILED and "nonexistent-mirror" in (state.error or "")
    assert [n for n in os.listdir(layers.pool.images) if n != ".base"] == []


@pytest.mark.slow
async def test_a_build_that_is_ended_in_the_middle_leaves_nothing(
    config: Config, layers: Layers, declared: Path
) -> None:
    images = Images(config, layers, declared)
    async with aclosing(images.build("tiny")) as progress:
        async for step in progress:
            if step.fraction > 0.05:
                break
    await images.close()
    assert [n for n in os.listdir(layers.pool.images) if n != ".base"] == []


async def test_what_a_crash_left_of_a_build_is_removed_by_the_next(
    config: Config, layers: Layers, declared: Path
) -> None:
    nowhere = config.model_copy(update={"mirror": "file:///nonexistent-mirror"})
    images = Images(nowhere, layers, declared)
    with pytest.raises(Refused):
        await follow(images, "tiny")
    digest = images._declaration("tiny").digest()  # pyright: ignore[reportPrivateUsage]
    left = layers.pool.images / f"{digest}.new"
    left.mkdir()
    btrfs.create_subvolume(left / "root")
    (left / "root/half").touch()
    with pytest.raises(Refused):
        await follow(images, "tiny")
    assert not left.exists()

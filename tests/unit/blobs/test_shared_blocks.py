"""Files that share blocks: a sandbox can have more of them than any disk holds, at no charge."""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from unit.blobs.trees import new_store

from skerry.model.errors import Refused

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mkfs.btrfs") is None, reason="makes and mounts a btrfs image"
)
_FICLONE = 0x40049409


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


def test_a_tree_that_is_larger_than_its_disk_is_refused_and_not_read_for_days(pool: Path, tmp_path: Path) -> None:
    tree = pool / "tree"
    tree.mkdir()
    with (tree / "file").open("w+b") as first:
        first.write(os.urandom(32 << 20))
        first.flush()
        for number in range(16):
            with (tree / f"copy{number}").open("wb") as copy:
                fcntl.ioctl(copy, _FICLONE, first.fileno())
    subprocess.run(["sync", "-f", pool], check=True)
    with pytest.raises(Refused, match="tree_bytes is 268,435,456") as caught:
        new_store(tmp_path).archive(tree)
    assert caught.value.code == "archive_limit"

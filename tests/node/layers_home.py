"""What the tests of layers share: a home that is checked for leaks, and ways to fill a disk."""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from skerry.config import Config
from skerry.model.bundle import IdRange
from skerry.model.sandbox import Limits
from skerry.node import mounts

SMALL = Limits(disk_mb=64, inodes=100_000)
FIRST = IdRange(1_000_000)
SECOND = IdRange(1_065_536)


@contextmanager
def temporary_home() -> Iterator[Config]:
    """An instance's settings; at the end no mount and no loop device of it may be left."""
    home = Path(tempfile.mkdtemp(prefix="skerry-layers-"))
    yield Config(home=home, pool_mb=1024)
    assert mounts.mounts_under(home) == [], "a mount was left behind"
    deadline = time.monotonic() + 30  # the kernel detaches it in the background
    while left := [d for d in loop_files() if d.startswith(str(home))]:
        assert time.monotonic() < deadline, f"a loop device was left behind: {left}"
        time.sleep(0.05)
    subprocess.run(["rm", "-rf", home], check=True)


def loop_files() -> list[str]:
    found = []
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            found.append(file.read_text().strip())
        except OSError:
            continue
    return found


def owner_of(ids: IdRange | None) -> int:
    return ids.base if ids else 0


def fill(path: Path, size: int) -> int:
    """Write until `size` or an error; the errno, or 0."""
    block = os.urandom(1 << 20)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        for _ in range(size >> 20):
            os.write(fd, block)
        os.fsync(fd)
    except OSError as error:
        return error.errno or -1
    finally:
        os.close(fd)
    return 0

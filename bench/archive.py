"""`python -m bench.archive`: archives and restores of 0.8 GB in 40,000 files, through workers, beside `tar`.

On a btrfs image of its own, with the object store in a directory of the host's file system, as an instance has them.
"""
# ruff: noqa: ASYNC221 - nothing else runs in its loop

import argparse
import asyncio
import os
import random
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from bench.__main__ import print_table
from bench.rows import Row, row
from skerry.blobs.jobs import Archiver
from skerry.blobs.store import Place
from skerry.model.capture import Archive, Moved, Vault
from skerry.model.ids import new_vault_id

_FILES, _DIRECTORY = 40_000, 40
_MEAN_BYTES = 20_000
_CHANGED_BYTES = 1_000_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.archive", description=__doc__)
    parser.add_argument("--files", type=int, default=_FILES)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("mounting needs root")
    base = Path(os.environ.get("SKERRY_BENCH_HOME", "/var/tmp"))
    with tempfile.TemporaryDirectory(prefix="skerry-bench-archive-", dir=base) as directory:
        home = Path(directory)
        with _pool(home) as pool:
            rows = asyncio.run(_measure(home, pool, chosen.files, chosen.rounds))
    print_table(rows)
    return 0


@contextmanager
def _pool(home: Path) -> Iterator[Path]:
    image, pool = home / "pool.img", home / "pool"
    with image.open("wb") as file:
        file.truncate(16 << 30)
    pool.mkdir()
    subprocess.run(["mkfs.btrfs", "-q", image], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["mount", "-o", "loop,noatime,nosuid,nodev", image, pool], check=True)
    try:
        yield pool
    finally:
        subprocess.run(["umount", pool], check=True)


async def _measure(home: Path, pool: Path, files: int, rounds: int) -> list[Row]:
    tree = pool / "tree"
    megabytes = _fill(tree, files) / 1e6
    subprocess.run(["tar", "cf", home / "tree.tar", "-C", tree, "."], check=True)
    os.sync()
    first, second, sent, restored, untarred = ([] for _ in range(5))
    for number in range(rounds):
        vault = Vault(new_vault_id(), os.urandom(32))
        archiver = Archiver(Place(f"file://{home}/store"), home / "cache")
        took, _ = await _archive(archiver, tree, vault)
        first.append(megabytes / took)
        _change(tree, number)
        await asyncio.sleep(1.1)  # younger changes are read again
        took, archive = await _archive(archiver, tree, vault)
        second.append(took)
        sent.append(archive.stored_bytes / 1e6)
        into = pool / f"back{number}"
        into.mkdir()
        began = time.perf_counter()
        await _last(archiver.fetch(into, archive, vault, cache_name="back"))
        restored.append(time.perf_counter() - began)
        os.sync()
        untarred.append(_seconds(lambda number=number: _untar(home, pool / f"tar{number}")))
        os.sync()
    return [
        row(f"first archive of {megabytes:.0f} MB / {files} files", "", first, "MB/s", at_least=80),
        row("second, 1 MB changed", "", second, "s", at_most=1),
        row("  sent by it", "", sent, "MB", at_most=1.5),
        row(
            "restore (floor: tar x)",
            "",
            restored,
            "s",
            floor=untarred,
            at_most=round(megabytes / 80, 1),
            at_most_ratio=2.5,
        ),
    ]


def _fill(tree: Path, files: int) -> int:
    """Half text, half noise, sizes as of a project with its packages. Returns the bytes."""
    chosen = random.Random(5)
    noise = chosen.randbytes(1 << 22)
    words = [chosen.randbytes(chosen.randint(2, 9)).hex().encode() for _ in range(4000)]
    text = b" ".join(chosen.choices(words, k=400_000))
    total = 0
    for i in range(files):
        directory = tree / f"d{i // _DIRECTORY // 25}" / f"e{i // _DIRECTORY}"
        if i % _DIRECTORY == 0:
            directory.mkdir(parents=True, exist_ok=True)
        size = min(int(chosen.expovariate(1 / _MEAN_BYTES)), 1_000_000)
        source = text if i % 2 else noise
        start = chosen.randrange(len(source) - size)
        (directory / f"file{i}").write_bytes(source[start : start + size])
        total += size
    return total


def _change(tree: Path, number: int) -> None:
    """One megabyte, in fifty files."""
    for i in range(50):
        (tree / f"d0/e{i % 25}/changed{i}").write_bytes(os.urandom(_CHANGED_BYTES // 50))


async def _archive(archiver: Archiver, tree: Path, vault: Vault) -> tuple[float, Archive]:
    began = time.perf_counter()
    moved = await _last(archiver.archive(tree, vault, captured_at=datetime.now(UTC), cache_name="tree"))
    assert moved.archive is not None
    return time.perf_counter() - began, moved.archive


async def _last(moves: AsyncIterator[Moved]) -> Moved:
    return [one async for one in moves][-1]


def _untar(home: Path, into: Path) -> None:
    into.mkdir()
    subprocess.run(["tar", "xf", home / "tree.tar", "-C", into], check=True)


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    raise SystemExit(main())

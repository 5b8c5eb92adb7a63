"""A stand-in for the archiver: an archive is a copy of its tree in a directory. Slow where a test wants it."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncGenerator, Collection
from datetime import datetime
from pathlib import Path

from skerry.model.capture import Archive, Moved, Swept, Vault
from skerry.model.errors import NotFound, Unavailable
from skerry.model.ids import ArchiveId, is_id, new_archive_id

STEPS = 5


class CopyingArchiver:
    """While the file `slow` is in its directory every step takes a while; `down`: it cannot be used."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.gate = asyncio.Event()
        self.gate.set()
        self.cache_names: list[str] = []
        self.forgotten: list[str] = []
        self.known: set[str] = set()
        self.under_way = 0

    async def archive(
        self, tree: Path, vault: Vault, *, captured_at: datetime, cache_name: str
    ) -> AsyncGenerator[Moved]:
        self.cache_names.append(cache_name)
        self.known.add(cache_name)
        made = new_archive_id()
        target = self._directory / vault.id / made
        self.under_way += 1
        try:
            await self._wait(tree)
            for step in range(STEPS):
                yield Moved(step, STEPS)
                await self._wait(tree)
            target.parent.mkdir(parents=True, exist_ok=True)
            size = _copy(tree, target)
            archive = Archive(made, size, size, sum(1 for _ in target.rglob("*")), 0)
            yield Moved(STEPS, STEPS, size, archive)
        finally:
            self.under_way -= 1

    async def fetch(self, into: Path, archive: Archive, vault: Vault, *, cache_name: str) -> AsyncGenerator[Moved]:
        self.cache_names.append(cache_name)
        self.known.add(cache_name)
        source = self._directory / vault.id / archive.id
        if not source.is_dir():
            raise NotFound("The vault has no such archive.", code="archive_missing")
        for step in range(STEPS):
            (into / f".half-{step}").touch()
            yield Moved(step, STEPS)
            await self._wait(into)
        for half in list(into.glob(".half-*")):  # noqa: ASYNC240 - a stand-in for tests
            half.unlink()
        _copy(source, into)
        yield Moved(STEPS, STEPS, archive.size_bytes)

    async def sweep(
        self, vault: Vault, keep: Collection[ArchiveId], *, older_than_s: float, dry: bool = False
    ) -> Swept:
        there = sorted((self._directory / vault.id).glob("arc_*"))
        assert all(is_id(path.name, "arc") for path in there)
        going = [path for path in there if path.name not in keep]
        for path in [] if dry else going:
            shutil.rmtree(path)
        return Swept(len(there), len(there), len(going), len(going))

    async def forget(self, cache_name: str) -> None:
        self.forgotten.append(cache_name)
        self.known.discard(cache_name)

    async def remembered(self) -> set[str]:
        return set(self.known)

    async def _wait(self, tree: Path) -> None:
        await self.gate.wait()
        if (self._directory / "down").exists():
            raise Unavailable("The stand-in for an object store is down.")
        await asyncio.sleep(0.2 if (self._directory / "slow").exists() else 0)


def _copy(source: Path, target: Path) -> int:
    subprocess.run(["cp", "-a", "--no-target-directory", source, target], check=True)
    told = subprocess.run(["du", "-sbx", target], check=True, capture_output=True, text=True)
    return int(json.loads(told.stdout.split()[0]))

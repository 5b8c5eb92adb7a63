"""Archives keep their promises on every kind of object store, through real workers."""

import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from conformance.weed_process import ACCESS_KEY, BUCKET, SECRET_KEY, Weed
from unit.blobs.trees import assert_same

from skerry.blobs.jobs import Archiver
from skerry.blobs.store import Place
from skerry.model.capture import Archive, Moved, Vault
from skerry.model.errors import NotFound
from skerry.model.ids import new_vault_id


async def last(moves: AsyncIterator[Moved]) -> Moved:
    return [one async for one in moves][-1]


class ArchiverSuite:
    """Give it a `place` fixture."""

    async def test_archives_share_what_they_have_and_are_swept_apart(self, place: Place, tmp_path: Path) -> None:
        vault = Vault(new_vault_id(), os.urandom(32))
        archiver = Archiver(place, tmp_path / "cache")
        tree = tmp_path / "tree"
        tree.mkdir()
        for i in range(25):
            (tree / f"file{i}").write_bytes(os.urandom(1_000_000))
        first = await self.archived(archiver, tree, vault)
        (tree / "file3").write_bytes(os.urandom(500_000))
        second = await self.archived(archiver, tree, vault)
        assert first.stored_bytes > 25_000_000
        assert second.stored_bytes < 600_000

        swept = await archiver.sweep(vault, [second.id], older_than_s=-60)
        assert (swept.archives, swept.freed_objects) == (2, 1)
        elsewhere = Archiver(place, tmp_path / "nothing remembered")
        back = tmp_path / "back"
        back.mkdir()
        moved = await last(elsewhere.fetch(back, second, vault, cache_name="back"))
        assert moved.sent_bytes > 24_000_000
        assert_same(tree, back)
        with pytest.raises(NotFound):
            await last(elsewhere.fetch(back, first, vault, cache_name="back"))

    async def archived(self, archiver: Archiver, tree: Path, vault: Vault) -> Archive:
        moved = await last(archiver.archive(tree, vault, captured_at=datetime.now(UTC), cache_name="tree"))
        assert moved.archive is not None
        return moved.archive


class TestFiles(ArchiverSuite):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        return Place(f"file://{tmp_path}/store")


class TestS3(ArchiverSuite):
    @pytest.fixture
    def place(self, s3: Weed) -> Place:
        return Place(f"s3://{BUCKET}/archives", s3.endpoint, "us-east-1", ACCESS_KEY, SECRET_KEY)

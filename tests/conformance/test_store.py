"""Every store keeps the same contract. A new one is one class here."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skerry.store import open_store
from skerry.testing.memory_store import MemoryStore
from skerry.testing.store_suite import StoreSuite


class TestMemory(StoreSuite):
    @pytest.fixture
    async def store(self) -> MemoryStore:
        return MemoryStore()


class TestSqlite(StoreSuite):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[object]:
        store = await open_store(f"sqlite:///{tmp_path}/new/skerry.db")
        yield store
        await store.close()

"""Control over a store in memory, a fake fleet and a clock that tests move."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from skerry.config import Config
from skerry.control.deps import Deps
from skerry.model.account import Account
from skerry.testing.clock import ManualClock
from skerry.testing.fake_provider import FakeProvider
from skerry.testing.memory_store import MemoryStore
from skerry.testing.store_suite import add_account


@dataclass(frozen=True)
class World:
    """`crash` is what a kill -9 of the API leaves: the store and the fleet, and a new process that knows nothing."""

    deps: Deps
    store: MemoryStore
    provider: FakeProvider
    clock: ManualClock
    account: Account

    async def crash(self) -> "World":
        await self.deps.tasks.close()
        deps = Deps(self.store, self.provider, self.clock, self.deps.config, sole=self.deps.sole)
        return World(deps, self.store, self.provider, self.clock, self.account)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    clock, provider = ManualClock(), FakeProvider()
    store = MemoryStore(clock)
    deps = Deps(store, provider, clock, Config(home=tmp_path))
    yield World(deps, store, provider, clock, await add_account(store))
    await deps.tasks.close()
    await provider.close()


async def until(condition: Callable[[], object], deadline_s: float = 10) -> None:
    """Wait for a condition that other tasks bring about."""
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110 (the condition is another task's doing)
            await asyncio.sleep(0.001)


async def recorded(world: World, deadline_s: float = 10) -> None:
    """Wait until a command is on record."""
    async with asyncio.timeout(deadline_s):
        while not await world.store.list_commands():  # noqa: ASYNC110 (the record is another task's doing)
            await asyncio.sleep(0.001)

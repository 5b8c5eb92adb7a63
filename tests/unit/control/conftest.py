"""Control over a store in memory, a fake fleet and a clock that tests move."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from skerry.config import Config
from skerry.control import sandboxes
from skerry.control.deps import Deps
from skerry.control.sandboxes import NewSandbox
from skerry.model.account import Account
from skerry.model.lifecycle import State
from skerry.model.sandbox import Sandbox
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
        return self.beside()

    def beside(self, **settings: object) -> "World":
        """Another process on the same store and fleet."""
        config = self.deps.config.model_copy(update=settings)
        deps = Deps(self.store, self.provider, self.clock, config, sole=self.deps.sole)
        return World(deps, self.store, self.provider, self.clock, self.account)

    async def made(self, **wanted: Any) -> Sandbox:
        return await sandboxes.create(self.deps, self.account.id, NewSandbox(**wanted))

    async def now(self, sandbox: Sandbox) -> Sandbox:
        return await self.store.get_sandbox(sandbox.id)

    def write(self, sandbox: Sandbox, path: str, data: bytes = b"kept") -> None:
        self.provider.sandboxes[sandbox.id].guest.files.put(path, data)

    def read(self, sandbox: Sandbox, path: str) -> bytes:
        return self.provider.sandboxes[sandbox.id].guest.files.data(path)

    def has(self, sandbox: Sandbox, path: str) -> bool:
        return path in self.provider.sandboxes[sandbox.id].guest.files.nodes

    async def in_state(self, sandbox: Sandbox, state: State, deadline_s: float = 10) -> Sandbox:
        """The record once it is in a state that other tasks bring about."""
        async with asyncio.timeout(deadline_s):
            while (now := await self.store.get_sandbox(sandbox.id)).state is not state:  # noqa: ASYNC110 (as in `until`)
                await asyncio.sleep(0.001)
        return now


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    clock = ManualClock()
    provider = FakeProvider(clock)
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

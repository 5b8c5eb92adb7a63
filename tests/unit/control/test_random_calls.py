"""Many clients at once, without order: each answer is consistent, and in the end nothing is stuck or left over."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skerry.config import Config
from skerry.control import commands, forks, reconcile, resuming, sandboxes, snapshots, stopping
from skerry.control.commands import NewCommand
from skerry.control.deps import Deps
from skerry.model.errors import Conflict, Invalid, NotFound, SandboxGone, SkerryError
from skerry.model.ids import SandboxId
from skerry.model.lifecycle import Cause, State
from skerry.seams import Store
from skerry.store import open_store
from skerry.testing.clock import ManualClock
from skerry.testing.fake_provider import FakeProvider
from skerry.testing.memory_store import MemoryStore
from skerry.testing.store_suite import add_account

_CALLS, _CLIENTS = 50, 8
_ALLOWED = (Conflict, NotFound, Invalid, SandboxGone)


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    clock = ManualClock()
    opened: Store = MemoryStore(clock)
    if request.param == "sqlite":
        opened = await open_store(f"sqlite:///{tmp_path}/a.db", clock)
    yield opened
    await opened.close()


class Clients:
    """They know some sandboxes and do something to one of them, again and again."""

    def __init__(self, deps: Deps, account_id: object, seed: int) -> None:
        self.deps = deps
        self.account_id = account_id
        self.chance = random.Random(seed)
        self.known: list[SandboxId] = []
        self.left = _CALLS
        self.faults: list[BaseException] = []

    async def run(self) -> None:
        while self.left:
            self.left -= 1
            try:
                async with asyncio.timeout(20):
                    await self.one()
            except _ALLOWED:
                pass
            except (SkerryError, TimeoutError) as error:
                self.faults.append(error)
            await asyncio.sleep(self.chance.random() / 200)

    async def one(self) -> None:
        args = (self.deps, self.account_id, self.chance.choice(self.known))
        match self.chance.randrange(9):
            case 0:
                wanted = sandboxes.NewSandbox(restore_from=args[2])
                self.known.append((await sandboxes.create(*args[:2], wanted)).id)
            case 1 | 2:
                stopped = await stopping.stop(*args, force=self.chance.random() < 0.5)
                assert stopped.state is not State.FAILED
            case 3 | 4:
                assert (await resuming.resume(*args)).state is State.RUNNING
            case 5:
                made = await forks.fork(*args, count=self.chance.randrange(1, 4))
                self.known += [each.id for each in made if not isinstance(each, SkerryError)]
            case 6:
                taken = await snapshots.create(*args)
                if self.chance.random() < 0.5:
                    await snapshots.delete(*args[:2], taken.id)
            case 7:
                result = await commands.run(*args, NewCommand(shell="cat a"))
                assert result.command.exit is not None
                if result.command.exit.code is not None:
                    assert result.captured.stdout == b"kept"
            case _:
                if len(self.known) > 3:
                    await sandboxes.destroy(*args)


@pytest.mark.parametrize("seed", range(6))
async def test_50_random_lifecycle_calls_from_8_clients_leave_nothing_stuck(
    store: Store, seed: int, tmp_path: Path
) -> None:
    clock = ManualClock()
    provider = FakeProvider(clock)
    deps = Deps(store, provider, clock, Config(home=tmp_path))
    account = await add_account(store)
    clients = Clients(deps, account.id, seed)
    first = await sandboxes.create(deps, account.id, sandboxes.NewSandbox())
    provider.sandboxes[first.id].guest.files.put("/workspace/a", b"kept")
    made = await forks.fork(deps, account.id, first.id, count=4)
    clients.known += [each.id for each in made if not isinstance(each, SkerryError)]
    reconciling = asyncio.ensure_future(_reconcile(deps))
    async with asyncio.TaskGroup() as group:
        for _ in range(_CLIENTS):
            group.create_task(clients.run())
    reconciling.cancel()
    await asyncio.gather(reconciling, return_exceptions=True)
    assert clients.faults == []
    await _check(deps, provider)
    await deps.tasks.close()
    await provider.close()


async def _reconcile(deps: Deps) -> None:
    while True:
        await reconcile.once(deps)
        await asyncio.sleep(0.005)


async def _check(deps: Deps, provider: FakeProvider) -> None:
    async with asyncio.timeout(20):
        while deps.work.stopping or deps.work.storing or deps.coming_up or deps.work.held:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    for _ in range(3):
        await reconcile.once(deps)
    records = await deps.store.list_sandboxes()
    # A copy whose source was destroyed under it is the one thing that fails.
    lost = [each for each in records if each.state is State.FAILED]
    assert [each.cause for each in lost if "are lost" not in each.detail] == []
    assert {each.state for each in records} <= {State.RUNNING, State.STOPPED, State.DESTROYED, State.FAILED}
    assert all(each.cause is Cause.CREATE for each in lost)
    there = {each.id for each in records if each.state is not State.DESTROYED}
    assert set(provider.sandboxes) <= there
    running = {each.id for each in records if each.state is State.RUNNING}
    assert {each for each, held in provider.sandboxes.items() if held.running} == running
    assert set(provider.trees_held) <= {each.id for each in await deps.store.list_snapshots()} | there
    live = await deps.store.list_commands(running=True)
    assert {command.sandbox_id for command in live} <= running

"""The process dies at any moment of a stop, a resume, a fork, a snapshot: the next one finishes or undoes; nothing is
lost, nothing is stuck, nothing is left over."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from skerry.config import Config
from skerry.control import forks, reconcile, resuming, sandboxes, snapshots, stopping
from skerry.control.deps import Deps
from skerry.control.sandboxes import NewSandbox
from skerry.model.lifecycle import Cause, State
from skerry.model.sandbox import Sandbox
from skerry.model.snapshot import SnapshotState
from skerry.testing.clock import ManualClock
from skerry.testing.fake_provider import FakeProvider
from skerry.testing.memory_store import MemoryStore
from skerry.testing.store_suite import add_account

from .conftest import World, until

Call = Callable[[World, Sandbox], Awaitable[object]]
_MOST_STEPS = 400


async def stop(world: World, sandbox: Sandbox) -> object:
    return await stopping.stop(world.deps, world.account.id, sandbox.id)


async def resume(world: World, sandbox: Sandbox) -> object:
    return await resuming.resume(world.deps, world.account.id, sandbox.id)


async def fork(world: World, sandbox: Sandbox) -> object:
    return await forks.fork(world.deps, world.account.id, sandbox.id)


async def forks_3(world: World, sandbox: Sandbox) -> object:
    return await forks.fork(world.deps, world.account.id, sandbox.id, count=3)


async def snapshot(world: World, sandbox: Sandbox) -> object:
    return await snapshots.create(world.deps, world.account.id, sandbox.id)


async def restore(world: World, sandbox: Sandbox) -> object:
    return await sandboxes.create(world.deps, world.account.id, NewSandbox(restore_from=sandbox.id, idle_timeout_s=0))


async def snapshot_and_delete(world: World, sandbox: Sandbox) -> object:
    taken = await snapshots.create(world.deps, world.account.id, sandbox.id)
    return await snapshots.delete(world.deps, world.account.id, taken.id)


async def destroy(world: World, sandbox: Sandbox) -> object:
    return await sandboxes.destroy(world.deps, world.account.id, sandbox.id)


async def running(world: World) -> Sandbox:
    sandbox = await world.made(idle_timeout_s=0)
    world.write(sandbox, "/workspace/a")
    return sandbox


async def stopped(world: World) -> Sandbox:
    return await stopping.stop(world.deps, world.account.id, (await running(world)).id)


async def lost_by_its_node(world: World) -> Sandbox:
    sandbox = await stopped(world)
    await world.provider.lose(sandbox.id)
    return sandbox


async def failed(world: World) -> Sandbox:
    sandbox = await running(world)
    await world.provider.die(sandbox.id, Cause.OOM)
    await reconcile.once(world.deps)
    return await world.now(sandbox)


CASES: list[tuple[Callable[[World], Awaitable[Sandbox]], Call]] = [
    (running, stop),
    (failed, stop),
    (stopped, resume),
    (lost_by_its_node, resume),
    (failed, resume),
    (running, fork),
    (running, forks_3),
    (lost_by_its_node, fork),
    (lost_by_its_node, forks_3),
    (running, snapshot),
    (stopped, snapshot),
    (lost_by_its_node, snapshot),
    (running, restore),
    (lost_by_its_node, restore),
    (running, snapshot_and_delete),
    (stopped, destroy),
]


async def new_world(path: Path) -> World:
    clock = ManualClock()
    store, provider = MemoryStore(clock), FakeProvider(clock)
    return World(Deps(store, provider, clock, Config(home=path)), store, provider, clock, await add_account(store))


async def killed_after(world: World, steps: int, call: Awaitable[object]) -> bool:
    """Let a call run for so many turns of the loop, then kill its process. Whether it had come to its end by then."""
    calling = asyncio.ensure_future(call)
    for _ in range(steps):
        if calling.done():
            break
        await asyncio.sleep(0)
    ended = calling.done()
    calling.cancel()
    await world.deps.tasks.close()
    await asyncio.gather(calling, return_exceptions=True)
    return ended


async def settled(world: World) -> None:
    work = world.deps.work
    for _ in range(6):
        await reconcile.once(world.deps)
        await until(lambda: not work.stopping and not work.storing)


async def check(world: World) -> None:
    """Records and fleet agree, and whatever has not been destroyed has its file, wherever it is."""
    records = {each.id: each for each in await world.store.list_sandboxes()}
    for sandbox in records.values():
        assert sandbox.state in (State.RUNNING, State.STOPPED, State.DESTROYED, State.FAILED), sandbox
        if sandbox.state in (State.DESTROYED, State.FAILED) and sandbox.cause in (None, Cause.CREATE):
            assert sandbox.id not in world.provider.sandboxes
    running = {sandbox.id for sandbox in records.values() if sandbox.state is State.RUNNING}
    assert {each for each, held in world.provider.sandboxes.items() if held.running} == running
    ready = await world.store.list_snapshots()
    assert all(each.state is SnapshotState.READY and each.archive is not None for each in ready)
    stopped = {each.id for each in records.values() if each.state is State.STOPPED}
    assert set(world.provider.trees_held) <= {each.id for each in ready} | stopped
    for each in records.values():
        if each.state is State.RUNNING or (each.state is State.FAILED and each.cause is not Cause.CREATE):
            assert world.read(each, "/workspace/a") == b"kept"
        if each.state is State.STOPPED:
            await resume(world, each)
            assert world.read(each, "/workspace/a") == b"kept"
    for taken in ready:
        made = await world.made(snapshot_id=taken.id, idle_timeout_s=0)
        assert world.read(made, "/workspace/a") == b"kept"


@pytest.mark.parametrize(("prepare", "call"), CASES, ids=[f"{a.__name__}-{b.__name__}" for a, b in CASES])
async def test_x2_f34_killed_at_any_step_it_is_finished_or_undone(
    prepare: Callable[[World], Awaitable[Sandbox]], call: Call, tmp_path: Path
) -> None:
    for steps in range(_MOST_STEPS):
        world = await new_world(tmp_path)
        sandbox = await prepare(world)
        await settled(world)
        ended = await killed_after(world, steps, call(world, sandbox))
        after = await world.crash()
        await settled(after)
        await check(after)
        if call is not destroy:
            assert (await world.now(sandbox)).state is not State.DESTROYED
        await after.deps.tasks.close()
        await world.provider.close()
        if ended:
            return
    pytest.fail(f"not done after {_MOST_STEPS} turns")

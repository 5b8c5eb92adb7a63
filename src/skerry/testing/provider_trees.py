"""What every `Provider` does with the files of sandboxes that stop, are copied, stored and come back, as tests.

A part of `ProviderSuite`.
"""

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

import pytest

from skerry.model.capture import Archive, Moved, Vault
from skerry.model.command import ExecSpec
from skerry.model.errors import Conflict, NotFound, SandboxGone
from skerry.model.ids import (
    SandboxId,
    TreeId,
    new_archive_id,
    new_capture_id,
    new_command_id,
    new_sandbox_id,
    new_snapshot_id,
    new_vault_id,
)
from skerry.model.sandbox import Observed, SandboxSpec
from skerry.testing.provider_world import DEADLINE_S, World, got, put, read, spec_for, started

NOTE = "/workspace/notes/one"


def own(sandbox_id: SandboxId) -> TreeId:
    return TreeId(sandbox_id)


def a_snapshot() -> TreeId:
    return TreeId(new_snapshot_id())


def a_vault() -> Vault:
    return Vault(new_vault_id(), bytes(range(32)))


async def made(world: World, note: bytes = b"kept", **changes: object) -> SandboxSpec:
    """A sandbox with a file in its workspace."""
    spec = spec_for(world, **changes)
    await world.provider.create(spec)
    await put(world, spec.id, NOTE, note)
    return spec


async def stopped(world: World, note: bytes = b"kept") -> SandboxSpec:
    spec = await made(world, note)
    await world.provider.stop(spec.id, spec.generation)
    return spec


async def copied(world: World, tree: TreeId) -> SandboxSpec:
    """A sandbox that begins with a copy of `tree`."""
    spec = spec_for(world)
    await world.provider.create(spec, tree)
    return spec


async def moved(steps: object) -> list[Moved]:
    async with asyncio.timeout(DEADLINE_S), aclosing(cast(Any, steps)) as moving:
        return [step async for step in moving]


async def archived(world: World, tree: TreeId, vault: Vault) -> Archive:
    last = (await moved(world.provider.archive(tree, vault)))[-1]
    assert last.archive is not None
    return last.archive


async def held(world: World) -> set[TreeId]:
    return {tree.id for tree in await world.provider.trees()}


class TreesSuite:
    """See the module."""

    # -- stop and resume ---------------------------------------------------------------------------------------

    async def test_a_stopped_sandbox_keeps_its_workspace_and_nothing_else(self, world: World) -> None:
        spec = await made(world)
        await put(world, spec.id, "/tmp/outside", b"lost")
        running = await started(world, spec.id, "sleep 300")
        await world.provider.stop(spec.id, 1)
        assert await world.provider.list() == [Observed(spec.id, 1, running=False, stopped=True)]
        assert await held(world) == {own(spec.id)}
        with pytest.raises(SandboxGone):
            await world.provider.guest(spec.id).exec(ExecSpec(id=new_command_id(), shell="true"))
        _, end = await read(world.provider.output(spec.id, running))
        assert end is not None and (end.code, end.signal) == (None, None)
        assert (await world.provider.metrics(spec.id)).now is None
        await world.provider.create(replace(spec, generation=2), own(spec.id))
        assert await world.provider.list() == [Observed(spec.id, 2, running=True)]
        assert await got(world, spec.id, NOTE) == b"kept"
        assert await got(world, spec.id, "/tmp/outside") is None
        assert await held(world) == set()

    async def test_a_stop_is_done_once_and_an_old_one_does_nothing(self, world: World) -> None:
        spec = await made(world)
        await asyncio.gather(world.provider.stop(spec.id, 1), world.provider.stop(spec.id, 1))
        await world.provider.stop(spec.id, 1)
        await world.provider.create(replace(spec, generation=2), own(spec.id))
        await world.provider.stop(spec.id, 1)
        assert await world.provider.list() == [Observed(spec.id, 2, running=True)]
        with pytest.raises(NotFound):
            await world.provider.stop(new_sandbox_id(), 1)

    async def test_a_late_create_of_what_was_stopped_is_a_conflict(self, world: World) -> None:
        spec = await stopped(world)
        for tree in (None, own(spec.id)):
            with pytest.raises(Conflict):
                await world.provider.create(spec, tree)
        assert await world.provider.list() == [Observed(spec.id, 1, running=False, stopped=True)]

    async def test_the_same_resume_again_gives_the_same_answer(self, world: World) -> None:
        spec = replace(await stopped(world), generation=2)
        first = await world.provider.create(spec, own(spec.id))
        assert await world.provider.create(spec, own(spec.id)) == first
        assert await world.provider.list() == [Observed(spec.id, 2, running=True)]

    async def test_a_dead_sandbox_is_stopped_or_resumed_with_its_files(self, world: World) -> None:
        for stops in (True, False):
            spec = await made(world)
            await world.die(spec.id)
            await self._is_dead(world, spec.id)
            if stops:
                await world.provider.stop(spec.id, 1)
                assert await world.provider.list() == [Observed(spec.id, 1, running=False, stopped=True)]
            await world.provider.create(replace(spec, generation=2), own(spec.id))
            assert await world.provider.list() == [Observed(spec.id, 2, running=True)]
            assert await got(world, spec.id, NOTE) == b"kept"
            await world.provider.destroy(spec.id)

    async def test_what_is_not_kept_cannot_be_resumed(self, world: World) -> None:
        spec = spec_for(world)
        with pytest.raises(NotFound) as caught:
            await world.provider.create(spec, own(spec.id))
        assert caught.value.code == "tree_missing"
        assert await world.provider.list() == []

    async def test_a_resume_that_fails_leaves_the_files_and_can_be_tried_again(self, world: World) -> None:
        spec = await stopped(world)
        with pytest.raises(NotFound):
            await world.provider.create(replace(spec, generation=2, template="no-such"), own(spec.id))
        assert await world.provider.list() == [Observed(spec.id, 1, running=False, stopped=True)]
        await world.provider.create(replace(spec, generation=2), own(spec.id))
        assert await got(world, spec.id, NOTE) == b"kept"

    async def test_destroy_takes_the_files_of_a_stopped_one(self, world: World) -> None:
        spec = await stopped(world)
        await world.provider.destroy(spec.id)
        assert await world.provider.list() == [] and await held(world) == set()
        with pytest.raises(NotFound):
            await world.provider.create(replace(spec, generation=2), own(spec.id))

    # -- captures and copies -----------------------------------------------------------------------------------

    async def test_a_capture_is_of_one_instant_and_disturbs_nobody(self, world: World) -> None:
        spec, tree = await made(world), a_snapshot()
        running = await started(world, spec.id, "sleep 300")
        await world.provider.capture(spec.id, tree)
        await put(world, spec.id, NOTE, b"changed")
        await world.provider.capture(spec.id, tree)  # there is such a tree: nothing happens
        assert (await world.provider.command_exits([running]))[running] is None
        assert await held(world) == {tree}
        copy = await copied(world, tree)
        assert await got(world, copy.id, NOTE) == b"kept"
        await put(world, copy.id, NOTE, b"the copy's own")
        assert await got(world, (await copied(world, tree)).id, NOTE) == b"kept"
        assert await got(world, spec.id, NOTE) == b"changed"

    async def test_a_capture_outlives_its_source(self, world: World) -> None:
        spec, tree = await stopped(world), new_capture_id()
        await world.provider.capture(spec.id, tree)
        await world.provider.destroy(spec.id)
        assert await held(world) == {tree}
        copy = await copied(world, tree)
        await world.provider.drop(tree)
        await world.provider.drop(tree)
        assert await held(world) == set()
        assert await got(world, copy.id, NOTE) == b"kept"

    async def test_what_is_not_there_cannot_be_captured_or_copied(self, world: World) -> None:
        for missing in (world.provider.capture(new_sandbox_id(), a_snapshot()), copied(world, a_snapshot())):
            with pytest.raises(NotFound) as caught:
                await missing
            assert caught.value.code == "tree_missing"
        with pytest.raises(NotFound):
            await copied(world, own(new_sandbox_id()))
        assert await world.provider.list() == [] and await held(world) == set()

    async def test_running_and_stopped_sandboxes_are_copied_and_go_on(self, world: World) -> None:
        running, resting = await made(world, b"running"), await stopped(world, b"resting")
        copies = await asyncio.gather(*(copied(world, own(source.id)) for source in (running, resting) * 2))
        notes = [await got(world, copy.id, NOTE) for copy in copies]
        assert notes == [b"running", b"resting"] * 2
        await put(world, copies[0].id, NOTE, b"changed")
        assert await got(world, running.id, NOTE) == b"running"
        await world.provider.create(replace(resting, generation=2), own(resting.id))
        assert await got(world, resting.id, NOTE) == b"resting"

    async def test_a_running_sandbox_s_tree_is_not_dropped(self, world: World) -> None:
        spec = await made(world)
        with pytest.raises(Conflict):
            await world.provider.drop(own(spec.id))
        await world.provider.stop(spec.id, 1)
        await world.provider.drop(own(spec.id))
        await world.provider.drop(own(spec.id))
        await world.provider.drop(a_snapshot())
        assert await world.provider.list() == [] and await held(world) == set()

    # -- the object store --------------------------------------------------------------------------------------

    async def test_an_archive_comes_back_after_the_loss_of_the_tree(self, world: World) -> None:
        spec, vault = await stopped(world), a_vault()
        archive = await archived(world, own(spec.id), vault)
        await world.provider.drop(own(spec.id))
        await moved(world.provider.fetch(own(spec.id), archive, vault))
        assert await held(world) == {own(spec.id)}
        assert [seen.stopped for seen in await world.provider.list()] == [True]
        await world.provider.create(replace(spec, generation=2), own(spec.id))
        assert await got(world, spec.id, NOTE) == b"kept"

    async def test_a_captured_tree_is_archived_and_fetched_for_many(self, world: World) -> None:
        spec, tree, vault = await made(world), a_snapshot(), a_vault()
        await world.provider.capture(spec.id, tree)
        archive = await archived(world, tree, vault)
        await world.provider.drop(tree)
        await asyncio.gather(*(moved(world.provider.fetch(tree, archive, vault)) for _ in range(2)))
        copies = [await copied(world, tree) for _ in range(2)]
        assert [await got(world, copy.id, NOTE) for copy in copies] == [b"kept", b"kept"]

    async def test_what_is_held_is_not_fetched_over(self, world: World) -> None:
        spec, vault = await stopped(world), a_vault()
        archive = await archived(world, own(spec.id), vault)
        await world.provider.create(replace(spec, generation=2), own(spec.id))
        await put(world, spec.id, NOTE, b"newer")
        await moved(world.provider.fetch(own(spec.id), archive, vault))
        assert await got(world, spec.id, NOTE) == b"newer"

    async def test_a_running_sandbox_and_what_is_not_there_are_not_archived(self, world: World) -> None:
        spec = await made(world)
        with pytest.raises(Conflict):
            await moved(world.provider.archive(own(spec.id), a_vault()))
        for tree in (own(new_sandbox_id()), a_snapshot()):
            with pytest.raises(NotFound) as caught:
                await moved(world.provider.archive(tree, a_vault()))
            assert caught.value.code == "tree_missing"

    async def test_an_archive_that_nobody_has_leaves_nothing(self, world: World) -> None:
        tree, unknown = a_snapshot(), Archive(new_archive_id(), 1, 1, 1, 0)
        with pytest.raises(NotFound) as caught:
            await moved(world.provider.fetch(tree, unknown, a_vault()))
        assert caught.value.code == "archive_missing"
        assert await held(world) == set()

    async def test_an_archive_that_is_broken_off_can_be_made_again(self, world: World) -> None:
        spec, vault = await stopped(world), a_vault()
        async with aclosing(cast(Any, world.provider.archive(own(spec.id), vault))) as steps:
            async for _ in steps:
                break
        archive = await archived(world, own(spec.id), vault)
        await world.provider.destroy(spec.id)
        await moved(world.provider.fetch(own(spec.id), archive, vault))
        await world.provider.destroy(spec.id)
        assert await held(world) == set() and await world.provider.list() == []

    async def test_a_sweep_removes_nothing_that_is_to_be_kept(self, world: World) -> None:
        spec, vault = await stopped(world), a_vault()
        archive = await archived(world, own(spec.id), vault)
        await world.provider.sweep(vault, [], older_than_s=0, dry=True)
        await world.provider.sweep(vault, [archive.id], older_than_s=0)
        await world.provider.destroy(spec.id)
        await moved(world.provider.fetch(own(spec.id), archive, vault))
        await world.provider.create(replace(spec, generation=2), own(spec.id))
        assert await got(world, spec.id, NOTE) == b"kept"

    async def _is_dead(self, world: World, sandbox_id: SandboxId) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while any(  # noqa: ASYNC110 - a fleet has no other way to tell
                seen.running for seen in await world.provider.list() if seen.id == sandbox_id
            ):
                await asyncio.sleep(0.02)

"""What every `Provider` does, as tests. Inherit `ProviderSuite` and give a fixture `world` that yields a `World`.

Runs against the real node with real sandboxes and against `FakeProvider` alike: only what both can do. Each wait has a
deadline.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import cast

import pytest

from skerry.model.command import CommandEvent, ExecSpec, Output
from skerry.model.errors import Conflict, NotFound, SandboxGone
from skerry.model.ids import CommandId, SandboxId, new_command_id, new_sandbox_id
from skerry.model.sandbox import Observed
from skerry.model.template import TemplateStatus
from skerry.testing.provider_trees import TreesSuite
from skerry.testing.provider_world import DEADLINE_S, World, read, spec_for, started

__all__ = ["ProviderSuite", "World"]


class ProviderSuite(TreesSuite):
    """See the module."""

    async def test_it_says_what_it_can_do(self, world: World) -> None:
        told = await world.provider.capabilities()
        assert told.provider == world.provider.name
        assert "none" in told.network_modes and told.runtime

    async def test_a_sandbox_comes_and_goes(self, world: World) -> None:
        spec = spec_for(world, env={"WHO": "me"})
        placement = await world.provider.create(spec)
        assert placement.runtime and placement.template_digest
        assert await world.provider.list() == [Observed(spec.id, 1, running=True)]
        command = await started(world, spec.id, "echo $WHO; exit 4")
        said, end = await read(world.provider.guest(spec.id).attach(command))
        assert said == b"me\n" and end is not None and end.code == 4
        await world.provider.destroy(spec.id)
        assert await world.provider.list() == []

    async def test_the_same_create_again_gives_the_same_answer(self, world: World) -> None:
        spec = spec_for(world)
        first, second = await asyncio.gather(world.provider.create(spec), world.provider.create(spec))
        assert first == second == await world.provider.create(spec)
        assert len(await world.provider.list()) == 1

    async def test_an_older_generation_is_a_conflict(self, world: World) -> None:
        spec = spec_for(world, generation=3)
        await world.provider.create(spec)
        with pytest.raises(Conflict):
            await world.provider.create(replace(spec, generation=2))
        assert await world.provider.list() == [Observed(spec.id, 3, running=True)]

    async def test_an_unknown_template_is_not_found_and_nothing_is_left(self, world: World) -> None:
        with pytest.raises(NotFound) as caught:
            await world.provider.create(spec_for(world, template="no-such"))
        assert world.template in caught.value.message
        assert await world.provider.list() == []

    async def test_destroy_of_what_is_not_there_succeeds(self, world: World) -> None:
        await world.provider.destroy(new_sandbox_id())
        spec = spec_for(world)
        await world.provider.create(spec)
        await asyncio.gather(world.provider.destroy(spec.id), world.provider.destroy(spec.id))
        await world.provider.destroy(spec.id)

    async def test_a_destroyed_sandbox_may_be_made_again(self, world: World) -> None:
        spec = spec_for(world)
        await world.provider.create(spec)
        await world.provider.destroy(spec.id)
        await world.provider.create(spec)
        command = await started(world, spec.id, "echo again")
        assert (await read(world.provider.guest(spec.id).attach(command)))[0] == b"again\n"

    async def test_a_destroyed_sandbox_is_gone_for_its_guest(self, world: World) -> None:
        spec = spec_for(world)
        await world.provider.create(spec)
        await world.provider.destroy(spec.id)
        with pytest.raises(SandboxGone):
            await world.provider.guest(spec.id).exec(ExecSpec(id=new_command_id(), shell="true"))
        with pytest.raises(SandboxGone):
            await world.provider.guest(spec.id).stat("/")

    async def test_output_outlives_the_sandbox(self, world: World) -> None:
        spec = spec_for(world)
        await world.provider.create(spec)
        ended = await started(world, spec.id, "echo kept; exit 3")
        await read(world.provider.guest(spec.id).attach(ended))
        running = await started(world, spec.id, "echo half; sleep 300")
        await self._has_said(world, spec.id, running, b"half\n")
        await world.provider.destroy(spec.id)
        said, end = await read(world.provider.output(spec.id, ended, 2))
        assert said == b"pt\n" and end is not None and end.code == 3
        said, end = await read(world.provider.output(spec.id, running))
        assert said == b"half\n" and end is not None
        assert (end.code, end.signal, end.cause) == (None, None, "sandbox_gone")

    async def test_output_without_following_ends_at_what_there_is(self, world: World) -> None:
        spec = spec_for(world)
        await world.provider.create(spec)
        command = await started(world, spec.id, "echo now; sleep 300")
        await self._has_said(world, spec.id, command, b"now\n")
        assert await read(world.provider.output(spec.id, command, follow=False)) == (b"now\n", None)

    async def test_output_belongs_to_its_sandbox(self, world: World) -> None:
        spec = spec_for(world)
        await world.provider.create(spec)
        command = await started(world, spec.id, "echo mine")
        with pytest.raises(NotFound):
            await read(world.provider.output(new_sandbox_id(), command))
        with pytest.raises(NotFound):
            await read(world.provider.output(spec.id, new_command_id()))

    async def test_exits_are_told_and_unknown_commands_left_out(self, world: World) -> None:
        spec = spec_for(world)
        await world.provider.create(spec)
        ended, running = await started(world, spec.id, "exit 9"), await started(world, spec.id, "sleep 300")
        await read(world.provider.guest(spec.id).attach(ended))
        exits = await world.provider.command_exits([ended, running, new_command_id()])
        assert set(exits) == {ended, running} and exits[running] is None
        end = exits[ended]
        assert end is not None and end.code == 9

    async def test_a_death_is_told_seen_in_the_list_and_ends_what_ran(self, world: World) -> None:
        spec = spec_for(world)
        await world.provider.create(spec)
        running = await started(world, spec.id, "sleep 300")
        deaths = cast(AsyncGenerator[Observed], world.provider.watch())
        async with asyncio.timeout(DEADLINE_S), aclosing(deaths), asyncio.TaskGroup() as group:
            told = group.create_task(self._next(deaths))
            await asyncio.sleep(0.2)  # a watch tells what dies after it began, and has no moment that is seen outside
            await world.die(spec.id)
            seen = await told
        assert (seen.id, seen.running) == (spec.id, False) and seen.cause is not None
        (listed,) = await world.provider.list()
        assert (listed.running, listed.cause) == (False, seen.cause)
        _, end = await read(world.provider.output(spec.id, running))
        assert end is not None and (end.code, end.signal) == (None, None)
        with pytest.raises(SandboxGone):
            await world.provider.guest(spec.id).exec(ExecSpec(id=new_command_id(), shell="true"))
        await world.provider.destroy(spec.id)
        assert await world.provider.list() == []

    async def test_f17_what_a_running_sandbox_uses_is_counted(self, world: World) -> None:
        spec = spec_for(world)
        await world.provider.create(spec)
        told = await world.provider.metrics(spec.id)
        assert told.now is not None and told.interval_s > 0
        assert 0 < told.now.memory_bytes + told.now.memory_cache_bytes <= spec.limits.memory_mb << 20
        assert told.now.processes > 0 and told.now.cpu_ms > 0
        assert told.now.disk_bytes is None or 0 <= told.now.disk_bytes < spec.limits.disk_mb << 20
        assert (told.now.network_rx_bytes, told.now.network_tx_bytes) == (0, 0)

    async def test_a_dead_sandbox_uses_nothing_and_an_unknown_one_is_not_found(self, world: World) -> None:
        spec = spec_for(world)
        await world.provider.create(spec)
        await world.die(spec.id)
        async with asyncio.timeout(DEADLINE_S):
            while (await world.provider.list())[0].running:  # noqa: ASYNC110 - a fleet has no other way to tell
                await asyncio.sleep(0.02)
        assert (await world.provider.metrics(spec.id)).now is None
        await world.provider.destroy(spec.id)
        with pytest.raises(NotFound):
            await world.provider.metrics(spec.id)

    async def test_it_says_how_it_is(self, world: World) -> None:
        await world.provider.create(spec_for(world))
        told = await world.provider.health()
        assert told.runtime and told.running == 1 and 0 < told.pool_free_bytes <= told.pool_bytes

    async def test_a_ready_template_is_listed_and_its_build_ends(self, world: World) -> None:
        states = {state.name: state for state in await world.provider.templates()}
        assert states[world.template].status is TemplateStatus.READY
        async with asyncio.timeout(DEADLINE_S):
            assert all([step.fraction <= 1 async for step in world.provider.build_template(world.template)])
        with pytest.raises(NotFound):
            async for _ in world.provider.build_template("no-such"):
                pass

    async def _next(self, deaths: AsyncGenerator[Observed]) -> Observed:
        return await anext(deaths)

    async def _has_said(self, world: World, sandbox_id: SandboxId, command_id: CommandId, wanted: bytes) -> None:
        events = cast(AsyncGenerator[CommandEvent], world.provider.guest(sandbox_id).attach(command_id))
        said = b""
        async with asyncio.timeout(DEADLINE_S), aclosing(events):
            async for event in events:
                said += event.data if isinstance(event, Output) else b""
                if said == wanted:
                    return
        pytest.fail(f"the command said {said!r}")

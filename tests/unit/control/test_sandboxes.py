"""Creating and destroying: intent first, whoever leaves changes nothing, and many at once."""

import asyncio
import random

import pytest

from skerry.control import commands, sandboxes
from skerry.control.sandboxes import NewSandbox
from skerry.model.errors import Conflict, Invalid, NotFound, SkerryError, Unavailable
from skerry.model.ids import SandboxId
from skerry.model.lifecycle import Cause, State
from skerry.model.sandbox import NetworkMode
from skerry.model.template import TemplateStatus
from skerry.testing.store_suite import add_account

from .conftest import World, until


async def states(world: World) -> list[State]:
    return [sandbox.state for sandbox in await world.store.list_sandboxes()]


async def test_the_intent_is_on_record_before_the_provider_is_asked(world: World) -> None:
    world.provider.gate.clear()
    creating = asyncio.ensure_future(sandboxes.create(world.deps, world.account.id, NewSandbox()))
    await until(lambda: world.provider.created)
    assert await states(world) == [State.CREATING]
    world.provider.gate.set()
    assert (await creating).state is State.RUNNING


async def test_what_is_left_out_takes_the_servers_defaults(world: World) -> None:
    sandbox = await sandboxes.create(world.deps, world.account.id, NewSandbox())
    config = world.deps.config
    assert sandbox.template == config.default_template
    assert sandbox.limits.memory_mb == config.memory_mb
    assert sandbox.limits.processes == config.processes
    assert sandbox.timeout_s == config.command_timeout_s
    assert sandbox.network_mode is NetworkMode.BRIDGE
    assert (sandbox.runtime, sandbox.template_digest) == ("fake", "sha256:python")


async def test_f3_the_provider_is_given_the_home_and_none_of_the_sandboxes_own_env(world: World) -> None:
    # What a provider is given it writes down. A sandbox's own variables come with each command.
    sandbox = await sandboxes.create(world.deps, world.account.id, NewSandbox(env={"A": "b", "LANG": "C"}))
    env = world.provider.sandboxes[sandbox.id].spec.env
    assert (env["HOME"], env["XDG_DATA_HOME"]) == ("/workspace", "/workspace/.local/share")
    assert ("A" in env, env["LANG"]) == (False, "C.UTF-8")


async def test_a_client_that_vanishes_during_create_leaves_a_whole_sandbox(world: World) -> None:
    world.provider.gate.clear()
    creating = asyncio.ensure_future(sandboxes.create(world.deps, world.account.id, NewSandbox()))
    await until(lambda: world.provider.created)
    creating.cancel()
    await asyncio.gather(creating, return_exceptions=True)
    world.provider.gate.set()
    await until(lambda: world.store.moves)
    assert await states(world) == [State.RUNNING]
    assert len(world.provider.sandboxes) == 1


async def test_f7_a_failed_create_is_recorded_with_its_reason(world: World) -> None:
    world.provider.create_error = Unavailable("The node is gone.")
    with pytest.raises(Unavailable) as failed:
        await sandboxes.create(world.deps, world.account.id, NewSandbox())
    (sandbox,) = await world.store.list_sandboxes()
    assert failed.value.message == f"The node is gone. The attempt is recorded as '{sandbox.id}'."
    assert (sandbox.state, sandbox.cause, sandbox.detail) == (State.FAILED, Cause.CREATE, "The node is gone.")
    assert not world.deps.creating


async def test_an_unknown_template_makes_no_record(world: World) -> None:
    with pytest.raises(Invalid) as refused:
        await sandboxes.create(world.deps, world.account.id, NewSandbox(template="nope"))
    assert (refused.value.code, refused.value.field) == ("unknown_template", "template")
    assert await states(world) == []


async def test_f4_a_template_that_was_removed_from_the_node_is_built_again(world: World) -> None:
    await sandboxes.create(world.deps, world.account.id, NewSandbox(template="node"))
    world.provider.add_template("node", TemplateStatus.PENDING)
    sandbox = await sandboxes.create(world.deps, world.account.id, NewSandbox(template="node"))
    assert (sandbox.state, world.provider.built) == (State.RUNNING, ["node"])


async def test_many_creates_of_a_template_that_is_not_built_all_come_up(world: World) -> None:
    world.provider.add_template("fresh", TemplateStatus.PENDING)
    made = await asyncio.gather(
        *(sandboxes.create(world.deps, world.account.id, NewSandbox(template="fresh")) for _ in range(5))
    )
    assert {sandbox.state for sandbox in made} == {State.RUNNING}


async def test_f1_another_accounts_sandbox_is_not_found(world: World) -> None:
    other = await add_account(world.store, "other")
    sandbox = await sandboxes.create(world.deps, world.account.id, NewSandbox())
    for call in (sandboxes.get, sandboxes.get_running, sandboxes.destroy):
        with pytest.raises(NotFound) as refused:
            await call(world.deps, other.id, sandbox.id)
        with pytest.raises(NotFound) as unknown:
            await call(world.deps, other.id, "sbx_00000000000000000000")
        told = refused.value.message.replace(sandbox.id, "?")
        assert told == unknown.value.message.replace("sbx_00000000000000000000", "?")
    assert (await sandboxes.get(world.deps, world.account.id, sandbox.id)).state is State.RUNNING


async def test_f11_two_destroys_at_once_both_succeed(world: World) -> None:
    sandbox = await sandboxes.create(world.deps, world.account.id, NewSandbox())
    await asyncio.gather(*(sandboxes.destroy(world.deps, world.account.id, sandbox.id) for _ in range(5)))
    await sandboxes.destroy(world.deps, world.account.id, sandbox.id)
    assert await states(world) == [State.DESTROYED]
    assert world.provider.sandboxes == {}


async def test_f11_a_sandbox_destroyed_while_it_is_made_leaves_nothing(world: World) -> None:
    world.provider.gate.clear()
    creating = asyncio.ensure_future(sandboxes.create(world.deps, world.account.id, NewSandbox()))
    await until(lambda: world.provider.created)
    (record,) = await world.store.list_sandboxes()
    await sandboxes.destroy(world.deps, world.account.id, record.id)
    assert await states(world) == [State.DESTROYED]
    world.provider.gate.set()
    with pytest.raises(Conflict):
        await creating
    assert world.provider.sandboxes == {}
    assert await states(world) == [State.DESTROYED]


async def test_f11_a_failed_sandbox_can_be_destroyed(world: World) -> None:
    sandbox = await sandboxes.create(world.deps, world.account.id, NewSandbox())
    await world.provider.die(sandbox.id, Cause.OOM)
    with pytest.raises(Conflict):
        await commands.run(world.deps, world.account.id, sandbox.id, commands.NewCommand(shell="true"))
        await sandboxes.get_running(world.deps, world.account.id, sandbox.id)
    await sandboxes.destroy(world.deps, world.account.id, sandbox.id)
    assert await states(world) == [State.DESTROYED]


async def test_a_destroy_that_the_node_does_not_answer_is_on_record(world: World) -> None:
    sandbox = await sandboxes.create(world.deps, world.account.id, NewSandbox())
    world.provider.down = True
    with pytest.raises(Unavailable):
        await sandboxes.destroy(world.deps, world.account.id, sandbox.id)
    assert await states(world) == [State.DESTROYING]
    world.provider.down = False
    await sandboxes.destroy(world.deps, world.account.id, sandbox.id)
    assert await states(world) == [State.DESTROYED]


async def test_50_random_calls_at_once_leave_records_and_fleet_in_agreement(world: World) -> None:
    chance = random.Random(7)
    known: list[SandboxId] = []

    async def one() -> None:
        kind = chance.random()
        await asyncio.sleep(chance.random() / 50)
        try:
            if kind < 0.4 or not known:
                known.append((await sandboxes.create(world.deps, world.account.id, NewSandbox())).id)
            elif kind < 0.7:
                await sandboxes.destroy(world.deps, world.account.id, chance.choice(known))
            else:
                wanted = commands.NewCommand(shell="sleep 0.01; echo x")
                await commands.run(world.deps, world.account.id, chance.choice(known), wanted)
        except SkerryError as error:
            assert isinstance(error, Conflict)  # its sandbox was destroyed first

    await asyncio.gather(*(one() for _ in range(50)))
    records = await world.store.list_sandboxes()
    assert {s.id for s in records if s.state is State.RUNNING} == set(world.provider.sandboxes)
    assert {s.state for s in records} <= {State.RUNNING, State.DESTROYED}
    assert list(await world.store.list_commands(running=True)) == []

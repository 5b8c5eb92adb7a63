"""Startup commands: claimed with their command in one transaction, so that each create runs one, whoever dies when."""

import asyncio
from dataclasses import replace

import pytest

from skerry.control import reconcile, sandboxes, startup
from skerry.control.sandboxes import NewSandbox
from skerry.model.command import Command, CommandCause, CommandKind, CommandStatus
from skerry.model.lifecycle import Event
from skerry.model.sandbox import Sandbox
from skerry.testing.store_suite import command_of, sandbox_of

from .conftest import World, until


async def made(world: World, command: str | None) -> Sandbox:
    return await sandboxes.create(world.deps, world.account.id, NewSandbox(startup_command=command))


async def ended(world: World) -> None:
    async with asyncio.timeout(10):
        while any(c.status is CommandStatus.RUNNING for c in await world.store.list_commands()):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def status(world: World, sandbox: Sandbox) -> startup.Startup:
    return await startup.status(world.deps, world.account.id, sandbox.id)


def runs(world: World, sandbox: Sandbox) -> bytes:
    return world.provider.sandboxes[sandbox.id].guest.files.data("/workspace/runs")


async def test_f14_it_runs_without_holding_the_create_up_and_has_no_deadline(world: World) -> None:
    sandbox = await made(world, "echo up; sleep 1000")
    await until(lambda: world.deps.following)
    (command,) = await world.store.list_commands()
    assert (command.kind, command.timeout_s, command.command) == (CommandKind.STARTUP, None, "echo up; sleep 1000")
    assert await world.store.busy_sandboxes([sandbox.id]) == set()
    world.clock.advance(1_000_000)
    await reconcile.once(world.deps)
    assert (await status(world, sandbox)).status == "running"


async def interrupted(world: World, command: str) -> Sandbox:
    """What a process leaves that dies right after a create: a sandbox that runs, and nothing begun."""
    half = replace(sandbox_of(world.account), startup_command=command, created_at=world.clock.now())
    await world.store.add_sandbox(half)
    placement = await world.provider.create(sandboxes.spec_of(half))
    return await world.store.transition(half, Event.CREATED, placement=placement)


async def recorded_only(world: World, sandbox: Sandbox) -> Command:
    """What a process leaves that dies between the record and the node."""
    text, at = sandbox.startup_command or "", world.clock.now()
    command = replace(command_of(sandbox), kind=CommandKind.STARTUP, command=text, timeout_s=None, started_at=at)
    assert await world.store.begin_startup(command, sandbox.generation, replaces=None)
    return command


async def test_f14_one_that_a_crash_kept_from_starting_is_started_once_by_the_next_process(world: World) -> None:
    sandbox = await interrupted(world, "echo ran > runs")
    await asyncio.gather(reconcile.once(world.deps), reconcile.once(world.deps), startup.run_due(world.deps, sandbox))
    await ended(world)
    await reconcile.once(world.deps)
    assert len(await world.store.list_commands()) == 1
    assert runs(world, sandbox) == b"ran\n"


async def test_f14_one_that_was_recorded_and_never_reached_the_node_is_started_by_its_id(world: World) -> None:
    sandbox = await interrupted(world, "echo ran > runs")
    command = await recorded_only(world, sandbox)
    await reconcile.once(world.deps)
    await ended(world)
    (only,) = await world.store.list_commands()
    assert (only.id, only.status, runs(world, sandbox)) == (command.id, CommandStatus.COMPLETED, b"ran\n")


async def test_one_whose_traces_may_be_swept_is_not_run_a_second_time(world: World) -> None:
    sandbox = await interrupted(world, "echo ran > runs")
    await recorded_only(world, sandbox)
    world.clock.advance(world.deps.config.output_keep_hours * 3600 + 1)
    await reconcile.once(world.deps)
    (command,) = await world.store.list_commands()
    assert command.exit is not None
    assert command.exit.cause is CommandCause.NOT_STARTED


async def test_a_command_that_is_set_later_waits_for_the_next_time_the_sandbox_comes_up(world: World) -> None:
    sandbox = await made(world, None)
    await startup.configure(world.deps, world.account.id, sandbox.id, "echo set")
    await reconcile.once(world.deps)
    assert list(await world.store.list_commands()) == []
    assert (await status(world, sandbox)).status is None


async def test_what_is_due_stays_due_when_the_command_is_replaced(world: World) -> None:
    sandbox = await interrupted(world, "echo old > runs")
    await startup.configure(world.deps, world.account.id, sandbox.id, "echo new > runs")
    await reconcile.once(world.deps)
    await ended(world)
    assert runs(world, sandbox) == b"new\n"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", None),
        (b"\n \n#x\n\t# y\n", None),
        (b"one", "one"),
        (b"\xef\xbb\xbf#!/bin/sh\r\n\r\n  two # kept \r\nthree", "two # kept"),
        ("échö ✓\n".encode(), "échö ✓"),
        (b"\xff\nlater", None),
        (b"a\0b\n", None),
        (b"x" * (startup.LINE_LIMIT + 1), None),
    ],
)
def test_f17_the_first_line_that_is_neither_empty_nor_a_comment(content: bytes, line: str | None) -> None:
    assert startup.first_line(content) == line

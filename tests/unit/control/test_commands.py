"""Commands: recorded before they run, watched to their end, waited for over a node that is away."""

import asyncio

import pytest

from skerry.control import commands, following, reconcile, sandboxes, terminals
from skerry.control.commands import NewCommand
from skerry.control.outputs import INLINE_CAP, Capture
from skerry.control.sandboxes import NewSandbox
from skerry.model.command import CommandCause, CommandStatus, Exit, Lost, Output
from skerry.model.errors import Conflict, Invalid, NotFound, Unavailable
from skerry.testing.store_suite import add_account

from .conftest import World, until


@pytest.fixture
async def sandbox_id(world: World) -> str:
    return (await sandboxes.create(world.deps, world.account.id, NewSandbox())).id


async def test_f32_a_command_is_run_to_its_end_and_recorded(world: World, sandbox_id: str) -> None:
    result = await commands.run(world.deps, world.account.id, sandbox_id, NewCommand(shell="echo out; exit 5"))
    assert (result.command.status, result.captured.stdout) == (CommandStatus.COMPLETED, b"out\n")
    assert result.command.exit is not None
    assert result.command.exit.code == 5
    assert await world.store.get_command(result.command.id) == result.command
    assert not world.deps.following


async def test_a_caller_that_leaves_does_not_end_the_command(world: World, sandbox_id: str) -> None:
    wanted = NewCommand(shell="sleep 0.1; echo done")
    waiting = asyncio.ensure_future(commands.run(world.deps, world.account.id, sandbox_id, wanted))
    await until(lambda: world.deps.following)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await until(lambda: not world.deps.following)
    (command,) = await world.store.list_commands()
    assert command.status is CommandStatus.COMPLETED


async def test_f25_without_a_deadline_of_its_own_a_command_has_the_sandboxes(world: World) -> None:
    made = await sandboxes.create(world.deps, world.account.id, NewSandbox(timeout_s=1))
    result = await commands.run(world.deps, world.account.id, made.id, NewCommand(shell="echo part; sleep 60"))
    assert (result.command.status, result.command.timeout_s) == (CommandStatus.TIMEOUT, 1)
    assert result.captured.stdout == b"part\n"


async def test_a_deadline_longer_than_allowed_is_refused(world: World, sandbox_id: str) -> None:
    with pytest.raises(Invalid) as refused:
        await commands.run(world.deps, world.account.id, sandbox_id, NewCommand(shell="true", timeout_s=10**9))
    assert refused.value.field == "timeout_seconds"
    assert list(await world.store.list_commands()) == []


async def test_f1_another_accounts_command_is_not_found(world: World, sandbox_id: str) -> None:
    other = await add_account(world.store, "other")
    command = (await commands.run(world.deps, world.account.id, sandbox_id, NewCommand(shell="true"))).command
    with pytest.raises(NotFound):
        await commands.run(world.deps, other.id, sandbox_id, NewCommand(shell="true"))
    with pytest.raises(NotFound):
        await commands.look_up(world.deps, other.id, command.id)
    with pytest.raises(NotFound):
        await commands.kill(world.deps, other.id, command.id)


async def test_a_destroyed_sandbox_ends_its_commands_and_keeps_their_output(world: World, sandbox_id: str) -> None:
    wanted = NewCommand(shell="echo part; sleep 60")
    started = await commands.start(world.deps, world.account.id, sandbox_id, wanted)
    await sandboxes.destroy(world.deps, world.account.id, sandbox_id)
    result = await commands.look_up(world.deps, world.account.id, started.command.id)
    assert result.command.exit is not None
    assert (result.command.status, result.command.exit.cause) == (CommandStatus.FAILED, CommandCause.SANDBOX_GONE)
    assert result.captured.stdout == b"part\n"
    with pytest.raises(Conflict):
        await commands.start(world.deps, world.account.id, sandbox_id, wanted)


async def test_f34_a_node_that_is_away_for_a_while_is_waited_for(world: World, sandbox_id: str) -> None:
    wanted = NewCommand(shell="echo one; sleep 0.2; echo two")
    waiting = asyncio.ensure_future(commands.run(world.deps, world.account.id, sandbox_id, wanted))
    await until(lambda: world.deps.following)
    await asyncio.sleep(0.05)
    world.provider.down = True
    await until(lambda: world.clock.sleepers)
    world.clock.advance(1)
    await until(lambda: world.clock.sleepers)
    world.provider.down = False
    world.clock.advance(1)
    assert (await waiting).captured.stdout == b"one\ntwo\n"


async def test_f34_a_node_that_restarts_as_a_command_starts_starts_it_once(world: World, sandbox_id: str) -> None:
    world.provider.down = True
    waiting = asyncio.ensure_future(
        commands.run(world.deps, world.account.id, sandbox_id, NewCommand(shell="echo once"))
    )
    await until(lambda: world.clock.sleepers)
    world.provider.down = False
    world.clock.advance(1)
    assert (await waiting).captured.stdout == b"once\n"


async def test_a_node_that_is_not_there_to_start_a_command_is_told(world: World, sandbox_id: str) -> None:
    world.provider.down = True
    waiting = asyncio.ensure_future(commands.run(world.deps, world.account.id, sandbox_id, NewCommand(shell="true")))
    await until(lambda: world.clock.sleepers)
    world.clock.advance(11)
    await until(lambda: world.clock.sleepers or waiting.done())
    (command,) = await world.store.list_commands()
    with pytest.raises(Unavailable, match=command.id):
        await waiting
    assert command.status is CommandStatus.RUNNING
    world.provider.down = False
    await reconcile.once(world.deps)
    ended = await world.store.get_command(command.id)
    assert ended.exit is not None
    assert ended.exit.cause is CommandCause.NOT_STARTED


async def test_a_node_that_stays_away_is_waited_for_with_an_end(world: World, sandbox_id: str) -> None:
    wanted = NewCommand(shell="echo one; sleep 0.1; echo two", timeout_s=5)
    waiting = asyncio.ensure_future(commands.run(world.deps, world.account.id, sandbox_id, wanted))
    await until(lambda: world.deps.following)
    await asyncio.sleep(0.02)
    world.provider.down = True
    await until(lambda: world.clock.sleepers)
    world.clock.advance(3600)
    with pytest.raises(Unavailable):
        await waiting
    (command,) = await world.store.list_commands()
    assert command.status is CommandStatus.RUNNING  # not known, so not invented: the reconciler finds out
    world.provider.down = False


@pytest.mark.parametrize("away_s", [30, 90])
async def test_a_terminal_waits_for_its_node_from_when_it_went(world: World, sandbox_id: str, away_s: int) -> None:
    """It has no deadline to wait for, and may have run for days before."""
    wanted = terminals.NewTerminal(argv=("cat",))
    terminal = await terminals.open_terminal(world.deps, world.account.id, sandbox_id, wanted)
    guest = world.provider.guest(terminal.sandbox_id)
    events = following.follow(world.deps, terminal)
    await guest.write_stdin(terminal.id, b"one")
    assert await anext(events) == Output(1, 0, b"one")
    world.clock.advance(7200)
    coming = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    sleepers = world.clock.sleepers  # the one that watches for its end finds the node away, too
    world.provider.down = True
    await guest.write_stdin(terminal.id, b"two")
    await until(lambda: world.clock.sleepers > sleepers)
    world.clock.advance(away_s)
    if away_s > 60:
        with pytest.raises(Unavailable):
            await coming
    else:
        await until(lambda: world.clock.sleepers > sleepers)
        assert not coming.done()
        world.provider.down = False
        world.clock.advance(1)
        assert await coming == Output(1, 3, b"two")
    world.provider.down = False
    await events.aclose()  # type: ignore[attr-defined]


async def test_nobodys_output_crosses_to_the_api(world: World, sandbox_id: str) -> None:
    """A command that is started and left is watched for its end alone."""
    started = await commands.start(world.deps, world.account.id, sandbox_id, NewCommand(shell="echo unheard"))
    result = await started.watching
    assert (result.command.status, result.captured.stdout) == (CommandStatus.COMPLETED, b"")
    assert (await commands.look_up(world.deps, world.account.id, started.command.id)).captured.stdout == b"unheard\n"


async def test_stdin_that_the_command_does_not_read_holds_nobody_up(world: World, sandbox_id: str) -> None:
    wanted = NewCommand(shell="true", stdin=b"x" * 1_000_000)
    result = await commands.run(world.deps, world.account.id, sandbox_id, wanted)
    assert result.command.status is CommandStatus.COMPLETED


def test_50_mb_of_output_are_captured_in_flat_memory() -> None:
    capture = Capture()
    chunk = b"x" * 262_144
    for number in range(200):
        capture.add(Output(1 + number % 2, number * len(chunk), chunk))
    capture.add(Lost(200 * len(chunk), 7))
    capture.add(Exit(0, None, False, 200 * len(chunk) + 7, 1))
    captured = capture.result()
    assert (len(captured.stdout), len(captured.stderr)) == (INLINE_CAP, INLINE_CAP)
    assert captured.stdout_truncated
    assert captured.stderr_truncated
    assert (captured.output_bytes, captured.lost_bytes) == (200 * len(chunk) + 7, 7)


def test_output_of_exactly_the_cap_is_not_truncated() -> None:
    capture = Capture()
    capture.add(Output(1, 0, b"x" * INLINE_CAP))
    assert not capture.result().stdout_truncated
    capture.add(Output(1, INLINE_CAP, b"y"))
    assert capture.result().stdout_truncated

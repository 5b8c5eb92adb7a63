"""Shell sessions: one command at a time, on record before it runs; what it leaves is taken in, or nothing changes."""

import asyncio
import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.control import reconcile, sandboxes, shells
from skerry.control.deps import Deps
from skerry.control.sandboxes import NewSandbox
from skerry.control.shell_state import environment, fold, read_dump, wrap
from skerry.model.errors import Conflict, Invalid, NotFound
from skerry.model.ids import new_command_id
from skerry.model.shell import MOST_SHELLS, ShellSession, ShellState
from skerry.testing.store_suite import add_account

from .conftest import World, recorded, until

TOKEN = "0" * 32


async def session_of(world: World) -> ShellSession:
    sandbox = await sandboxes.create(world.deps, world.account.id, NewSandbox())
    return await shells.create(world.deps, world.account.id, sandbox.id)


async def run(world: World, session: ShellSession, text: str) -> shells.ShellResult:
    return await shells.execute(world.deps, world.account.id, session.id, text)


async def test_what_persists_is_the_difference_to_the_sandboxes_environment(world: World) -> None:
    session = await session_of(world)
    ended = await run(world, session, "cd /tmp; export A=1; unset LANG")
    assert ended.saved
    kept = await world.store.get_shell(session.id)
    assert kept.state == ShellState("/tmp", {"A": "1"}, frozenset({"LANG"}))
    assert (kept.command_id, kept.token) == (None, None)
    assert "'1'" not in repr(kept)


async def test_the_session_is_its_commands_while_it_runs(world: World) -> None:
    session = await session_of(world)
    running = asyncio.ensure_future(run(world, session, "sleep 0.1; export A=1"))
    await until(lambda: world.deps.following)
    other = Deps(world.store, world.provider, world.clock, world.deps.config, sole=False)  # another process
    for deps in (world.deps, other):
        with pytest.raises(Conflict) as refused:
            await shells.execute(deps, world.account.id, session.id, "true")
        assert refused.value.code == "session_busy"
    assert (await running).saved


async def test_what_a_command_left_for_a_process_that_died_is_taken_in_by_the_next(world: World) -> None:
    session = await session_of(world)
    running = asyncio.ensure_future(run(world, session, "cd /tmp; sleep 0.05; export A=1"))
    await until(lambda: world.deps.following)
    world = await world.crash()
    await asyncio.gather(running, return_exceptions=True)
    with pytest.raises(Conflict):
        await run(world, session, "true")
    guest = world.provider.sandboxes[session.sandbox_id].guest
    await until(lambda: any(path.startswith("/run/skerry/") for path in guest.files.nodes))
    assert (await run(world, session, "pwd; echo $A")).captured.stdout == b"/tmp\n1\n"


async def test_a_claim_whose_command_was_never_recorded_is_given_up(world: World) -> None:
    session = await session_of(world)
    assert await world.store.claim_shell(session.id, new_command_id(), TOKEN, world.clock.now())
    assert (await run(world, session, "echo on")).captured.stdout == b"on\n"


async def test_a_command_that_a_dead_node_never_took_frees_the_session(world: World) -> None:
    session = await session_of(world)
    world.provider.down = True
    running = asyncio.ensure_future(run(world, session, "true"))
    await recorded(world)
    world = await world.crash()
    await asyncio.gather(running, return_exceptions=True)
    world.provider.down = False
    await reconcile.once(world.deps)
    assert (await run(world, session, "echo on")).captured.stdout == b"on\n"


async def test_another_accounts_session_is_not_found(world: World) -> None:
    session, other = await session_of(world), await add_account(world.store, "other")
    for work in (shells.get, shells.delete):
        with pytest.raises(NotFound):
            await work(world.deps, other.id, session.id)
    with pytest.raises(NotFound):
        await shells.execute(world.deps, other.id, session.id, "true")


async def test_sessions_have_a_bound_and_so_have_their_commands(world: World) -> None:
    session = await session_of(world)
    for _ in range(MOST_SHELLS - 1):
        await shells.create(world.deps, world.account.id, session.sandbox_id)
    with pytest.raises(Conflict, match="Delete"):
        await shells.create(world.deps, world.account.id, session.sandbox_id)
    with pytest.raises(Invalid, match="file"):
        await run(world, session, "é" * 50_000)


@given(st.binary())
def test_a_dump_of_any_bytes_is_read_or_is_none(data: bytes) -> None:
    assert read_dump(data, TOKEN) is None


def test_a_dump_that_was_cut_or_is_of_another_command_is_none() -> None:
    whole = f"/a\n\0A=1\0SKERRY_SESSION_TOKEN={TOKEN}\0".encode()
    assert read_dump(whole, TOKEN) is not None
    assert read_dump(whole, "1" * 32) is None
    for length in range(len(whole)):
        assert read_dump(whole[:length], TOKEN) is None


def test_what_is_too_large_or_would_start_the_next_shell_otherwise_is_not_kept() -> None:
    dump = read_dump(f"/a\n\0SHELLOPTS=n\0BASH_FUNC_cd%%=()\0A=1\0SKERRY_SESSION_TOKEN={TOKEN}\0".encode(), TOKEN)
    assert dump is not None
    assert fold(ShellState(), dump, {}) == ShellState("/a", {"A": "1"})
    large = read_dump(f"/a\n\0A={'x' * 70_000}\0SKERRY_SESSION_TOKEN={TOKEN}\0".encode(), TOKEN)
    assert large is not None
    assert fold(ShellState(), large, {}) is None


def test_variables_that_the_session_never_touched_follow_the_sandboxes() -> None:
    state = ShellState("/", {"A": "session"}, frozenset({"B"}))
    assert environment(state, {"A": "1", "B": "2", "C": "3"}) == {"A": "session", "C": "3"}


@pytest.mark.parametrize("shell", ["dash", "bash"])
@pytest.mark.parametrize(
    ("text", "code"),
    [("exit 3", 3), ("echo 'x", 2), ("set -e; false", 1), ("(exit 4)", 4), ("trap 'exit 5' EXIT", 5), ("true", 0)],
)
def test_the_wrapper_gives_the_texts_exit_code_in_a_posix_shell_too(shell: str, text: str, code: int) -> None:
    """The shell of small images is no bash: here its part is run by itself, with its traces in a directory of ours."""
    argv = wrap(text, ShellState("/", {}, frozenset({"GONE"})), TOKEN)
    done = subprocess.run([shell, "-c", *argv[4:5], "sh", *argv[5:]], env={**os.environ, "GONE": "1"}, check=False)
    assert done.returncode == code

"""Resume: the same id and files, nothing else; one does it and all get it; what fails leaves all as it was."""

import asyncio

import pytest

from skerry.control import commands, files, reconcile, resuming, sandboxes, shells, startup, stopping, terminals
from skerry.control.commands import NewCommand
from skerry.control.terminals import NewTerminal
from skerry.model.command import CommandKind, CommandStatus
from skerry.model.errors import Conflict, SandboxGone, TooBusy, Unavailable
from skerry.model.ids import TreeId
from skerry.model.lifecycle import Cause, Event, State
from skerry.model.sandbox import Sandbox
from skerry.model.startup import StartupSource

from .conftest import World, until


async def stop(world: World, sandbox: Sandbox) -> Sandbox:
    return await stopping.stop(world.deps, world.account.id, sandbox.id)


async def resume(world: World, sandbox: Sandbox) -> Sandbox:
    return await resuming.resume(world.deps, world.account.id, sandbox.id)


async def stopped_with_a_file(world: World, **wanted: object) -> Sandbox:
    sandbox = await world.made(**wanted)
    world.write(sandbox, "/workspace/a")
    world.write(sandbox, "/etc/outside")
    return await stop(world, sandbox)


@pytest.mark.parametrize("held", [True, False], ids=["on the node", "from the store"])
async def test_f9_a_resumed_sandbox_has_its_id_its_files_and_nothing_else(world: World, held: bool) -> None:
    sandbox = await stopped_with_a_file(world, env={"A": "b"})
    if not held:
        await world.provider.lose(sandbox.id)
    resumed = await resume(world, sandbox)
    assert (resumed.id, resumed.state, resumed.generation) == (sandbox.id, State.RUNNING, 2)
    assert world.read(resumed, "/workspace/a") == b"kept"
    assert not world.has(resumed, "/etc/outside")
    assert (dict(resumed.env), resumed.cause, resumed.detail) == ({"A": "b"}, None, "")
    assert world.provider.calls["fetch"] == (0 if held else 1)
    assert world.deps.progress == {}


async def test_20_stops_and_resumes_keep_a_file_each(world: World) -> None:
    sandbox = await world.made()
    for number in range(20):
        world.write(sandbox, f"/workspace/{number}", str(number).encode())
        if number % 2:
            await stop(world, sandbox)
        else:
            world.clock.advance(sandbox.idle_timeout_s + 60)
            await reconcile.once(world.deps)
            await world.in_state(sandbox, State.STOPPED)
        if number % 3 == 0:
            await world.provider.lose(sandbox.id)
        await resume(world, sandbox)
    assert [world.read(sandbox, f"/workspace/{number}") for number in range(20)] == [b"%d" % n for n in range(20)]
    assert (await world.now(sandbox)).generation == 21


async def test_a_running_one_stays_as_it_is(world: World) -> None:
    sandbox = await world.made()
    assert await resume(world, sandbox) == await world.now(sandbox)
    assert world.provider.created == 1


async def test_of_many_resumes_at_once_one_does_it(world: World) -> None:
    sandbox = await stopped_with_a_file(world)
    resumed = await asyncio.gather(*(resume(world, sandbox) for _ in range(8)))
    assert {(each.state, each.generation) for each in resumed} == {(State.RUNNING, 2)}
    assert world.provider.created == 2


async def test_of_resumes_in_two_processes_one_does_it_and_the_other_waits(world: World) -> None:
    sandbox = await stopped_with_a_file(world)
    other = world.beside()
    world.provider.hold("create")
    first = asyncio.ensure_future(resume(world, sandbox))
    await until(lambda: world.provider.calls["create"] == 2)
    second = asyncio.ensure_future(resume(other, sandbox))
    await until(lambda: world.clock.sleepers)
    world.provider.let_go("create")
    assert (await first).state is State.RUNNING
    world.clock.advance(1)
    assert (await second).generation == 2
    assert world.provider.created == 2


async def test_a_resume_that_another_process_fails_with_is_not_tried_at_once(world: World) -> None:
    sandbox = await stopped_with_a_file(world)
    other = world.beside()
    world.provider.hold("create")
    first = asyncio.ensure_future(resume(world, sandbox))
    await until(lambda: world.provider.calls["create"] == 2)
    second = asyncio.ensure_future(resume(other, sandbox))
    await until(lambda: world.clock.sleepers)
    world.provider.faults["create"] = TooBusy("There is no room.")
    world.provider.let_go("create")
    with pytest.raises(TooBusy):
        await first
    world.clock.advance(1)
    with pytest.raises(Unavailable, match="There is no room"):
        await second


async def test_right_after_a_stop_the_archive_is_broken_off_and_the_files_are_there(world: World) -> None:
    sandbox = await world.made()
    world.write(sandbox, "/workspace/a")
    world.provider.hold("archive")
    stopping_ = asyncio.ensure_future(stop(world, sandbox))
    await until(lambda: world.provider.calls["archive"])
    resumed = await resume(world, sandbox)
    assert (resumed.state, world.read(resumed, "/workspace/a")) == (State.RUNNING, b"kept")
    assert (await stopping_).state in (State.RESUMING, State.RUNNING)
    world.provider.let_go("archive")
    await reconcile.once(world.deps)
    assert (await world.now(sandbox)).state is State.RUNNING


async def test_a_stop_that_the_node_has_not_heard_of_is_made_good_by_the_resume(world: World) -> None:
    sandbox = await world.made()
    world.write(sandbox, "/workspace/a")
    started = await commands.start(world.deps, world.account.id, sandbox.id, NewCommand(shell="sleep 100"))
    await world.store.transition(await world.now(sandbox), Event.STOP)
    after = await world.crash()
    assert (await resume(after, sandbox)).generation == 2
    assert (await world.store.get_command(started.command.id)).status is CommandStatus.FAILED
    assert world.read(sandbox, "/workspace/a") == b"kept"
    await after.deps.tasks.close()


async def test_a_stop_right_after_a_resume_waits_for_it(world: World) -> None:
    sandbox = await stopped_with_a_file(world)
    world.provider.gate.clear()
    resuming_ = asyncio.ensure_future(resume(world, sandbox))
    await until(lambda: world.provider.created == 2)
    stopping_ = asyncio.ensure_future(stop(world, sandbox))
    await asyncio.sleep(0.01)
    world.provider.gate.set()
    assert (await resuming_).state is State.RUNNING
    again = await stopping_
    assert (again.state, again.generation) == (State.STOPPED, 2)


async def test_a_failed_sandbox_comes_back_with_its_files(world: World) -> None:
    sandbox = await world.made()
    world.write(sandbox, "/workspace/a")
    await world.provider.die(sandbox.id, Cause.OOM)
    await reconcile.once(world.deps)
    resumed = await resume(world, sandbox)
    assert (resumed.state, resumed.cause, resumed.detail) == (State.RUNNING, None, "")
    assert world.read(sandbox, "/workspace/a") == b"kept"


async def test_a_resume_that_fails_leaves_it_to_be_stopped_and_resumed_later(world: World) -> None:
    sandbox = await stopped_with_a_file(world)
    world.provider.create_error = TooBusy("There is no room.")
    with pytest.raises(TooBusy):
        await resume(world, sandbox)
    back = await world.now(sandbox)
    assert (back.state, back.detail) == (State.STOPPING, "It could not be resumed: There is no room.")
    world.provider.create_error = None
    await reconcile.once(world.deps)
    await world.in_state(sandbox, State.STOPPED)
    assert (await resume(world, sandbox)).generation == 3
    assert world.read(sandbox, "/workspace/a") == b"kept"


async def test_a_resume_from_a_store_that_is_down_keeps_the_archive(world: World) -> None:
    sandbox = await stopped_with_a_file(world)
    await world.provider.lose(sandbox.id)
    world.provider.storage.down = True
    with pytest.raises(Unavailable):
        await resume(world, sandbox)
    await reconcile.once(world.deps)
    back = await world.in_state(sandbox, State.STOPPED)
    assert back.archive == sandbox.archive
    world.provider.storage.down = False
    assert (await resume(world, sandbox)).state is State.RUNNING
    assert world.read(sandbox, "/workspace/a") == b"kept"


async def test_files_of_which_nothing_is_left_are_told_as_lost(world: World) -> None:
    sandbox = await world.made()
    await world.provider.die(sandbox.id)
    await reconcile.once(world.deps)
    await world.provider.lose(sandbox.id)
    for _ in range(2):
        with pytest.raises(Conflict) as lost:
            await resume(world, sandbox)
        assert lost.value.code == "files_lost"
        failed = await world.now(sandbox)
        assert (failed.state, failed.cause) == (State.FAILED, Cause.DISK)


async def test_an_archive_that_the_store_has_lost_is_told_and_comes_back_with_the_store(world: World) -> None:
    sandbox = await stopped_with_a_file(world)
    await world.provider.lose(sandbox.id)
    kept = dict(world.provider.storage.archives)
    world.provider.storage.archives.clear()
    with pytest.raises(Conflict, match="object store") as lost:
        await resume(world, sandbox)
    assert lost.value.code == "files_lost"
    assert world.provider.calls["fetch"] == 1
    world.provider.storage.archives.update(kept)
    assert world.read(await resume(world, sandbox), "/workspace/a") == b"kept"


async def test_files_that_are_older_than_the_last_use_are_told_as_such(world: World) -> None:
    sandbox = await stopped_with_a_file(world)
    await resume(world, sandbox)
    world.write(sandbox, "/workspace/newer")
    await world.provider.lose(sandbox.id)
    await reconcile.once(world.deps)
    resumed = await resume(world, sandbox)
    assert (resumed.state, resumed.detail) == (State.RUNNING, stopping.OLDER)
    assert not world.has(resumed, "/workspace/newer")


async def test_a_sandbox_destroyed_while_it_comes_back_leaves_nothing(world: World) -> None:
    sandbox = await stopped_with_a_file(world)
    world.provider.gate.clear()
    resuming_ = asyncio.ensure_future(resume(world, sandbox))
    await until(lambda: world.provider.created == 2)
    await sandboxes.destroy(world.deps, world.account.id, sandbox.id)
    world.provider.gate.set()
    with pytest.raises(Conflict):
        await resuming_
    assert (await world.now(sandbox)).state is State.DESTROYED
    assert (world.provider.sandboxes, world.provider.trees_held) == ({}, {})


async def test_without_a_place_for_files_a_resume_that_fails_is_a_failure_again(world: World) -> None:
    other = world.beside(archive_url="none")
    sandbox = await other.made()
    await world.provider.die(sandbox.id)
    await reconcile.once(other.deps)
    world.provider.create_error = TooBusy("There is no room.")
    with pytest.raises(TooBusy):
        await resume(other, sandbox)
    await reconcile.once(other.deps)
    assert (await other.in_state(sandbox, State.FAILED)).detail == "It could not be resumed: There is no room."
    await other.deps.tasks.close()


# -- by use ------------------------------------------------------------------------------------------------------


async def test_f12_a_command_resumes_its_sandbox_first(world: World) -> None:
    sandbox = await stopped_with_a_file(world)
    wanted = NewCommand(shell="cat a")
    results = await asyncio.gather(*(commands.run(world.deps, world.account.id, sandbox.id, wanted) for _ in range(5)))
    assert {result.captured.stdout for result in results} == {b"kept"}
    assert world.provider.created == 2


async def test_f13_a_file_operation_resumes_its_sandbox_first_and_a_look_does_not(world: World) -> None:
    sandbox = await stopped_with_a_file(world)
    with pytest.raises(Conflict) as refused:
        await files.open_guest(world.deps, world.account.id, sandbox.id, wake=False)
    assert refused.value.code == "sandbox_stopped"
    guest = await files.open_guest(world.deps, world.account.id, sandbox.id)
    assert (await files.read_small(guest, "a", 10))[1] == b"kept"


async def test_a_terminal_a_session_and_a_startup_resume_their_sandbox_first(world: World) -> None:
    sandbox = await world.made()
    session = await shells.create(world.deps, world.account.id, sandbox.id)
    await stop(world, sandbox)
    result = await shells.execute(world.deps, world.account.id, session.id, "echo hi")
    assert result.command.status is CommandStatus.COMPLETED
    await stop(world, sandbox)
    terminal = await terminals.open_terminal(world.deps, world.account.id, sandbox.id, NewTerminal(argv=("cat",)))
    assert terminal.status is CommandStatus.RUNNING
    await stop(world, sandbox)
    await startup.configure(world.deps, world.account.id, sandbox.id, "echo up")
    told = await startup.run(world.deps, world.account.id, sandbox.id)
    assert told.run is not None
    assert await runs(world, sandbox) == 1
    assert (await world.now(sandbox)).generation == 4


async def test_work_for_a_failed_sandbox_does_not_resume_it(world: World) -> None:
    sandbox = await world.made()
    await world.provider.die(sandbox.id, Cause.OOM)
    await reconcile.once(world.deps)
    with pytest.raises(Conflict) as refused:
        await sandboxes.awake(world.deps, world.account.id, sandbox.id)
    assert refused.value.code == "sandbox_failed"


async def test_a_command_that_loses_against_a_stop_is_given_to_the_sandbox_that_comes_back(world: World) -> None:
    sandbox = await world.made()
    lost = asyncio.Event()

    async def work(awake: Sandbox) -> int:
        if not lost.is_set():
            lost.set()
            await stop(world, awake)
        command = commands.decide(world.deps, awake, NewCommand(shell="true")).command
        await world.store.add_command(command)
        return awake.generation

    assert await sandboxes.give(world.deps, world.account.id, sandbox.id, work) == 2


async def test_what_a_call_to_earlier_compute_finds_gone_says_nothing_of_the_later(world: World) -> None:
    sandbox = await world.made()
    old = world.provider.sandboxes[sandbox.id].guest
    started = await commands.start(world.deps, world.account.id, sandbox.id, NewCommand(shell="sleep 100"))
    await stopping.stop(world.deps, world.account.id, sandbox.id, force=True)
    await resume(world, sandbox)
    with pytest.raises(SandboxGone):
        await old.stat("/")
    await started.watching
    assert (await world.now(sandbox)).state is State.RUNNING


# -- startup -----------------------------------------------------------------------------------------------------


async def runs(world: World, sandbox: Sandbox) -> int:
    found = await world.store.list_commands(sandbox_id=sandbox.id)
    return sum(command.kind is CommandKind.STARTUP for command in found)


async def test_f15_the_startup_command_runs_on_every_resume_after_the_files_are_back(world: World) -> None:
    sandbox = await stopped_with_a_file(world, startup_command="cat a > ran")
    await resume(world, sandbox)
    await until(lambda: world.has(sandbox, "/workspace/ran") and not world.deps.following)
    assert world.read(sandbox, "/workspace/ran") == b"kept"
    assert await runs(world, sandbox) == 2


async def test_f16_f17_a_startup_file_among_the_files_runs_on_a_resume_unless_a_command_is_set(world: World) -> None:
    sandbox = await world.made()
    world.write(sandbox, "/workspace/flax.startup", b"# comment\n\necho x > from_file\n")
    await stop(world, sandbox)
    await resume(world, sandbox)
    await until(lambda: world.has(sandbox, "/workspace/from_file"))
    told = await startup.status(world.deps, world.account.id, sandbox.id)
    assert told.source is StartupSource.FILE
    await startup.configure(world.deps, world.account.id, sandbox.id, "echo y > from_command")
    await reconcile.once(world.deps)
    assert await runs(world, sandbox) == 1
    await stop(world, sandbox)
    await resume(world, sandbox)
    await until(lambda: world.has(sandbox, "/workspace/from_command"))
    assert await runs(world, sandbox) == 2


async def test_f15_a_startup_file_runs_though_the_process_died_right_after_the_resume(world: World) -> None:
    sandbox = await world.made()
    world.write(sandbox, "/workspace/flax.startup", b"echo x > from_file\n")
    stopped = await stop(world, sandbox)
    resuming_ = await world.store.transition(stopped, Event.RESUME)
    placement = await world.provider.create(sandboxes.spec_of(resuming_), TreeId(sandbox.id))
    await world.store.transition(resuming_, Event.CREATED, placement=placement)
    after = await world.crash()
    for _ in range(3):
        await reconcile.once(after.deps)
    await until(lambda: world.has(sandbox, "/workspace/from_file"))
    assert await runs(world, sandbox) == 1
    await after.deps.tasks.close()


async def test_a_sandbox_that_came_back_without_a_startup_file_is_looked_at_once(world: World) -> None:
    sandbox = await stopped_with_a_file(world)
    await resume(world, sandbox)
    await reconcile.once(world.deps)
    assert list(await world.store.due_startups()) == []
    assert await runs(world, sandbox) == 0

"""The supervisor on fake parts: stops, resumes, and what is done with trees meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from unit.node_host import Host, a_host, spec, until

from skerry.model.capture import Archive, Moved, Vault
from skerry.model.command import CommandCause, ExecSpec, Exit
from skerry.model.errors import Conflict, Invalid, NotFound, Refused, SandboxGone, SkerryError, TooBusy
from skerry.model.ids import TreeId, new_archive_id, new_command_id, new_snapshot_id, new_vault_id
from skerry.model.lifecycle import Cause
from skerry.model.sandbox import Observed, SandboxSpec
from skerry.node.records import Stage, moved
from skerry.node.supervisor import Supervisor
from skerry.node.tree_keeper import ARCHIVES_AT_ONCE

VAULT = Vault(new_vault_id(), bytes(32))
HALTS = ("runtime.delete", "network.detach", "layers.stop")
RESUMES = ("layers.resume", "network.attach", "runtime.start")


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    async with a_host(tmp_path) as host:
        yield host


def own(wanted: SandboxSpec) -> TreeId:
    return TreeId(wanted.id)


def resumed(wanted: SandboxSpec, generation: int = 2) -> SandboxSpec:
    return replace(wanted, generation=generation)


def is_stopped(wanted: SandboxSpec, generation: int = 1) -> Observed:
    return Observed(wanted.id, generation, running=False, stopped=True)


async def stopped(host: Host, node: Supervisor) -> SandboxSpec:
    wanted = spec()
    await node.create(wanted)
    await node.stop(wanted.id, 1)
    (host.home / "trees" / wanted.id).mkdir(parents=True)
    return wanted


async def nothing_told(_moved: Moved) -> None: ...


async def test_a_stop_frees_all_but_the_files_and_ends_what_ran(host: Host) -> None:
    async with host.node() as node:
        wanted = spec()
        await node.create(wanted)
        command = ExecSpec(id=new_command_id(), shell="wait")
        await node.inside(wanted.id)[1].exec(command, host.group)
        await node.stop(wanted.id, 1)
        async with asyncio.timeout(10):
            exit = [event async for event in host.spool.follow(wanted.id, command.id)][-1]
        assert isinstance(exit, Exit) and exit.cause is CommandCause.SANDBOX_GONE
        assert node.list() == [is_stopped(wanted)]
        assert host.left() == {"layers": {wanted.id}, "records": [f"{wanted.id}.jsonl"]}
        assert host.layers.sealed == {wanted.id}
        with pytest.raises(SandboxGone) as caught:
            node.inside(wanted.id)
        assert caught.value.cause == "stopped"
    async with host.node() as node:
        assert node.list() == [is_stopped(wanted)]


@pytest.mark.parametrize("step", HALTS)
async def test_a_stop_that_fails_is_finished_later(host: Host, step: str) -> None:
    async with host.node() as node:
        wanted = spec()
        await node.create(wanted)
        host.faults.errors[step] = Refused("The kernel would not.")
        with pytest.raises((SkerryError, ExceptionGroup)):
            await node.stop(wanted.id, 1)
        assert node.list() == [Observed(wanted.id, 1, running=False, detail="stopping")]
        del host.faults.errors[step]
        await node.tend()
        assert node.list() == [is_stopped(wanted)]


@pytest.mark.parametrize("step", HALTS)
async def test_a_node_killed_in_a_stop_finishes_it_at_its_next_start(host: Host, step: str) -> None:
    host.faults.errors[step] = Refused("Killed here.")
    async with host.node() as node:
        wanted = spec()
        await node.create(wanted)
        with suppress(SkerryError, ExceptionGroup):
            await node.stop(wanted.id, 1)
    del host.faults.errors[step]
    async with host.node() as node:
        assert node.list() == [is_stopped(wanted)]
        assert not host.runtime.machines


async def test_a_stop_goes_on_when_its_caller_goes(host: Host) -> None:
    async with host.node() as node:
        wanted = spec()
        await node.create(wanted)
        host.faults.pause["layers.stop"] = asyncio.Event()
        stopping = asyncio.ensure_future(node.stop(wanted.id, 1))
        await until(lambda: "layers.stop" in host.faults.running.get(wanted.id, []))
        stopping.cancel()
        host.faults.pause["layers.stop"].set()
        await asyncio.wait([stopping])
        await until(lambda: node.list() == [is_stopped(wanted)])


@pytest.mark.parametrize("step", RESUMES)
async def test_a_resume_that_fails_leaves_the_files_and_can_be_tried_again(host: Host, step: str) -> None:
    async with host.node() as node:
        wanted = await stopped(host, node)
        host.faults.errors[step] = Refused("The kernel would not.")
        with pytest.raises(Refused):
            await node.create(resumed(wanted), own(wanted))
        assert node.list() == [is_stopped(wanted)]
        assert host.left() == {"layers": {wanted.id}, "records": [f"{wanted.id}.jsonl"]}
        del host.faults.errors[step]
        await node.create(resumed(wanted), own(wanted))
        assert node.list() == [Observed(wanted.id, 2, running=True)]


@pytest.mark.parametrize("step", RESUMES)
async def test_a_resume_whose_caller_goes_away_leaves_the_files(host: Host, step: str) -> None:
    async with host.node() as node:
        wanted = await stopped(host, node)
        host.faults.pause[step] = asyncio.Event()
        resuming = asyncio.ensure_future(node.create(resumed(wanted), own(wanted)))
        await until(lambda: step in host.faults.running.get(wanted.id, []))
        resuming.cancel()
        host.faults.pause[step].set()
        await asyncio.wait([resuming])
        assert node.list() == [is_stopped(wanted)]


async def test_generations_of_stops_and_resumes_are_fenced(host: Host) -> None:
    async with host.node() as node:
        wanted = await stopped(host, node)
        await node.create(resumed(wanted, 5), own(wanted))
        await node.stop(wanted.id, 4)
        assert node.list() == [Observed(wanted.id, 5, running=True)]
        for generation in (4, 6):  # an old one; a resume of what runs
            with pytest.raises(Conflict):
                await node.create(resumed(wanted, generation), own(wanted))
        await node.stop(wanted.id, 7)  # a resume that never came here is over, too
        assert node.list() == [is_stopped(wanted, 7)]
        for generation in (5, 7):
            with pytest.raises(Conflict):
                await node.create(resumed(wanted, generation), own(wanted))
        with pytest.raises(Conflict):
            await node.create(resumed(wanted, 8))  # anew, over what is kept


async def test_a_dead_one_after_a_reboot_is_stopped_or_resumed(host: Host) -> None:
    async with host.node() as node:
        first, second = spec(), spec()
        await node.create(first)
        await node.create(second)
    for record in host.records.load():
        host.records.write(replace(record, host_boot="another"))
    for sandbox_id in list(host.runtime.machines):
        host.runtime.die(sandbox_id)
        del host.runtime.machines[sandbox_id]
    async with host.node() as node:
        assert {seen.cause for seen in node.list()} == {Cause.HOST_RESTART}
        await node.stop(first.id, 1)
        await node.create(resumed(second), own(second))
        assert {seen.id: seen for seen in node.list()} == {
            first.id: is_stopped(first),
            second.id: Observed(second.id, 2, running=True),
        }


async def test_what_ran_before_a_power_cut_that_took_its_files_ended_by_the_restart(host: Host) -> None:
    async with host.node() as node:
        wanted = spec()
        await node.create(wanted)
    for record in host.records.load():
        host.records.write(replace(record, host_boot="another"))
    host.runtime.die(wanted.id)
    host.runtime.machines.clear()
    host.layers.held.clear()
    async with host.node() as node:
        assert [seen.cause for seen in node.list()] == [Cause.HOST_RESTART]
        with pytest.raises(NotFound):
            await node.stop(wanted.id, 1)
        assert node.list() == [] and host.left() == {}


async def test_a_stopped_sandbox_holds_no_range_of_ids(host: Host) -> None:
    async with host.node() as node:
        wanted = await stopped(host, node)
        (record,) = host.records.load()
        assert (record.stage, record.id_base) == (Stage.STOPPED, None)
        await node.create(resumed(wanted), own(wanted))
        assert host.runtime.bundles[wanted.id].id_range is not None


async def test_a_record_of_a_stopped_one_whose_files_are_gone_goes(host: Host) -> None:
    async with host.node() as node:
        await stopped(host, node)
    host.layers.held.clear()
    async with host.node() as node:
        assert node.list() == [] and host.left() == {}


async def test_a_copy_that_fails_leaves_nothing_of_itself_and_its_source_alone(host: Host) -> None:
    async with host.node() as node:
        wanted, copy = await stopped(host, node), spec()
        host.faults.errors["runtime.start"] = Refused("The kernel would not.")
        with pytest.raises(Refused):
            await node.create(copy, own(wanted))
        assert node.list() == [is_stopped(wanted)]
        assert host.layers.sources[copy.id] == wanted.id and host.layers.held == {wanted.id}


@pytest.mark.parametrize("verb", ["resume", "destroy", "drop"])
async def test_an_archive_gives_way_to_whoever_needs_the_files(host: Host, verb: str) -> None:
    assert host.archiver is not None
    async with host.node() as node:
        wanted = await stopped(host, node)
        host.archiver.gate.clear()
        archiving = asyncio.ensure_future(host.keeper.archive(own(wanted), VAULT, nothing_told))
        await until(lambda: host.archiver is not None and host.archiver.under_way)
        async with asyncio.timeout(5):
            if verb == "resume":
                await node.create(resumed(wanted), own(wanted))
            elif verb == "destroy":
                await node.destroy(wanted.id)
            else:
                await host.keeper.drop(own(wanted))
        assert host.archiver.under_way == 0
        with pytest.raises(Conflict) as caught:
            await archiving
        assert caught.value.code == "broken_off"


async def test_an_archive_ends_with_its_caller(host: Host) -> None:
    assert host.archiver is not None
    async with host.node() as node:
        wanted = await stopped(host, node)
        host.archiver.gate.clear()
        archiving = asyncio.ensure_future(host.keeper.archive(own(wanted), VAULT, nothing_told))
        await until(lambda: host.archiver is not None and host.archiver.under_way)
        archiving.cancel()
        await asyncio.wait([archiving])
        assert host.archiver.under_way == 0 and not node.works.busy


async def test_a_fetch_is_broken_off_where_the_pool_runs_low(host: Host) -> None:
    assert host.archiver is not None
    async with host.node():
        tree, archive = TreeId(new_snapshot_id()), Archive(new_archive_id(), 1, 1, 1, 0)
        for place in (host.home / "trees" / tree, host.home / "store" / VAULT.id / archive.id):
            place.mkdir(parents=True)
        host.archiver.gate.clear()
        fetching = asyncio.ensure_future(host.keeper.fetch(tree, archive, VAULT, nothing_told))
        await until(lambda: host.trees.begun)
        host.trees.low.set()
        with pytest.raises(ExceptionGroup) as caught:
            await fetching
        assert caught.group_contains(TooBusy)
        assert not host.trees.begun and not host.trees.captured


async def test_a_node_that_keeps_archives_nowhere_says_so(host: Host) -> None:
    host.archiver = None
    async with host.node() as node:
        wanted = await stopped(host, node)
        archive = Archive(new_archive_id(), 1, 1, 1, 0)
        for verb in (
            host.keeper.archive(own(wanted), VAULT, nothing_told),
            host.keeper.fetch(TreeId(new_snapshot_id()), archive, VAULT, nothing_told),
            host.keeper.sweep(VAULT, [], older_than_s=0, dry=True),
        ):
            with pytest.raises(Refused) as caught:
                await verb
            assert caught.value.code == "storage_disabled"
        await host.keeper.drop(own(wanted))


async def test_only_ids_reach_the_object_store(host: Host) -> None:
    async with host.node():
        archive = Archive(new_archive_id(), 1, 1, 1, 0)
        tree, bad = TreeId(new_snapshot_id()), TreeId("../../etc")
        for verb in (
            host.keeper.archive(bad, VAULT, nothing_told),
            host.keeper.fetch(bad, archive, VAULT, nothing_told),
            host.keeper.archive(tree, replace(VAULT, id="../x"), nothing_told),  # type: ignore[arg-type]
            host.keeper.archive(tree, replace(VAULT, key=b"short"), nothing_told),
            host.keeper.fetch(tree, replace(archive, id="../x"), VAULT, nothing_told),  # type: ignore[arg-type]
        ):
            with pytest.raises(Invalid):
                await verb


async def test_what_is_forgotten_with_a_tree(host: Host) -> None:
    assert host.archiver is not None
    async with host.node() as node:
        wanted = await stopped(host, node)
        await host.keeper.archive(own(wanted), VAULT, nothing_told)
        assert host.archiver.cache_names == [wanted.id]
        await host.keeper.drop(own(wanted))
        assert host.archiver.forgotten == [wanted.id]
        assert node.list() == []


async def test_a_destroyed_sandbox_is_forgotten(host: Host) -> None:
    assert host.archiver is not None
    async with host.node() as node:
        wanted = await stopped(host, node)
        await host.keeper.archive(own(wanted), VAULT, nothing_told)
        await host.keeper.destroy(wanted.id)
        assert await host.archiver.remembered() == set()


async def test_a_snapshot_that_outlives_its_source_takes_what_is_remembered_of_it_along(host: Host) -> None:
    assert host.archiver is not None
    async with host.node() as node:
        wanted, tree = await stopped(host, node), TreeId(new_snapshot_id())
        await host.keeper.capture(wanted.id, tree)
        await host.keeper.destroy(wanted.id)
        (host.home / "trees" / tree).mkdir()
        await host.keeper.archive(tree, VAULT, nothing_told)
        assert await host.archiver.remembered() == {wanted.id}
        await host.keeper.drop(tree)
        assert await host.archiver.remembered() == set()


async def test_what_a_crash_left_remembered_is_forgotten_now_and_then(host: Host) -> None:
    assert host.archiver is not None
    async with host.node() as node:
        wanted, gone = await stopped(host, node), await stopped(host, node)
        for one in (wanted, gone):
            await host.keeper.archive(own(one), VAULT, nothing_told)
        await node.destroy(gone.id)
        await host.keeper.tidy()
        assert await host.archiver.remembered() == {wanted.id}


async def test_a_stop_of_what_was_never_whole_finds_nothing(host: Host) -> None:
    async with host.node() as node:
        wanted = spec()
        await node.create(wanted)
    (record,) = host.records.load()
    host.records.write(moved(record, Stage.CREATING))
    async with host.node() as node:
        with pytest.raises(NotFound):
            await node.stop(wanted.id, 1)
        assert node.list() == [] and host.left() == {}


async def archiving(host: Host, node: Supervisor, vault: Vault, group: asyncio.TaskGroup) -> asyncio.Task[None]:
    return group.create_task(host.keeper.archive(own(await stopped(host, node)), vault, nothing_told))


async def test_one_vaults_archives_leave_a_turn_to_anothers(host: Host) -> None:
    assert host.archiver is not None
    other = Vault(new_vault_id(), bytes(32))
    async with host.node() as node, asyncio.TaskGroup() as group:
        host.archiver.gate.clear()
        many = [await archiving(host, node, VAULT, group) for _ in range(ARCHIVES_AT_ONCE + 2)]
        await until(lambda: host.archiver and host.archiver.under_way == ARCHIVES_AT_ONCE - 1)
        one = await archiving(host, node, other, group)
        await until(lambda: host.archiver and host.archiver.under_way == ARCHIVES_AT_ONCE)
        host.archiver.gate.set()
        await asyncio.wait_for(one, 10)
        await asyncio.wait_for(asyncio.gather(*many), 10)


async def test_an_archive_that_waits_for_its_turn_is_not_silent(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host.archiver is not None
    monkeypatch.setattr("skerry.node.tree_keeper.WAITING_S", 0.01)
    told: list[Moved] = []

    async def tell(moved: Moved) -> None:
        told.append(moved)

    async with host.node() as node, asyncio.TaskGroup() as group:
        host.archiver.gate.clear()
        many = [await archiving(host, node, VAULT, group) for _ in range(ARCHIVES_AT_ONCE - 1)]
        await until(lambda: host.archiver and host.archiver.under_way == ARCHIVES_AT_ONCE - 1)
        last = group.create_task(host.keeper.archive(own(await stopped(host, node)), VAULT, tell))
        await until(lambda: len(told) >= 3)
        assert set(told) == {Moved(0)}
        host.archiver.gate.set()
        await asyncio.wait_for(asyncio.gather(last, *many), 10)
        assert told[-1].archive is not None

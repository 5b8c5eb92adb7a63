"""A real node with real sandboxes that stop, come back, and are copied while they work."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import cast

import pytest
from node.harness import Node, create, run, spec, until

from skerry.model.capture import Vault
from skerry.model.command import ExecSpec
from skerry.model.errors import Conflict, SkerryError
from skerry.model.ids import TreeId, new_command_id, new_snapshot_id, new_vault_id
from skerry.model.lifecycle import Cause
from skerry.model.sandbox import NetworkMode, Observed, SandboxSpec
from skerry.providers.local import LocalProvider
from skerry.seams import Guest

pytestmark = pytest.mark.runtime

# Counts into two files, the second after the first: a copy of one instant never has the second ahead.
COUNTING = "i=0; while :; do i=$((i+1)); echo $i > /workspace/first; echo $i > /workspace/second; done"
VAULT = Vault(new_vault_id(), bytes(32))


@pytest.fixture(params=["crun", "runsc"])
async def node(request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    node = Node(request.param)
    await node.start()
    yield node
    await node.close()


async def made(provider: LocalProvider) -> SandboxSpec:
    wanted = spec(network_mode=NetworkMode.BRIDGE)
    await provider.create(wanted)
    return wanted


async def resumed(node: Node, wanted: SandboxSpec) -> SandboxSpec:
    again = replace(wanted, generation=wanted.generation + 1)
    await node.provider.create(again, TreeId(wanted.id))
    return again


async def said(guest: Guest, shell: str) -> str:
    exit, out, err = await run(guest, shell)
    assert exit.code == 0, err
    return out.decode().strip()


async def test_f6_five_stops_and_resumes_lose_nothing_that_was_in_the_workspace(node: Node) -> None:
    box = await made(node.provider)
    for cycle in range(5):
        guest = node.provider.guest(box.id)
        # The last line of a file that a program still holds open and never synced.
        await said(guest, f"echo {cycle} > /workspace/{cycle}; mkdir -p /opt/{cycle}; echo x > /root/{cycle}")
        holding = ExecSpec(id=new_command_id(), shell=f"exec 3>/workspace/open-{cycle}; echo {cycle} >&3; sleep 300")
        await guest.exec(holding)
        await until(lambda g=guest, c=cycle: _has(g, f"/workspace/open-{c}"), "the program has written")
        await node.provider.stop(box.id, box.generation)
        box = await resumed(node, box)
    guest = node.provider.guest(box.id)
    assert await said(guest, "cat /workspace/0 /workspace/1 /workspace/2 /workspace/3 /workspace/4") == "0\n1\n2\n3\n4"
    assert await said(guest, "cat /workspace/open-0 /workspace/open-4") == "0\n4"
    assert await said(guest, "ls /opt 2>/dev/null; ls /root; ps | grep -c '[s]leep 300' || true") == "0"


async def _has(guest: Guest, path: str) -> bool:
    return (await run(guest, f"test -s {path}"))[0].code == 0


async def test_a_copy_has_an_identity_of_its_own_and_a_sandbox_that_comes_back_has_it_again(node: Node) -> None:
    box = await made(node.provider)
    first = await said(node.provider.guest(box.id), "cat /etc/machine-id")
    assert re.fullmatch("[0-9a-f]{32}", first)
    copy = spec(hostname="copy")
    await node.provider.create(copy, TreeId(box.id))
    told = await said(node.provider.guest(copy.id), "cat /etc/machine-id; hostname")
    assert told.split()[0] != first and told.split()[1] == "copy"
    await node.provider.stop(box.id, 1)
    box = await resumed(node, box)
    assert await said(node.provider.guest(box.id), "cat /etc/machine-id") == first


async def test_eight_copies_of_a_sandbox_that_writes_are_each_of_one_instant_and_it_goes_on(node: Node) -> None:
    box = await made(node.provider)
    guest = node.provider.guest(box.id)
    writing = ExecSpec(id=new_command_id(), shell=COUNTING)
    await guest.exec(writing)
    await until(lambda: _has(guest, "/workspace/second"), "it writes")
    copies = [spec() for _ in range(8)]
    await asyncio.gather(*(node.provider.create(copy, TreeId(box.id)) for copy in copies))
    for copy in copies:
        first, _, second = (
            await said(node.provider.guest(copy.id), "cat /workspace/first; echo -; cat /workspace/second")
        ).partition("-")
        if first.strip() and second.strip():  # one that was just being written is empty
            assert int(first) - 1 <= int(second) <= int(first)
    assert (await node.provider.command_exits([writing.id]))[writing.id] is None
    before = await said(guest, "cat /workspace/second")
    await until(lambda: _moves(guest, before), "the source goes on")


async def _moves(guest: Guest, before: str) -> bool:
    return await said(guest, "cat /workspace/second") not in ("", before)


async def test_stops_resumes_and_destroys_at_once_end_in_one_state(node: Node) -> None:
    for delay_s in (0.0, 0.01, 0.03, 0.08):
        box = await made(node.provider)
        stopping = asyncio.ensure_future(node.provider.stop(box.id, 1))
        await asyncio.sleep(delay_s)
        await node.provider.destroy(box.id)
        await asyncio.wait([stopping])
        assert stopping.exception() is None or isinstance(stopping.exception(), SkerryError)
    assert await node.provider.list() == [] and node.leaks() == []
    box = await made(node.provider)
    for _ in range(3):
        again = replace(box, generation=box.generation + 1)
        told = await asyncio.gather(
            node.provider.stop(box.id, box.generation),
            node.provider.create(again, TreeId(box.id)),
            return_exceptions=True,
        )
        assert told[0] is None and (not isinstance(told[1], BaseException) or isinstance(told[1], Conflict)), told
        if isinstance(told[1], Conflict):  # it came before the stop
            await node.provider.create(again, TreeId(box.id))
        box = again
        assert await node.provider.list() == [Observed(box.id, box.generation, running=True)]


async def test_what_a_killed_host_left_is_stopped_and_resumed(node: Node) -> None:
    box = await made(node.provider)
    await said(node.provider.guest(box.id), "echo kept > /workspace/note")
    await node.provider.shutdown(stop_sandboxes=True)
    assert node.process is not None
    assert await asyncio.to_thread(node.process.wait, 30) == 0
    await node.start()
    (seen,) = await node.provider.list()
    assert (seen.running, seen.stopped, seen.cause) == (False, False, Cause.HOST_RESTART)
    await node.provider.stop(box.id, 1)
    box = await resumed(node, box)
    assert await said(node.provider.guest(box.id), "cat /workspace/note") == "kept"


async def test_a_resume_breaks_an_archive_off_and_does_not_wait_for_it(node: Node) -> None:
    box = await made(node.provider)
    await node.provider.stop(box.id, 1)
    (node.home / "store").mkdir(exist_ok=True)
    (node.home / "store" / "slow").touch()
    steps = node.provider.archive(TreeId(box.id), VAULT)
    await anext(steps)
    box = await resumed(node, box)
    with pytest.raises(Conflict) as caught:
        async for _ in steps:
            pass
    assert caught.value.code == "broken_off"
    await said(node.provider.guest(box.id), "echo writable > /workspace/note")


async def test_a_fetch_whose_caller_goes_away_leaves_nothing(node: Node) -> None:
    box, tree = await made(node.provider), TreeId(new_snapshot_id())
    await node.provider.capture(box.id, tree)
    archive = [step async for step in node.provider.archive(tree, VAULT)][-1].archive
    assert archive is not None
    await node.provider.drop(tree)
    (node.home / "store" / "slow").touch()
    other = node.connect()
    steps = other.fetch(tree, archive, VAULT)
    await anext(steps)
    await cast(object, steps).aclose()  # type: ignore[attr-defined]
    await other.close()
    await until(lambda: not list((node.home / "pool/captures").iterdir()), "nothing of it is left")


async def test_a_node_that_ends_in_an_archive_leaves_the_tree(node: Node) -> None:
    box = await made(node.provider)
    await node.provider.stop(box.id, 1)
    (node.home / "store").mkdir(exist_ok=True)
    (node.home / "store" / "slow").touch()
    steps = node.provider.archive(TreeId(box.id), VAULT)
    await anext(steps)
    node.kill(signal.SIGTERM)
    with pytest.raises(SkerryError):
        async for _ in steps:
            pass
    await node.start()
    assert await node.provider.list() == [Observed(box.id, 1, running=False, stopped=True)]
    (node.home / "store" / "slow").unlink()
    assert [step async for step in node.provider.archive(TreeId(box.id), VAULT)][-1].archive is not None


async def test_capabilities_say_where_archives_lie_and_whether_that_works(node: Node) -> None:
    _, _ = await create(node.provider)
    told = await node.provider.capabilities()
    assert told.storage == f"file://{node.home / 'archive'}"
    (probe,) = [probe for probe in told.probes if probe.name == "object store"]
    assert probe.ok and not probe.required, probe

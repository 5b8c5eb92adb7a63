"""`kill -9` of a real node at each step of stop, resume, capture, copy, fetch and drop: all finished, or undone.

A usual run kills at every third step, `./skerry test --all` at each.
"""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from node.harness import Node, run, spec
from node.node_steps import Step, after, before, crash, traced

from skerry.model.capture import Archive, Moved, Vault
from skerry.model.ids import TreeId, new_snapshot_id, new_vault_id
from skerry.model.sandbox import Observed, SandboxSpec

pytestmark = pytest.mark.runtime

STOP = (
    before("node.records:Records.write"),
    after("node.records:Records.write"),
    after("node.lives:Lives.drop"),
    after("node.runtimes.command_line:CommandLine.delete"),
    after("node.layers:Layers._unmount"),
    after("node.layers:Layers._put_away"),
    after("node.trees:BtrfsTrees.seal"),
    after("node.trees:BtrfsTrees.flush"),
    after("node.steps:halt"),
    after("node.supervisor:Supervisor._put_down"),
)
RESUME = (
    after("node.records:Records.write"),
    after("node.layers:Layers._put_away"),
    after("node.trees:BtrfsTrees.seal"),
    after("node.layers:Layers._lay"),
    after("node.layer_mounts:LayerMounts.mount"),
    after("node.layers:Layers.resume"),
    after("node.network.network:Network.attach"),
    after("node.oci:write"),
    after("node.runtimes.command_line:CommandLine.start"),
    after("guest.connection:connect"),
    after("node.steps:start"),
    after("node.supervisor:Supervisor._make"),
)
CAPTURE = (
    after("node.captures:Captures._begin"),
    before("node.trees:BtrfsTrees.copy"),
    after("node.trees:BtrfsTrees.copy"),
    after("node.captures:Captures._finish"),
)
COPY = (
    after("node.layers:Layers._lay"),
    after("node.trees:BtrfsTrees.copy"),
    after("node.layers:Layers._make"),
    after("node.steps:start"),
)
FETCH = (
    after("node.captures:Captures.begin"),
    before("node.captures:Captures.finish"),
    after("node.trees:BtrfsTrees.seal"),
    after("node.trees:BtrfsTrees.flush"),
    after("node.captures:Captures._finish"),
)
DROP = (
    before("node.trees:BtrfsTrees.remove"),
    after("node.trees:BtrfsTrees.remove"),
    after("node.captures:Captures.remove"),
)
VAULT = Vault(new_vault_id(), bytes(32))


def named(steps: tuple[Step, ...]) -> list[object]:
    """All of them on crun; what the runtime has a part in on gVisor, too. A usual run takes every third."""
    every = [("crun", step) for step in steps] + [("runsc", step) for step in steps if "runtimes" in step.where]
    return [
        pytest.param(runtime, step, id=f"{runtime}-{step}", marks=() if number % 3 == 0 else pytest.mark.long)
        for number, (runtime, step) in enumerate(every)
    ]


@pytest.fixture
async def node(request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    runtime = request.node.callspec.params.get("runtime", "crun")
    node = traced(runtime)
    await node.start()
    yield node
    await node.close()


async def made(node: Node) -> SandboxSpec:
    wanted = spec()
    await node.provider.create(wanted)
    assert (await run(node.provider.guest(wanted.id), "echo kept > /workspace/note; touch /outside"))[0].code == 0
    return wanted


async def note(node: Node, wanted: SandboxSpec) -> bytes:
    return (await run(node.provider.guest(wanted.id), "cat /workspace/note; ls /outside"))[1]


def nothing_stray(node: Node, *known: str) -> None:
    left = [line for line in node.leaks() if not any(one in line for one in known)]
    assert left == []


@pytest.mark.parametrize(("runtime", "step"), named(STOP))
async def test_f34_a_stop_is_finished_or_not_begun(node: Node, runtime: str, step: Step) -> None:
    wanted = await made(node)
    answered = await crash(node, step, node.provider.stop(wanted.id, 1))
    (seen,) = await node.provider.list()
    assert seen.stopped or (seen.running and step == STOP[0]), seen
    assert seen.stopped or not answered
    await node.provider.stop(wanted.id, 1)
    assert await node.provider.list() == [Observed(wanted.id, 1, running=False, stopped=True)]
    assert [path.name for path in (node.home / "pool/sandboxes" / wanted.id).iterdir()] == ["workspace"]
    nothing_stray(node, f"pool/sandboxes/{wanted.id}", f"node/sandboxes/{wanted.id}")
    again = replace(wanted, generation=2)
    await node.provider.create(again, TreeId(wanted.id))
    assert await note(node, again) == b"kept\n"


@pytest.mark.parametrize(("runtime", "step"), named(RESUME))
async def test_f34_a_resume_is_whole_or_undone(node: Node, runtime: str, step: Step) -> None:
    wanted = await made(node)
    await node.provider.stop(wanted.id, 1)
    again = replace(wanted, generation=2)
    await crash(node, step, node.provider.create(again, TreeId(wanted.id)))
    (seen,) = await node.provider.list()
    assert seen in (
        Observed(wanted.id, 1, running=False, stopped=True),
        Observed(wanted.id, 2, running=True),
    )
    if seen.stopped:
        nothing_stray(node, f"pool/sandboxes/{wanted.id}", f"node/sandboxes/{wanted.id}")
    await node.provider.create(again, TreeId(wanted.id))
    assert await node.provider.list() == [Observed(wanted.id, 2, running=True)]
    assert await note(node, again) == b"kept\n"


@pytest.mark.parametrize("step", CAPTURE, ids=str)
async def test_f34_a_capture_is_whole_or_not_there(node: Node, step: Step) -> None:
    wanted, tree = await made(node), TreeId(new_snapshot_id())
    answered = await crash(node, step, node.provider.capture(wanted.id, tree))
    assert {held.id for held in await node.provider.trees()} == ({tree} if answered or step == CAPTURE[-1] else set())
    assert await note(node, wanted) == b"kept\n/outside\n"
    await node.provider.capture(wanted.id, tree)
    copy = spec()
    await node.provider.create(copy, tree)
    assert await note(node, copy) == b"kept\n"


@pytest.mark.parametrize("step", COPY, ids=str)
async def test_f34_a_copy_is_whole_or_undone_and_its_source_goes_on(node: Node, step: Step) -> None:
    wanted, copy = await made(node), spec()
    await crash(node, step, node.provider.create(copy, TreeId(wanted.id)))
    assert await note(node, wanted) == b"kept\n/outside\n"
    await node.provider.create(copy, TreeId(wanted.id))
    assert await note(node, copy) == b"kept\n"


@pytest.mark.parametrize("step", FETCH, ids=str)
async def test_f34_a_fetch_is_whole_or_not_there(node: Node, step: Step) -> None:
    wanted = await made(node)
    await node.provider.stop(wanted.id, 1)
    archive = await archived(node, TreeId(wanted.id))
    await node.provider.drop(TreeId(wanted.id))
    await crash(node, step, drained(node.provider.fetch(TreeId(wanted.id), archive, VAULT)))
    held = {held.id for held in await node.provider.trees()}
    assert held == ({wanted.id} if step == FETCH[-1] else set())
    if not held:
        nothing_stray(node)
    await drained(node.provider.fetch(TreeId(wanted.id), archive, VAULT))
    again = replace(wanted, generation=2)
    await node.provider.create(again, TreeId(wanted.id))
    assert await note(node, again) == b"kept\n"


@pytest.mark.parametrize("step", DROP, ids=str)
async def test_f34_a_drop_is_finished(node: Node, step: Step) -> None:
    wanted, tree = await made(node), TreeId(new_snapshot_id())
    await node.provider.capture(wanted.id, tree)
    await crash(node, step, node.provider.drop(tree))
    await node.provider.drop(tree)
    assert await node.provider.trees() == []
    nothing_stray(node, wanted.id)
    await node.provider.stop(wanted.id, 1)
    await crash(node, after("node.records:Records.write"), node.provider.drop(TreeId(wanted.id)))
    assert await node.provider.list() == []
    nothing_stray(node)


async def drained(steps: AsyncIterator[Moved]) -> list[Moved]:
    return [step async for step in steps]


async def archived(node: Node, tree: TreeId) -> Archive:
    archive = (await drained(node.provider.archive(tree, VAULT)))[-1].archive
    assert archive is not None
    return archive

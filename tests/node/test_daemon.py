"""A real node with real sandboxes, through its socket."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from harness import Node, create, gathered, run, spec, until

from skerry.model.command import CommandCause, ExecSpec, Exit, Lost, Output
from skerry.model.errors import Conflict, GuestError, NotFound, SandboxGone, Unavailable
from skerry.model.ids import new_command_id
from skerry.model.lifecycle import Cause

pytestmark = pytest.mark.runtime


@pytest.fixture(params=["crun", "runsc"])
async def node(request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    node = Node(request.param)
    await node.start()
    yield node
    await node.close()


async def test_a_sandbox_is_made_runs_a_command_and_is_gone_after_destroy(node: Node) -> None:
    wanted = spec(env={"GREETING": "hello"})
    placement = await node.provider.create(wanted)
    assert placement.runtime == node.runtime
    assert await node.provider.create(wanted) == placement
    guest = node.provider.guest(wanted.id)
    exit, out, err = await run(guest, 'echo "$GREETING"; hostname; echo oops >&2; exit 5')
    assert (exit.code, out, err) == (5, b"hello\nbox\n", b"oops\n")
    await node.provider.destroy(wanted.id)
    await node.provider.destroy(wanted.id)
    assert await node.provider.list() == []
    with pytest.raises(NotFound):
        await guest.exec(ExecSpec(id=new_command_id(), argv=("true",)))
    assert node.leaks() == []

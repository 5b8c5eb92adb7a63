"""The provider of this host's sandboxes against a node of one table: which calls it makes, and when."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from test_rpc import serving_table

from skerry.guest.shapes import Json
from skerry.model.command import CommandEvent, ExecSpec, Exit, Output
from skerry.model.errors import NotFound
from skerry.model.ids import CommandId, SandboxId
from skerry.node.rpc import Call
from skerry.providers.local import LocalProvider
from skerry.providers.node_client import UNCLAIMED_S

BOX, OTHER, COMMAND = SandboxId("sbx_one"), SandboxId("sbx_two"), CommandId("cmd_one")
END: Json = {
    "exit": {
        "code": 0, "signal": None, "timed_out": False, "offset": 3, "duration_ms": 1, "cause": None, "detail": ""
    }
}  # fmt: skip


class Node:
    """Runs one command that prints `out`, and notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.given_up = asyncio.Event()
        self.ends = True

    async def exec(self, call: Call) -> Json:
        self.asked.append("exec")
        await call.event({"started": True})
        return await self._print(call)

    async def output(self, call: Call) -> Json:
        self.asked.append("output")
        if call.ask["sandbox"] != BOX:
            raise NotFound("No such command in this sandbox.")
        return await self._print(call)

    async def _print(self, call: Call) -> Json:
        await call.data(b"out", 1)
        try:
            if not self.ends:
                await asyncio.Event().wait()
        finally:
            self.given_up.set()
        return END


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
async def provider(node: Node, tmp_path: Path) -> AsyncIterator[LocalProvider]:
    async with serving_table(tmp_path / "n.sock", {"exec": node.exec, "output": node.output}):
        provider = LocalProvider(tmp_path / "n.sock")
        yield provider
        await provider.close()


async def printed(events: AsyncIterator[CommandEvent]) -> bytes:
    found = [event async for event in events]
    assert isinstance(found[-1], Exit)
    return b"".join(event.data for event in found if isinstance(event, Output))


async def test_a_command_that_is_started_and_followed_costs_one_call(node: Node, provider: LocalProvider) -> None:
    await provider.guest(BOX).exec(ExecSpec(id=COMMAND, argv=("true",)))
    assert await printed(provider.output(BOX, COMMAND)) == b"out"
    assert node.asked == ["exec"]


async def test_every_other_reader_makes_a_call_of_its_own(node: Node, provider: LocalProvider) -> None:
    await provider.guest(BOX).exec(ExecSpec(id=COMMAND, argv=("true",)))
    assert await printed(provider.output(BOX, COMMAND, follow=False)) == b"out"
    assert await printed(provider.guest(BOX).attach(COMMAND)) == b"out"
    assert await printed(provider.output(BOX, COMMAND)) == b"out"
    assert node.asked == ["exec", "output", "output"]


async def test_the_output_of_a_start_is_not_given_to_another_sandbox(provider: LocalProvider) -> None:
    await provider.guest(BOX).exec(ExecSpec(id=COMMAND, argv=("true",)))
    with pytest.raises(NotFound):
        await printed(provider.output(OTHER, COMMAND))


async def test_output_that_nobody_follows_is_given_up(node: Node, provider: LocalProvider) -> None:
    node.ends = False
    await provider.guest(BOX).exec(ExecSpec(id=COMMAND, argv=("true",)))
    await asyncio.wait_for(node.given_up.wait(), UNCLAIMED_S + 10)

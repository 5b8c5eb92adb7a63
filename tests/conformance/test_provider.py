"""The suites of the seams `Provider` and `Guest` on the real node, with real sandboxes of two runtimes."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from node.harness import Node, create, until

from skerry.model.command import ExecSpec
from skerry.model.errors import GuestError
from skerry.model.ids import SandboxId, new_command_id
from skerry.providers.local import LocalProvider
from skerry.testing.guest_suite import GuestSuite, Inside
from skerry.testing.provider_suite import ProviderSuite, World

pytestmark = pytest.mark.runtime


@pytest.fixture(scope="module", params=["crun", "runsc"])
def shared_node(request: pytest.FixtureRequest) -> Iterator[Node]:
    """One node for many tests: a loop ends with its test, so each makes a client of its own."""
    node = Node(request.param)
    asyncio.run(node.start())
    yield node
    asyncio.run(node.close())


@pytest.fixture
async def provider(shared_node: Node) -> AsyncIterator[LocalProvider]:
    provider = shared_node.connect()
    yield provider
    for seen in await provider.list():
        await provider.destroy(seen.id)
    for tree in await provider.trees():
        await provider.drop(tree.id)
    await provider.close()
    assert shared_node.leaks() == []


class TestNodeProvider(ProviderSuite):
    @pytest.fixture
    async def world(self, shared_node: Node, provider: LocalProvider) -> AsyncIterator[World]:
        async def die(sandbox_id: SandboxId) -> None:
            pid_file = next((shared_node.home / "node" / "rt").glob(f"*/*/pids/{sandbox_id}"))
            os.kill(int(pid_file.read_text()), signal.SIGKILL)

        yield World(provider, "tiny", die)


class TestNodeGuest(GuestSuite):
    @pytest.fixture
    async def inside(self, provider: LocalProvider) -> AsyncIterator[Inside]:
        _, guest = await create(provider)

        async def echo_port() -> int:
            await guest.exec(ExecSpec(id=new_command_id(), shell="nc -ll -p 8080 -e cat"))

            async def listens() -> bool:
                try:
                    await (await guest.open_port(8080)).close()
                except GuestError:
                    return False
                return True

            await until(listens, "the port listens")
            return 8080

        await guest.mkdir("/workspace/suite")
        yield Inside(guest, "/workspace/suite", echo_port)


def test_the_socket_belongs_to_root_and_the_api_s_group_alone(shared_node: Node) -> None:
    told = (shared_node.home / "run" / "node.sock").stat()
    assert (told.st_mode & 0o777, told.st_uid) == (0o660, 0)
    assert Path(shared_node.home / "node" / "sandboxes").stat().st_mode & 0o777 == 0o700
    assert Path(shared_node.home / "node" / "spool").stat().st_mode & 0o777 == 0o700

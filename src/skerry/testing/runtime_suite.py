"""What every `Runtime` must do, as tests. A runtime's own test module subclasses `RuntimeSuite` and gives a harness.

class TestCrun(RuntimeSuite):
    @pytest.fixture
    async def harness(self, tmp_path): yield MyHarness(…)
"""

import asyncio
import os
import socket
from typing import Protocol

import pytest

from skerry.model.bundle import Bundle
from skerry.model.errors import Conflict, Refused, SandboxGone
from skerry.model.ids import SandboxId, new_sandbox_id
from skerry.model.lifecycle import Cause
from skerry.seams import Runtime

DEADLINE_S = 30.0


class RuntimeHarness(Protocol):
    """What a suite needs of the runtime under test and of the daemon that runs in its sandboxes."""

    @property
    def runtime(self) -> Runtime: ...

    def another(self) -> Runtime:
        """A second instance of the same runtime on the same state: the node after its own death."""
        ...

    def bundle(self) -> Bundle:
        """A fresh bundle that starts."""
        ...

    def broken(self) -> Bundle:
        """A bundle that cannot start."""
        ...

    async def greeted(self, channel: socket.socket) -> None:
        """Return when the daemon inside has greeted on a new channel."""
        ...

    async def echo(self, channel: socket.socket, text: str) -> str:
        """Have the daemon inside answer with `text`."""
        ...

    async def kill_first_process(self, sandbox_id: SandboxId) -> None:
        """SIGKILL, from the host, whatever `wait_dead` waits for."""
        ...


async def _soon(channel: socket.socket) -> bytes:
    return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(channel, 65_536), DEADLINE_S)


class RuntimeSuite:
    """Subclass it; the fixture `harness` ends every sandbox it made."""

    async def test_a_started_sandbox_answers_on_its_channel(self, harness: RuntimeHarness) -> None:
        channel = await harness.runtime.start(harness.bundle())
        with channel:
            await harness.greeted(channel)
            assert await harness.echo(channel, "here") == "here"

    async def test_the_channel_is_non_blocking_and_not_inherited(self, harness: RuntimeHarness) -> None:
        channel = await harness.runtime.start(harness.bundle())
        with channel:
            assert not channel.getblocking()
            assert not os.get_inheritable(channel.fileno())

    async def test_a_started_sandbox_is_listed_and_runs(self, harness: RuntimeHarness) -> None:
        bundle = harness.bundle()
        with await harness.runtime.start(bundle):
            assert await harness.runtime.running(bundle.sandbox_id)
            assert bundle.sandbox_id in await harness.runtime.list()

    async def test_starting_twice_is_a_conflict_and_harms_nothing(self, harness: RuntimeHarness) -> None:
        bundle = harness.bundle()
        with await harness.runtime.start(bundle) as channel:
            await harness.greeted(channel)
            with pytest.raises(Conflict):
                await harness.runtime.start(bundle)
            assert await harness.echo(channel, "still here") == "still here"

    async def test_a_deleted_sandbox_is_gone(self, harness: RuntimeHarness) -> None:
        bundle = harness.bundle()
        with await harness.runtime.start(bundle) as channel:
            await harness.greeted(channel)
            await harness.runtime.delete(bundle.sandbox_id)
            assert not await harness.runtime.running(bundle.sandbox_id)
            assert bundle.sandbox_id not in await harness.runtime.list()
            assert await _soon(channel) == b""

    async def test_deleting_twice_or_an_unknown_one_succeeds(self, harness: RuntimeHarness) -> None:
        bundle = harness.bundle()
        (await harness.runtime.start(bundle)).close()
        await harness.runtime.delete(bundle.sandbox_id)
        await harness.runtime.delete(bundle.sandbox_id)
        await harness.runtime.delete(new_sandbox_id())

    async def test_an_id_can_be_started_again_after_its_delete(self, harness: RuntimeHarness) -> None:
        bundle = harness.bundle()
        (await harness.runtime.start(bundle)).close()
        await harness.runtime.delete(bundle.sandbox_id)
        with await harness.runtime.start(bundle) as channel:
            await harness.greeted(channel)

    async def test_a_start_that_fails_is_refused_with_words_and_leaves_nothing(self, harness: RuntimeHarness) -> None:
        bundle = harness.broken()
        with pytest.raises(Refused) as refused:
            await harness.runtime.start(bundle)
        assert harness.runtime.name in refused.value.message
        assert bundle.sandbox_id not in await harness.runtime.list()

    async def test_the_sandbox_outlives_its_channel_and_a_bridge_leads_back(self, harness: RuntimeHarness) -> None:
        bundle = harness.bundle()
        with await harness.runtime.start(bundle) as channel:
            await harness.greeted(channel)
        with await harness.runtime.bridge(bundle.sandbox_id) as bridge:
            await harness.greeted(bridge)
            assert await harness.echo(bridge, "back") == "back"
        with await harness.runtime.bridge(bundle.sandbox_id) as again:
            await harness.greeted(again)
            assert await harness.echo(again, "again") == "again"

    async def test_a_bridge_to_a_sandbox_that_does_not_run_says_so(self, harness: RuntimeHarness) -> None:
        with pytest.raises(SandboxGone):
            await harness.runtime.bridge(new_sandbox_id())

    async def test_a_death_is_told_with_its_cause(self, harness: RuntimeHarness) -> None:
        bundle = harness.bundle()
        with await harness.runtime.start(bundle) as channel:
            await harness.greeted(channel)
            waiting = asyncio.ensure_future(harness.runtime.wait_dead(bundle.sandbox_id))
            done, _ = await asyncio.wait([waiting], timeout=0.05)
            assert not done
            await harness.kill_first_process(bundle.sandbox_id)
            assert await asyncio.wait_for(waiting, DEADLINE_S) is Cause.RUNTIME_DIED
            assert not await harness.runtime.running(bundle.sandbox_id)

    async def test_waiting_for_one_that_is_dead_returns_at_once(self, harness: RuntimeHarness) -> None:
        assert await asyncio.wait_for(harness.runtime.wait_dead(new_sandbox_id()), 1) is Cause.RUNTIME_DIED

    async def test_another_node_process_adopts_what_runs(self, harness: RuntimeHarness) -> None:
        bundle = harness.bundle()
        with await harness.runtime.start(bundle) as channel:
            await harness.greeted(channel)
        other = harness.another()
        assert await other.running(bundle.sandbox_id)
        with await other.bridge(bundle.sandbox_id) as bridge:
            await harness.greeted(bridge)
            assert await harness.echo(bridge, "adopted") == "adopted"
        waiting = asyncio.ensure_future(other.wait_dead(bundle.sandbox_id))
        await other.delete(bundle.sandbox_id)
        assert await asyncio.wait_for(waiting, DEADLINE_S) is Cause.RUNTIME_DIED
        assert bundle.sandbox_id not in await other.list()

    async def test_a_cancelled_start_leaves_nothing(self, harness: RuntimeHarness) -> None:
        for delay_s in (0.0, 0.002, 0.01, 0.05):
            bundle = harness.bundle()
            starting = asyncio.ensure_future(harness.runtime.start(bundle))
            await asyncio.wait([starting], timeout=delay_s)
            starting.cancel()
            try:
                (await starting).close()
            except asyncio.CancelledError:
                assert bundle.sandbox_id not in await harness.runtime.list()
                assert not await harness.runtime.running(bundle.sandbox_id)
            await harness.runtime.delete(bundle.sandbox_id)

    async def test_several_start_and_end_at_once(self, harness: RuntimeHarness) -> None:
        async def live() -> str:
            bundle = harness.bundle()
            with await harness.runtime.start(bundle) as channel:
                await harness.greeted(channel)
                said = await harness.echo(channel, bundle.sandbox_id)
                await harness.runtime.delete(bundle.sandbox_id)
                return said if said == bundle.sandbox_id else ""

        assert all(await asyncio.gather(*(live() for _ in range(4))))

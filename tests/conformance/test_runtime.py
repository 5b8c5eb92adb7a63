"""The three runtimes against the suite that every runtime passes."""

import os
import signal
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from node.boxes import Box, Boxes

from skerry.model.bundle import Bundle
from skerry.model.ids import SandboxId
from skerry.node.runtimes import RUNTIMES
from skerry.node.runtimes.command_line import CommandLine
from skerry.testing.runtime_suite import RuntimeSuite

pytestmark = pytest.mark.runtime


class Harness:
    def __init__(self, boxes: Boxes) -> None:
        self.boxes = boxes
        self.runtime = boxes.runtime
        self.others: list[CommandLine] = []
        self.bundles: list[Bundle] = []

    def another(self) -> CommandLine:
        self.others.append(RUNTIMES[self.runtime.name](self.boxes.config))
        return self.others[-1]

    def bundle(self) -> Bundle:
        self.bundles.append(self.boxes.bundle())
        return self.bundles[-1]

    def broken(self) -> Bundle:
        return replace(self.bundle(), sbxd=Path("/nonexistent/sbxd"))

    async def greeted(self, channel: socket.socket) -> None:
        await Box(self.bundles[-1], channel).greeting()

    async def echo(self, channel: socket.socket, text: str) -> str:
        return (await Box(self.bundles[-1], channel).run(f"printf %s '{text}'")).output

    async def kill_first_process(self, sandbox_id: SandboxId) -> None:
        os.kill(int(self.runtime.pid_file(sandbox_id).read_text()), signal.SIGKILL)

    async def close(self) -> None:
        for bundle in self.bundles:
            await self.runtime.delete(bundle.sandbox_id)
        for other in self.others:
            await other.close()
        await self.boxes.close()


@pytest.mark.parametrize("name", RUNTIMES, scope="class")
class TestRuntime(RuntimeSuite):
    @pytest.fixture
    async def harness(self, name: str) -> AsyncIterator[Harness]:
        harness = Harness(Boxes.open(name))
        yield harness
        await harness.close()

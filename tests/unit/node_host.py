"""A node on fake parts, that can be killed and started again."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from node.copying_archiver import CopyingArchiver
from unit.node_fakes import FakeImages, FakeLayers, FakeNetwork, FakeRuntime, FakeTrees, Faults, Machine

from skerry.model.command import CommandEvent, ExecSpec
from skerry.model.ids import SandboxId, new_command_id, new_sandbox_id
from skerry.model.sandbox import Limits, NetworkMode, SandboxSpec
from skerry.node.parts import Parts
from skerry.node.records import Records
from skerry.node.spool import Spool
from skerry.node.supervisor import Supervisor
from skerry.node.tree_keeper import TreeKeeper


@dataclass
class Host:
    """A node's parts and its directory, which outlive the supervisors that are made on them."""

    home: Path
    faults: Faults
    runtime: FakeRuntime
    layers: FakeLayers
    network: FakeNetwork
    trees: FakeTrees
    archiver: CopyingArchiver | None

    @property
    def records(self) -> Records:
        return Records(self.home / "sandboxes")

    @asynccontextmanager
    async def node(self, *, return_s: float = 10.0, adopt_s: float = 10.0) -> AsyncGenerator[Supervisor]:
        """A supervisor that has adopted what there was; leaving kills it, and not its sandboxes."""
        images, bundles = FakeImages(self.faults), self.home / "bundles"
        parts = self.parts = Parts(
            self.runtime, self.layers, images, self.network, Path("/sbxd"), bundles, self.trees, self.archiver
        )
        (self.home / "bundles").mkdir(exist_ok=True)
        try:
            async with asyncio.TaskGroup() as group:
                self.group = group
                self.spool = Spool(self.home / "spool", 1 << 20, 60)
                supervisor = Supervisor(parts, self.records, self.spool, group)
                supervisor.lives.return_s, supervisor.lives.adopt_s = return_s, adopt_s
                self.keeper = TreeKeeper(parts, supervisor, group)
                await supervisor.adopt()
                yield supervisor
                raise Killed
        except BaseExceptionGroup as errors:
            if rest := errors.split(Killed)[1]:
                raise rest from None

    def a_machine(self) -> Machine:
        return Machine()

    def left(self) -> dict[str, object]:
        """What there is of sandboxes anywhere."""
        files = [path.name for path in (self.home / "sandboxes").iterdir()]
        held = {"runtime": set(self.runtime.machines), "layers": self.layers.held, "network": self.network.held}
        return {name: what for name, what in {**held, "records": files}.items() if what}

    async def run(self, node: Supervisor, sandbox_id: SandboxId, shell: str = "x") -> list[CommandEvent]:
        command = ExecSpec(id=new_command_id(), shell=shell)
        _, runner = node.inside(sandbox_id)
        await runner.exec(command, self.group)
        async with asyncio.timeout(10):
            return [event async for event in self.spool.follow(sandbox_id, command.id)]


class Killed(Exception):
    """Ends a node as a SIGKILL would."""


@asynccontextmanager
async def a_host(directory: Path) -> AsyncGenerator[Host]:
    faults = Faults()
    layers = FakeLayers(faults)
    trees, archiver = FakeTrees(faults, layers, directory / "trees"), CopyingArchiver(directory / "store")
    host = Host(directory, faults, FakeRuntime(faults), layers, FakeNetwork(faults), trees, archiver)
    yield host
    await host.runtime.close()
    assert not [pair for pair in faults.overlaps if not pair[0].startswith("runtime")], faults.overlaps


def spec(**changes: object) -> SandboxSpec:
    made = SandboxSpec(new_sandbox_id(), 1, "tiny", Limits(), NetworkMode.NONE, "box")
    return replace(made, **changes)  # type: ignore[arg-type]


async def until(condition: object) -> None:
    async with asyncio.timeout(10):
        while not condition():  # type: ignore[operator]  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.005)

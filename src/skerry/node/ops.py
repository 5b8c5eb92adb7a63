"""The ops of the node's socket: each takes a call, asks the supervisor, the spool or a guest, and answers.

A table of short functions. What is sent and answered here is the counterpart of `providers/local.py` and
`providers/local_guest.py`; the nouns' JSON is in `guest/shapes.py`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from typing import cast

from skerry.guest import shapes
from skerry.guest.sbxd_guest import SbxdGuest
from skerry.guest.shapes import Json
from skerry.model.capability import Capabilities, Health
from skerry.model.command import CommandEvent, Lost, Output
from skerry.model.errors import NotFound, Unavailable
from skerry.model.files import FileInfo
from skerry.model.ids import CommandId, SandboxId, TreeId
from skerry.node import leaks
from skerry.node.commands import Runner
from skerry.node.parts import Parts
from skerry.node.rpc import Call, Handler
from skerry.node.sampler import Sampler
from skerry.node.spool import Spool
from skerry.node.supervisor import Supervisor
from skerry.node.tree_keeper import TreeKeeper
from skerry.node.tree_ops import TreeOps
from skerry.seams import ByteStream

LIST_BATCH = 256  # directory entries in one event
SAMPLES_BATCH = 120  # in one event: less than half of what a frame takes

ANSWER_S = 0.1  # from the answer to `shutdown` to the end


class Ops:
    """The table. Until `open` was called every op but `ping` is answered with Unavailable."""

    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop
        self._stopping = False
        self._supervisor: Supervisor | None = None
        self._spool: Spool | None = None
        self._parts: Parts | None = None
        self._group: asyncio.TaskGroup | None = None
        self._capabilities: Capabilities | None = None
        self._sampler: Sampler | None = None
        self._keeper: TreeKeeper | None = None

    def open(
        self,
        supervisor: Supervisor,
        spool: Spool,
        parts: Parts,
        group: asyncio.TaskGroup,
        capabilities: Capabilities,
        sampler: Sampler,
        keeper: TreeKeeper,
    ) -> None:
        self._supervisor, self._spool, self._parts, self._group = supervisor, spool, parts, group
        self._capabilities, self._sampler = capabilities, sampler
        self._keeper = keeper

    def table(self) -> dict[str, Handler]:
        return {
            "ping": self.ping,
            "capabilities": self.capabilities,
            "create": self.create,
            "stop": self.stop,
            "destroy": self.destroy,
            **TreeOps(self._trees).table(),
            "sandboxes": self.sandboxes,
            "deaths": self.deaths,
            "metrics": self.metrics,
            "health": self.health,
            "leaks": self.leaks,
            "templates": self.templates,
            "build_template": self.build_template,
            "shutdown": self.shutdown,
            "exec": self.exec,
            "output": self.output,
            "exits": self.exits,
            "signal": self.signal,
            "kill": self.kill,
            "resize": self.resize,
            "stdin": self.stdin,
            "read": self.read,
            "write": self.write,
            "list": self.list,
            "stat": self.stat,
            "mkdir": self.mkdir,
            "move": self.move,
            "remove": self.remove,
            "setattr": self.set_attributes,
            "pack": self.pack,
            "unpack": self.unpack,
            "watch": self.watch,
            "processes": self.processes,
            "ports": self.ports,
            "port": self.port,
        }

    # -- the node ----------------------------------------------------------------------------------------------

    @property
    def _node(self) -> Supervisor:
        if self._supervisor is None:
            raise Unavailable("The node is starting and takes its sandboxes over. Try again in a moment.")
        if self._stopping:
            raise Unavailable("The node is being shut down.")
        return self._supervisor

    def _trees(self) -> TreeKeeper:
        _ = self._node
        assert self._keeper is not None
        return self._keeper

    @property
    def _outputs(self) -> Spool:
        _ = self._node
        assert self._spool is not None
        return self._spool

    async def ping(self, call: Call) -> Json:
        return {"ready": self._supervisor is not None}

    async def capabilities(self, call: Call) -> Json:
        _ = self._node
        assert self._capabilities is not None
        return shapes.capabilities_to(self._capabilities)

    async def create(self, call: Call) -> Json:
        spec, tree = shapes.spec_from(call.ask["spec"]), call.ask["tree"]
        return shapes.placement_to(await self._node.create(spec, None if tree is None else TreeId(tree)))

    async def stop(self, call: Call) -> None:
        await self._node.stop(_sandbox(call), call.ask["generation"])

    async def destroy(self, call: Call) -> None:
        await self._trees().destroy(_sandbox(call))

    async def sandboxes(self, call: Call) -> None:
        # Events, not one answer: thousands of sandboxes do not fit into a frame.
        seen = self._node.list()
        for one in [*seen, *await self._trees().fetched({one.id for one in seen})]:
            await call.event(shapes.observed_to(one))

    async def deaths(self, call: Call) -> None:
        async with aclosing(self._node.lives.deaths.watch()) as deaths:
            await call.event({"watching": True})
            async for seen in deaths:
                await call.event(shapes.observed_to(seen))

    async def metrics(self, call: Call) -> Json:
        """Events with a part of the history each; what is used now is the result."""
        _ = self._node
        assert self._sampler is not None
        told = await self._sampler.metrics(_sandbox(call))
        for at in range(0, len(told.history), SAMPLES_BATCH):
            await call.event({"samples": [shapes.sample_to(one) for one in told.history[at : at + SAMPLES_BATCH]]})
        return {"interval_s": told.interval_s, "now": None if told.now is None else shapes.sample_to(told.now)}

    async def health(self, call: Call) -> Json:
        _ = self._node
        assert self._parts is not None
        total, free = await self._parts.layers.room()
        return shapes.health_to(Health(self._parts.runtime.name, self.running_sandboxes(), total, free))

    async def leaks(self, call: Call) -> None:
        node, parts = self._node, self._parts
        assert parts is not None
        for leak in await leaks.find(parts, node):
            await call.event(shapes.leak_to(leak))

    async def templates(self, call: Call) -> Json:
        _ = self._node
        assert self._parts is not None
        return {"templates": [shapes.template_to(state) for state in await self._parts.images.states()]}

    async def build_template(self, call: Call) -> None:
        _ = self._node
        assert self._parts is not None
        async for progress in self._parts.images.build(call.ask["name"]):
            await call.event(shapes.progress_to(progress))

    async def shutdown(self, call: Call) -> None:
        """End this process; with `stop`, the sandboxes' processes before (their files are kept). Then answers."""
        if call.ask.get("stop"):
            node, self._stopping = self._node, True
            await node.stop_all()
        # The end cuts all connections: the answer, which the loop writes in its next turn, has to be out by then.
        asyncio.get_running_loop().call_later(ANSWER_S, self._stop.set)

    def running_sandboxes(self) -> int:
        """How many sandboxes run, or may: what they stand on has to stay when the node goes. Before `open`: 1."""
        if self._supervisor is None:
            return 1
        return sum(seen.running for seen in self._supervisor.list())

    # -- commands ----------------------------------------------------------------------------------------------

    def _inside(self, call: Call) -> tuple[SbxdGuest, Runner]:
        return self._node.inside(_sandbox(call))

    async def exec(self, call: Call) -> Json | None:
        """Start a command; with `follow`, go on with its output as `output` does: one call for the whole command."""
        _, runner = self._inside(call)
        spec = shapes.exec_from(call.ask["spec"])
        assert self._group is not None
        await runner.exec(spec, self._group)
        if not call.ask.get("follow"):
            return None
        await call.event({"started": True})
        return await self._follow(call, _sandbox(call), spec.id, 0)

    async def output(self, call: Call) -> Json:
        """DATA as (channel, bytes) from `from` on, events for what is lost, and the exit as the result."""
        follow = call.ask.get("follow", True)
        return await self._follow(call, _sandbox(call), CommandId(call.ask["command"]), call.ask["from"], follow=follow)

    async def _follow(
        self, call: Call, sandbox_id: SandboxId, command_id: CommandId, offset: int, *, follow: bool = True
    ) -> Json:
        events = self._outputs.follow(sandbox_id, command_id, offset, follow=follow)
        async with aclosing(cast(AsyncGenerator[CommandEvent], events)) as following:
            async for event in following:
                if isinstance(event, Output):
                    await call.data(event.data, event.channel)
                elif isinstance(event, Lost):
                    await call.event({"lost": event.length})
                else:
                    return {"exit": shapes.exit_to(event)}
        return {"exit": None}

    async def exits(self, call: Call) -> Json:
        told: Json = {}
        for command_id in call.ask["commands"]:
            with suppress(NotFound):
                exit = self._outputs.exit_of(command_id)
                told[command_id] = None if exit is None else shapes.exit_to(exit)
        return {"exits": told}

    async def signal(self, call: Call) -> None:
        if (runner := self._acting(call)) is not None:
            await runner.signal(_command(call), call.ask["signal"], call.ask["scope"])

    async def kill(self, call: Call) -> None:
        if (runner := self._acting(call)) is not None:
            await runner.kill(_command(call))

    async def resize(self, call: Call) -> None:
        if (runner := self._acting(call)) is not None:
            await runner.resize(_command(call), shapes.size_from(call.ask["size"]))

    async def stdin(self, call: Call) -> None:
        """DATA until EOF is written to the command's stdin; with `close`, stdin ends after it."""
        runner = self._acting(call)
        while data := await call.receive():
            if runner is not None:
                await runner.write_stdin(_command(call), data)
        if runner is not None and call.ask["close"]:
            await runner.close_stdin(_command(call))

    def _acting(self, call: Call) -> Runner | None:
        """Who acts on the command; None when it has ended, alive or not its sandbox."""
        command_id = _command(call)
        self._outputs.check_owner(command_id, _sandbox(call))
        return None if self._outputs.exit_of(command_id) is not None else self._inside(call)[1]

    # -- files and ports ---------------------------------------------------------------------------------------

    async def read(self, call: Call) -> None:
        guest, _ = self._inside(call)
        async with guest.read(call.ask["path"], call.ask["offset"], call.ask["length"]) as file:
            await call.event(shapes.info_to(file.info))
            async for chunk in file:
                await call.data(chunk)

    async def write(self, call: Call) -> Json:
        guest, _ = self._inside(call)
        mode, create_only = call.ask["mode"], call.ask["create_only"]
        return shapes.info_to(await guest.write(call.ask["path"], _chunks(call), mode=mode, create_only=create_only))

    async def list(self, call: Call) -> None:
        guest, _ = self._inside(call)
        batch: list[Json] = []
        size = 0
        async with aclosing(cast(AsyncGenerator[FileInfo], guest.list(call.ask["path"]))) as entries:
            async for info in entries:
                batch.append(shapes.info_to(info))
                size += len(info.path) + len(info.name) + len(info.target or "")
                if len(batch) == LIST_BATCH or size > 10_000:  # a character may take 12 bytes in JSON
                    await call.event({"entries": batch})
                    batch, size = [], 0
        if batch:
            await call.event({"entries": batch})

    async def stat(self, call: Call) -> Json:
        guest, _ = self._inside(call)
        return shapes.info_to(await guest.stat(call.ask["path"], follow=call.ask["follow"]))

    async def mkdir(self, call: Call) -> Json:
        guest, _ = self._inside(call)
        ask = call.ask
        return shapes.info_to(await guest.mkdir(ask["path"], parents=ask["parents"], mode=ask["mode"]))

    async def move(self, call: Call) -> Json:
        guest, _ = self._inside(call)
        ask = call.ask
        return shapes.info_to(await guest.move(ask["source"], ask["target"], overwrite=ask["overwrite"]))

    async def remove(self, call: Call) -> Json:
        guest, _ = self._inside(call)
        return {"removed": await guest.remove(call.ask["path"], recursive=call.ask["recursive"])}

    async def set_attributes(self, call: Call) -> Json:
        guest, _ = self._inside(call)
        given = {name: call.ask[name] for name in ("mode", "mtime_ns", "now", "create")}
        return shapes.info_to(await guest.set_attributes(call.ask["path"], **given))

    async def pack(self, call: Call) -> Json:
        """DATA is the tar stream; the result says what is in it."""
        guest, _ = self._inside(call)
        async with guest.pack(call.ask["path"], shapes.limits_from(call.ask["limits"])) as archive:
            await call.event({"packing": True})
            async for chunk in archive:
                await call.data(chunk)
            return shapes.archived_to(archive.result)

    async def unpack(self, call: Call) -> Json:
        guest, _ = self._inside(call)
        limits = shapes.limits_from(call.ask["limits"])
        return shapes.archived_to(await guest.unpack(call.ask["path"], _chunks(call), limits))

    async def processes(self, call: Call) -> None:
        guest, _ = self._inside(call)
        for process in await guest.processes():  # an event each: one may fill half a frame
            await call.event(shapes.process_to(process))

    async def ports(self, call: Call) -> None:
        guest, _ = self._inside(call)
        for port in await guest.ports():
            await call.event(shapes.port_to(port))

    async def watch(self, call: Call) -> None:
        guest, _ = self._inside(call)
        async with guest.watch(call.ask["path"], recursive=call.ask["recursive"]) as changes:
            await call.event({"watching": True})
            async for change in changes:
                await call.event(shapes.change_to(change))

    async def port(self, call: Call) -> None:
        """DATA and EOF both ways until both have ended, or the client goes."""
        guest, _ = self._inside(call)
        stream = await guest.open_port(call.ask["port"])
        try:
            await call.event({"connected": True})
            async with asyncio.TaskGroup() as group:
                group.create_task(_outward(call, stream))
                group.create_task(_inward(call, stream))
        finally:
            await stream.close()


async def _outward(call: Call, stream: ByteStream) -> None:
    while data := await stream.receive():
        await call.data(data)
    await call.eof()


async def _inward(call: Call, stream: ByteStream) -> None:
    async for data in _chunks(call):
        await stream.send(data)
    await stream.send_eof()


async def _chunks(call: Call) -> AsyncIterator[bytes]:
    while data := await call.receive():
        yield data


def _sandbox(call: Call) -> SandboxId:
    return SandboxId(call.ask["sandbox"])


def _command(call: Call) -> CommandId:
    return CommandId(call.ask["command"])

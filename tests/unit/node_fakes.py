"""Fake parts of a node: they remember what they hold, fail where a test wants it, speak a little of sbxd's."""

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from skerry.guest import frames
from skerry.guest.frames import FrameType
from skerry.model.bundle import Bundle, IdRange
from skerry.model.capability import Probe
from skerry.model.capture import Held
from skerry.model.errors import NotFound, SandboxGone, TooBusy
from skerry.model.ids import SandboxId, TreeId
from skerry.model.leak import LeakKind
from skerry.model.lifecycle import Cause
from skerry.model.metrics import Traffic, Usage
from skerry.model.sandbox import Limits, NetworkMode
from skerry.model.template import BuildProgress, TemplateState
from skerry.node.parts import Still
from skerry.node.traces import Trace

GREETING = {"protocol": 1, "sbxd": "0.1.0", "boot": "ab" * 16, "nonce": "cd" * 32}


@dataclass
class Faults:
    """Errors by the name of the step that is to fail; `pause` stops a step until it is set."""

    errors: dict[str, BaseException] = field(default_factory=dict)
    pause: dict[str, asyncio.Event] = field(default_factory=dict)
    running: dict[SandboxId, list[str]] = field(default_factory=dict)
    overlaps: list[tuple[str, str]] = field(default_factory=list)
    taken: Counter[str] = field(default_factory=Counter)  # how often each step was begun

    async def step(self, name: str, sandbox_id: SandboxId) -> None:
        """Wait and fail as told; notes when making and removing the same thing overlap."""
        part = name.partition(".")[0]
        current = self.running.setdefault(sandbox_id, [])
        self.overlaps += [(other, name) for other in current if other.startswith(part)]
        current.append(name)
        self.taken[name] += 1
        try:
            await asyncio.sleep(0)
            if name in self.pause:
                await self.pause[name].wait()
            if name in self.errors:
                raise self.errors[name]
        finally:
            current.remove(name)


@dataclass(frozen=True)
class FakeRootfs:
    root: Path
    workspace: Path


class FakeLayers:
    disk_limit = "none"

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.held: set[SandboxId] = set()
        self.sealed: set[SandboxId] = set()
        self.sources: dict[SandboxId, TreeId | None] = {}

    async def create(
        self, sandbox_id: SandboxId, root: Path, limits: Limits, ids: IdRange | None, source: TreeId | None
    ) -> FakeRootfs:
        self.held.add(sandbox_id)
        self.sources[sandbox_id] = source
        # As the real one: its threads do not stop when the caller does.
        await asyncio.shield(asyncio.ensure_future(self.faults.step("layers.create", sandbox_id)))
        return FakeRootfs(root, root)

    async def mount(self, sandbox_id: SandboxId, root: Path, limits: Limits, ids: IdRange | None) -> FakeRootfs:
        return FakeRootfs(root, root)

    async def resume(self, sandbox_id: SandboxId, root: Path, limits: Limits, ids: IdRange | None) -> FakeRootfs:
        assert sandbox_id in self.held
        self.sealed.discard(sandbox_id)
        await asyncio.shield(asyncio.ensure_future(self.faults.step("layers.resume", sandbox_id)))
        return FakeRootfs(root, root)

    async def stop(self, sandbox_id: SandboxId) -> None:
        await self.faults.step("layers.stop", sandbox_id)
        if sandbox_id not in self.held:
            raise NotFound("No files.", code="tree_missing")
        self.sealed.add(sandbox_id)

    async def unmount(self, sandbox_id: SandboxId) -> None:
        await self.faults.step("layers.unmount", sandbox_id)

    async def destroy(self, sandbox_id: SandboxId) -> None:
        await self.faults.step("layers.destroy", sandbox_id)
        self.held.discard(sandbox_id)
        self.sealed.discard(sandbox_id)

    async def list(self) -> set[SandboxId]:
        return set(self.held)

    async def traces(self) -> Sequence[Trace]:
        return [Trace(LeakKind.SUBVOLUME, one, f"sandboxes/{one}") for one in sorted(self.held)]

    async def enforce_inodes(self) -> set[SandboxId]:
        return set()

    async def charged_bytes(self, sandbox_ids: Sequence[SandboxId]) -> Mapping[SandboxId, int]:
        return {one: 4096 for one in sandbox_ids if one in self.held}

    async def room(self) -> tuple[int, int]:
        return 1 << 30, 1 << 29

    async def probes(self) -> Sequence[Probe]:
        return []


class FakeTrees:
    """Captured trees, by id; the trees of sandboxes are the layers'."""

    def __init__(self, faults: Faults, layers: FakeLayers, directory: Path) -> None:
        self.faults = faults
        self.layers = layers
        self.directory = directory
        self.captured: set[TreeId] = set()
        self.sources: dict[TreeId, SandboxId] = {}
        self.begun: set[TreeId] = set()
        self.low = asyncio.Event()

    async def holds(self, tree: TreeId) -> bool:
        return tree in self.captured or tree in self.layers.held

    async def still(self, tree: TreeId) -> Still:
        if not await self.holds(tree):
            raise NotFound("No such tree.", code="tree_missing")
        return Still(self.directory / tree, datetime.now(UTC), self.sources.get(tree, tree))

    async def capture(self, sandbox_id: SandboxId, tree: TreeId) -> None:
        await self.still(TreeId(sandbox_id))
        self.captured.add(tree)
        self.sources[tree] = sandbox_id

    async def begin(self, tree: TreeId, size_bytes: int) -> Path:
        self.begun.add(tree)
        return self.directory / tree

    async def finish(self, tree: TreeId) -> None:
        self.begun.discard(tree)
        self.captured.add(tree)

    async def undo(self, tree: TreeId) -> None:
        self.begun.discard(tree)

    async def run_low(self) -> TooBusy:
        await self.low.wait()
        return TooBusy("The pool has run low.", code="disk_full")

    async def drop(self, tree: TreeId) -> None:
        self.captured.discard(tree)

    async def held(self, stopped: Sequence[SandboxId]) -> Sequence[Held]:
        return [Held(tree, datetime.now(UTC)) for tree in sorted({*self.captured, *map(TreeId, stopped)})]

    async def lineages(self) -> set[str]:
        return {self.sources.get(tree, tree) for tree in self.captured} | {*self.layers.held}

    async def tidy(self) -> None: ...

    async def traces(self) -> Sequence[Trace]:
        return [Trace(LeakKind.HALF_TREE, tree, f"captures/{tree}.new") for tree in sorted(self.begun)]


class FakeNetwork:
    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.held: set[SandboxId] = set()

    async def attach(self, sandbox_id: SandboxId, mode: NetworkMode) -> Path:
        self.held.add(sandbox_id)
        await self.faults.step("network.attach", sandbox_id)
        return Path("/nowhere")

    async def detach(self, sandbox_id: SandboxId) -> None:
        await self.faults.step("network.detach", sandbox_id)
        self.held.discard(sandbox_id)

    async def list(self) -> set[SandboxId]:
        return set(self.held)

    async def traces(self) -> Sequence[Trace]:
        return [Trace(LeakKind.NETNS, one, one) for one in sorted(self.held)]

    async def traffic(self, sandbox_ids: Sequence[SandboxId]) -> Mapping[SandboxId, Traffic]:
        return {one: Traffic(1, 2) for one in sandbox_ids if one in self.held}

    async def resolv_conf(self, mode: NetworkMode) -> str:
        return ""

    async def probes(self) -> Sequence[Probe]:
        return []


@dataclass(frozen=True)
class FakeImage:
    digest: str
    root: Path


class FakeImages:
    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    async def states(self) -> Sequence[TemplateState]:
        return []

    async def build(self, name: str) -> AsyncIterator[BuildProgress]:
        yield BuildProgress(name, 1.0, "done")

    async def ready(self, name: str) -> FakeImage:
        if name != "tiny":
            raise NotFound("There are: tiny.")
        return FakeImage("sha256:tiny", Path("/"))

    async def close(self) -> None: ...


@dataclass
class Machine:
    """A running sandbox: whether it lives, and the sockets that its sbxd was given."""

    dead: asyncio.Event = field(default_factory=asyncio.Event)
    cause: Cause = Cause.RUNTIME_DIED
    sockets: list[socket.socket] = field(default_factory=list)


class FakeRuntime:
    """`greet` is what the sbxd of a new sandbox does first: `honest`, or a coroutine of the test's own."""

    name = "fake"
    shares_kernel = True
    needs_id_range = True

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.machines: dict[SandboxId, Machine] = {}
        self.bundles: dict[SandboxId, Bundle] = {}
        self.greet: Any = honest
        self.tasks: set[asyncio.Task[None]] = set()
        self.peak = self.starting = 0
        self.spent: list[socket.socket] = []

    async def version(self) -> str:
        return "1"

    async def probe(self) -> Probe:
        return Probe("fake", True, "")

    async def expect_start(self) -> None: ...

    async def start(self, bundle: Bundle) -> socket.socket:
        self.starting += 1
        self.peak = max(self.peak, self.starting)
        try:
            self.machines[bundle.sandbox_id] = Machine()
            self.bundles[bundle.sandbox_id] = bundle
            await self.faults.step("runtime.start", bundle.sandbox_id)
            return self._channel(bundle.sandbox_id, secured=False)
        finally:
            self.starting -= 1

    def _channel(self, sandbox_id: SandboxId, *, secured: bool) -> socket.socket:
        host, inside = socket.socketpair()
        host.setblocking(False)
        inside.setblocking(False)
        self.machines[sandbox_id].sockets.append(inside)
        task = asyncio.ensure_future(self.greet(inside, secured))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return host

    async def bridge(self, sandbox_id: SandboxId) -> socket.socket:
        await self.faults.step("runtime.bridge", sandbox_id)
        if not await self.running(sandbox_id):
            raise SandboxGone("It does not run.")
        return self._channel(sandbox_id, secured=True)

    async def running(self, sandbox_id: SandboxId) -> bool:
        machine = self.machines.get(sandbox_id)
        return machine is not None and not machine.dead.is_set()

    async def wait_dead(self, sandbox_id: SandboxId) -> Cause:
        machine = self.machines.get(sandbox_id)
        if machine is None:
            return Cause.RUNTIME_DIED
        await machine.dead.wait()
        return machine.cause

    async def usage(self, sandbox_ids: Sequence[SandboxId]) -> Mapping[SandboxId, Usage]:
        return {one: Usage(5, 100, 10, 3) for one in sandbox_ids if one in self.machines}

    async def oom_kills(self, sandbox_id: SandboxId) -> int:
        return 0

    def die(self, sandbox_id: SandboxId, cause: Cause = Cause.RUNTIME_DIED) -> None:
        machine = self.machines[sandbox_id]
        machine.cause = cause
        machine.dead.set()
        self.hang_up(sandbox_id)

    def hang_up(self, sandbox_id: SandboxId) -> None:
        """Close sbxd's end of its channels; the sandbox itself goes on."""
        for channel in self.machines[sandbox_id].sockets:
            # Not closed: its number would be taken by the next socket while the loop still waits for the old one.
            with contextlib.suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)
        self.spent += self.machines[sandbox_id].sockets
        self.machines[sandbox_id].sockets = []

    async def delete(self, sandbox_id: SandboxId) -> None:
        await self.faults.step("runtime.delete", sandbox_id)
        if sandbox_id in self.machines:
            self.die(sandbox_id)
            del self.machines[sandbox_id]

    async def list(self) -> set[SandboxId]:
        return set(self.machines)

    async def close(self) -> None:
        for sandbox_id in list(self.machines):
            self.die(sandbox_id)
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for channel in self.spent:
            channel.close()


async def hello(channel: socket.socket, secured: bool) -> None:
    loop = asyncio.get_running_loop()
    payload = frames.encode_json({**GREETING, "secured": secured})
    await loop.sock_sendall(channel, frames.encode(FrameType.HELLO, 0, payload))


async def honest(channel: socket.socket, secured: bool) -> None:
    """Greets, takes `configure`, knows no commands, runs any: each says `hi` and ends with 0 unless it is `wait`."""
    loop = asyncio.get_running_loop()
    decoder = frames.Decoder()
    try:
        await hello(channel, secured)
        while data := await loop.sock_recv(channel, 65_536):
            for frame in decoder.feed(data):
                await loop.sock_sendall(channel, answer(frame))
    except OSError:
        pass


def answer(frame: frames.Frame) -> bytes:
    """What an honest sbxd says to one frame."""

    def closed(told: dict[str, object]) -> bytes:
        return frames.encode(FrameType.CLOSE, frame.stream, frames.encode_json(told))

    def event(told: dict[str, object]) -> bytes:
        return frames.encode(FrameType.EVENT, frame.stream, frames.encode_json(told))

    if frame.type == FrameType.HELLO:
        return frames.encode(FrameType.PONG, 0, b"ok")
    if frame.type == FrameType.PING:
        return frames.encode(FrameType.PONG, 0, frame.payload)
    if frame.type != FrameType.OPEN:
        return b""
    ask = frames.decode_json(frame.payload)
    if ask["op"] == "exec":
        said = event({"event": "started", "pid": 7}) + frames.encode(FrameType.DATA, frame.stream, b"hi\n", 1)
        if ask.get("shell") == "wait":
            return said
        exited = {"event": "exited", "code": 0, "signal": None, "timeout": False, "offset": 3, "duration_ms": 1}
        return said + event(exited) + closed({})
    return closed({"commands": []} if ask["op"] == "commands" else {})

"""The inside of one of this host's sandboxes, by calls to the node. See `seams.Guest` for what each call means.

A command that is started here and then followed costs one call: `exec` asks the node to go on with the output, and
whoever first asks for that output (`attach`, or the provider's `output`) picks the call up. Where nobody does it is
closed after a moment, which disturbs nothing.
"""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

from skerry.guest import shapes
from skerry.guest.uploads import send_until_answered
from skerry.model.command import CommandEvent, ExecSpec, Lost, Output, TerminalSize
from skerry.model.errors import Invalid, ProtocolError
from skerry.model.files import Archived, ArchiveLimits, FileChange, FileInfo
from skerry.model.ids import CommandId, SandboxId
from skerry.model.process import ListeningPort, Process
from skerry.providers.node_client import ANSWER_S, NodeCall, NodeClient

STALL_S = 300.0  # the longest that a file's bytes may take to move on
TREE_S = 960.0  # longer than the node's own deadline for trees and large moves, whose answer says more
SETTLE_S = 900.0  # from the end of an upload to its answer: the times of many directories are set then


class LocalGuest:
    """One sandbox. Cheap to make, holds nothing."""

    def __init__(self, client: NodeClient, sandbox_id: SandboxId) -> None:
        self._client = client
        self._sandbox_id = sandbox_id

    # -- commands ----------------------------------------------------------------------------------------------

    async def exec(self, spec: ExecSpec) -> None:
        ask = {"sandbox": self._sandbox_id, "spec": shapes.exec_to(spec), "follow": True}
        call = await self._client.open("exec", ask)
        try:
            await call.event()
        except BaseException:
            call.close()
            raise
        self._client.leave((self._sandbox_id, spec.id), call)

    def attach(self, command_id: CommandId, offset: int = 0) -> AsyncIterator[CommandEvent]:
        return command_output(self._client, self._sandbox_id, command_id, offset)

    async def signal(self, command_id: CommandId, signal: int, scope: str = "tree") -> None:
        await self._act("signal", command_id, signal=signal, scope=scope)

    async def kill(self, command_id: CommandId) -> None:
        await self._act("kill", command_id)

    async def resize(self, command_id: CommandId, size: TerminalSize) -> None:
        await self._act("resize", command_id, size=shapes.size_to(size))

    async def _act(self, op: str, command_id: CommandId, **ask: object) -> None:
        await self._client.ask(op, {"sandbox": self._sandbox_id, "command": command_id, **ask})

    async def write_stdin(self, command_id: CommandId, data: bytes) -> None:
        await self._stdin(command_id, data, close=False)

    async def close_stdin(self, command_id: CommandId) -> None:
        await self._stdin(command_id, b"", close=True)

    async def _stdin(self, command_id: CommandId, data: bytes, *, close: bool) -> None:
        ask = {"sandbox": self._sandbox_id, "command": command_id, "close": close}
        async with await self._client.open("stdin", ask) as call:
            if await _send(call, data):
                await call.send_eof()
            # A command may take its time to read: no deadline but the caller's own.
            await call.result(None)

    # -- files -------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def read(self, path: str, offset: int = 0, length: int = -1) -> AsyncGenerator["LocalFile"]:
        ask = {"sandbox": self._sandbox_id, "path": path, "offset": offset, "length": length}
        async with await self._client.open("read", ask) as call:
            yield LocalFile(shapes.info_from(await call.event()), call)

    async def write(
        self, path: str, chunks: AsyncIterator[bytes], *, mode: int | None = None, create_only: bool = False
    ) -> FileInfo:
        ask = {"sandbox": self._sandbox_id, "path": path, "mode": mode, "create_only": create_only}
        async with await self._client.open("write", ask) as call:
            await send_until_answered(_send_all(call, chunks), call.result(None))
            return shapes.info_from(await call.result(STALL_S))

    async def list(self, path: str) -> AsyncIterator[FileInfo]:
        async with await self._client.open("list", {"sandbox": self._sandbox_id, "path": path}) as call:
            while (told := await call.next(STALL_S)) is not None:
                assert isinstance(told, dict)
                for entry in told["entries"]:
                    yield shapes.info_from(entry)
            call.check()

    async def stat(self, path: str, *, follow: bool = True) -> FileInfo:
        return await self._info("stat", path=path, follow=follow)

    async def mkdir(self, path: str, *, parents: bool = True, mode: int = 0o755) -> FileInfo:
        return await self._info("mkdir", path=path, parents=parents, mode=mode)

    async def move(self, source: str, target: str, *, overwrite: bool = True) -> FileInfo:
        ask = {"sandbox": self._sandbox_id, "source": source, "target": target, "overwrite": overwrite}
        return shapes.info_from(await self._client.ask("move", ask, deadline_s=TREE_S))

    async def _info(self, op: str, **ask: object) -> FileInfo:
        return shapes.info_from(await self._client.ask(op, {"sandbox": self._sandbox_id, **ask}))

    async def remove(self, path: str, *, recursive: bool = False) -> int:
        ask = {"sandbox": self._sandbox_id, "path": path, "recursive": recursive}
        return int((await self._client.ask("remove", ask, deadline_s=TREE_S))["removed"])

    async def set_attributes(
        self,
        path: str,
        *,
        mode: int | None = None,
        mtime_ns: int | None = None,
        now: bool = False,
        create: bool = False,
    ) -> FileInfo:
        return await self._info("setattr", path=path, mode=mode, mtime_ns=mtime_ns, now=now, create=create)

    @asynccontextmanager
    async def pack(self, path: str, limits: ArchiveLimits) -> AsyncGenerator["LocalArchive"]:
        ask = {"sandbox": self._sandbox_id, "path": path, "limits": shapes.limits_to(limits)}
        async with await self._client.open("pack", ask) as call:
            await call.event()
            yield LocalArchive(call)

    async def unpack(self, path: str, chunks: AsyncIterator[bytes], limits: ArchiveLimits) -> Archived:
        ask = {"sandbox": self._sandbox_id, "path": path, "limits": shapes.limits_to(limits)}
        async with await self._client.open("unpack", ask) as call:
            await send_until_answered(_send_all(call, chunks), call.result(None))
            return shapes.archived_from(await call.result(SETTLE_S))

    async def processes(self) -> Sequence[Process]:
        return [shapes.process_from(told) for told in await self._told("processes")]

    async def ports(self) -> Sequence[ListeningPort]:
        return [shapes.port_from(told) for told in await self._told("ports")]

    async def _told(self, op: str) -> Sequence[shapes.Json]:
        found: deque[shapes.Json] = deque()
        async with await self._client.open(op, {"sandbox": self._sandbox_id}) as call:
            while isinstance(told := await call.next(ANSWER_S), dict):
                found.append(told)
            call.check()
        return found

    @asynccontextmanager
    async def watch(self, path: str, *, recursive: bool = False) -> AsyncGenerator[AsyncIterator[FileChange]]:
        ask = {"sandbox": self._sandbox_id, "path": path, "recursive": recursive}
        async with await self._client.open("watch", ask) as call:
            await call.event()
            yield _changes(call)

    async def open_port(self, port: int) -> "LocalPort":
        call = await self._client.open("port", {"sandbox": self._sandbox_id, "port": port})
        try:
            await call.event()
        except BaseException:
            call.close()
            raise
        return LocalPort(call)


class LocalFile:
    """An open file; see `seams.FileReader`."""

    def __init__(self, info: FileInfo, call: NodeCall) -> None:
        self.info = info
        self._call = call

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (told := await self._call.next(STALL_S)) is not None:
            if isinstance(told, dict):
                raise ProtocolError("The node sent an event in the middle of a file.")
            yield told[1]
        self._call.check()


class LocalArchive:
    """A tree as a tar stream; see `seams.ArchiveReader`."""

    def __init__(self, call: NodeCall) -> None:
        self._call = call

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (told := await self._call.next(STALL_S)) is not None:
            if isinstance(told, dict):
                raise ProtocolError("The node sent an event in the middle of an archive.")
            yield told[1]
        self._call.check()

    @property
    def result(self) -> Archived:
        return shapes.archived_from(self._call.check())


class LocalPort:
    """A connection to a port inside; see `seams.ByteStream`."""

    def __init__(self, call: NodeCall) -> None:
        self._call = call
        self._ended = False

    async def receive(self) -> bytes:
        if self._ended:
            return b""
        told = await self._call.next()
        if told is None:
            self._ended = True
            self._call.check()
            return b""
        if isinstance(told, dict):
            raise ProtocolError("The node sent an event in the middle of a port's bytes.")
        self._ended = not told[1]
        return told[1]

    async def send(self, data: bytes) -> None:
        await self._call.send(data)

    async def send_eof(self) -> None:
        await self._call.send_eof()

    async def close(self) -> None:
        self._call.close()


async def command_output(
    client: NodeClient, sandbox_id: SandboxId, command_id: CommandId, offset: int, *, follow: bool = True
) -> AsyncGenerator[CommandEvent]:
    """The output of a command, of a living sandbox or a dead one. See `seams.Provider.output`."""
    if offset < 0:
        raise Invalid("An output offset is 0 or more.", field="offset")
    call = client.claim((sandbox_id, command_id)) if follow and offset == 0 else None
    if call is None:
        ask = {"sandbox": sandbox_id, "command": command_id, "from": offset, "follow": follow}
        call = await client.open("output", ask)
    async with call:
        while (told := await call.next()) is not None:
            if isinstance(told, dict):
                yield Lost(offset, told["lost"])
                offset += told["lost"]
            else:
                yield Output(told[0], offset, told[1])
                offset += len(told[1])
        exit = call.check()["exit"]
        if exit is not None:
            yield shapes.exit_from(exit)


async def _changes(call: NodeCall) -> AsyncIterator[FileChange]:
    while (told := await call.next()) is not None:
        assert isinstance(told, dict)
        yield shapes.change_from(told)
    call.check()


async def _send_all(call: NodeCall, chunks: AsyncIterator[bytes]) -> None:
    async for chunk in chunks:
        if not await _send(call, chunk):
            return  # it has failed already: the result says how
    await call.send_eof()


async def _send(call: NodeCall, data: bytes) -> bool:
    """Send bytes; False when the node has ended the call meanwhile, and its result says why."""
    if call.answered:
        return False
    await call.send(data)
    return True

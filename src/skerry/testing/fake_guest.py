"""`FakeGuest`: the seam `Guest` in memory, for tests of all that stands above. It passes the real one's suite."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from skerry.guest import requests
from skerry.guest.answers import CommandInside
from skerry.model.command import CommandEvent, ExecSpec, Output, TerminalSize
from skerry.model.errors import GuestError, Invalid, NotFound, SandboxGone
from skerry.model.files import Archived, ArchiveLimits, FileChange, FileInfo
from skerry.model.ids import CommandId
from skerry.model.process import ListeningPort, Process
from skerry.seams import ByteStream
from skerry.testing import fake_archive
from skerry.testing.fake_files import FakeFiles, Watcher, normal
from skerry.testing.fake_shell import FakeCommand, FakeShell, FixedScript
from skerry.testing.fake_stream import FakeStream, stream_pair

_CHUNK_BYTES = 65_536
STDIN_ROOM = 65_536  # what waits for a command; more is waited with


class FakeReader:
    """A file's bytes as they were when it was opened; `check` is called before each piece."""

    def __init__(self, info: FileInfo, data: bytes, check: Callable[[], None]) -> None:
        self.info = info
        self._data = data
        self._check = check

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._data), _CHUNK_BYTES):
            self._check()
            yield self._data[start : start + _CHUNK_BYTES]


class FakeArchive:
    """A tree as it was when it was opened."""

    def __init__(self, stream: bytes, result: Archived) -> None:
        self.result = result
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._stream), _CHUNK_BYTES):
            yield self._stream[start : start + _CHUNK_BYTES]


class FakeGuest:
    """A sandbox's inside: files in `files.nodes`, a few commands (see `fake_shell`), ports that tests serve.

    `die(cause)` makes it a dead sandbox: each call, and each attach that runs, raises SandboxGone. `close()` ends
    what still runs. `fixed`: see `FakeShell`.
    """

    def __init__(self, fixed: Mapping[str, FixedScript] | None = None) -> None:
        self.files = FakeFiles()
        self.hostname = "fake"
        self.env: dict[str, str] = {"PATH": "/usr/bin:/bin"}
        self.cwd = "/workspace"
        self._shell = FakeShell(self.files, fixed)
        self._commands: dict[CommandId, FakeCommand] = {}
        self._ports: dict[int, Callable[[ByteStream], Awaitable[None]]] = {}
        self._servers: set[asyncio.Task[None]] = set()
        self._cause: str | None = None

    # -- for tests ---------------------------------------------------------------------------------------------

    def serve(self, port: int, handler: Callable[[ByteStream], Awaitable[None]]) -> None:
        """Let `handler` answer each connection to a port inside."""
        self._ports[port] = handler

    async def die(self, cause: str = "runtime_died") -> None:
        self._cause = cause
        await self.close()
        for watcher in self.files.watchers:
            watcher.changes.put_nowait(None)
        for command in self._commands.values():
            await command.notify()

    async def close(self) -> None:
        """End commands and port handlers."""
        tasks = [command.task for command in self._commands.values() if command.task is not None]
        for task in (*tasks, *self._servers):
            task.cancel()
        await asyncio.gather(*tasks, *self._servers, return_exceptions=True)

    def _check_alive(self) -> None:
        if self._cause is not None:
            raise SandboxGone("The sandbox is gone.", cause=self._cause)

    # -- commands ----------------------------------------------------------------------------------------------

    async def exec(self, spec: ExecSpec) -> None:
        self._check_alive()
        requests.execute(spec)
        if spec.id in self._commands:
            return
        cwd = normal(spec.cwd or self.cwd)
        if (node := self.files.nodes.get(cwd)) is None or node.data is not None:
            if spec.cwd is not None:
                raise GuestError("cwd", f"{cwd}: No such directory", errno=2)
            cwd = "/"
        command = FakeCommand(spec, {**self.env, **spec.env}, cwd, pid=100 + len(self._commands))
        command.stdin_ended = not spec.stdin and spec.tty is None
        if spec.tty is not None:
            command.rows, command.cols = spec.tty.rows or 24, spec.tty.cols or 80
        self._shell.check(command)
        self._commands[spec.id] = command
        command.task = asyncio.get_running_loop().create_task(self._shell.run(command))
        await asyncio.sleep(0)  # it runs now: a signal before its first step would leave it without an end

    async def attach(self, command_id: CommandId, offset: int = 0) -> AsyncGenerator[CommandEvent]:
        self._check_alive()
        if offset < 0:
            raise Invalid("An output offset is 0 or more.", field="offset")
        command = self._command(command_id)
        index = 0
        while True:
            while index < len(command.output):
                item = command.output[index]
                index += 1
                skipped = max(0, offset - item.offset)
                if skipped < len(item.data):
                    yield Output(item.channel, item.offset + skipped, item.data[skipped:])
            if command.exit is not None:
                yield command.exit
                return
            self._check_alive()
            await self._news(command, index)

    async def _news(self, command: FakeCommand, seen: int) -> None:
        async with command.changed:
            await command.changed.wait_for(
                lambda: seen < len(command.output) or command.exit is not None or self._cause is not None
            )

    def _command(self, command_id: CommandId) -> FakeCommand:
        self._check_alive()
        if command_id not in self._commands:
            raise NotFound(f"No command {command_id} in this sandbox.")
        return self._commands[command_id]

    async def signal(self, command_id: CommandId, signal: int, scope: str = "tree") -> None:
        if not 1 <= signal <= 64 or scope not in requests.SCOPES:
            raise Invalid("A signal is a number from 1 to 64, its scope tree, group or main.", field="signal")
        self._command(command_id).send_signal(signal)

    async def kill(self, command_id: CommandId) -> None:
        self._command(command_id).send_signal(9)

    async def resize(self, command_id: CommandId, size: TerminalSize) -> None:
        command = self._command(command_id)
        command.rows, command.cols = size.rows or 24, size.cols or 80

    async def write_stdin(self, command_id: CommandId, data: bytes) -> None:
        command = self._command(command_id)
        async with command.changed:
            await command.changed.wait_for(
                lambda: len(command.stdin) < STDIN_ROOM or command.exit is not None or self._cause is not None
            )
        if command.exit is None:
            command.stdin += data
        await command.notify()

    def stdin_of(self, command_id: CommandId) -> bytes:
        """What waits for a command."""
        return bytes(self._command(command_id).stdin)

    async def close_stdin(self, command_id: CommandId) -> None:
        command = self._command(command_id)
        command.stdin_ended = True
        await command.notify()

    async def commands(self) -> list[CommandInside]:
        self._check_alive()
        return [
            CommandInside(command_id, command.pid, command.exit is None, 0, command.offset)
            for command_id, command in self._commands.items()
        ]

    async def forget(self, command_id: CommandId) -> None:
        self._check_alive()
        command = self._commands.get(command_id)
        if command is not None and command.exit is None:
            raise GuestError("busy", f"{command_id} still runs.")
        self._commands.pop(command_id, None)

    async def configure(
        self, *, hostname: str | None = None, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> None:
        self._check_alive()
        self.hostname = self.hostname if hostname is None else hostname
        self.env = self.env if env is None else dict(env)
        self.cwd = self.cwd if cwd is None else cwd

    # -- files -------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def read(self, path: str, offset: int = 0, length: int = -1) -> AsyncGenerator[FakeReader]:
        self._check_alive()
        data = self.files.data(requests.path(path))
        end = len(data) if length < 0 else offset + length
        yield FakeReader(self.files.info(path), data[offset:end], self._check_alive)

    async def write(
        self, path: str, chunks: AsyncIterator[bytes], *, mode: int | None = None, create_only: bool = False
    ) -> FileInfo:
        self._check_alive()
        self.files.check_target(requests.path(path))
        data = b"".join([chunk async for chunk in chunks])
        if create_only and normal(requests.path(path)) in self.files.nodes:
            raise GuestError("exists", f"{path}: File exists")
        self.files.put(requests.path(path), data, mode)
        return self.files.info(path)

    async def list(self, path: str) -> AsyncGenerator[FileInfo]:
        self._check_alive()
        for child in self.files.children(requests.path(path)):
            yield self.files.info(child)

    async def stat(self, path: str, *, follow: bool = True) -> FileInfo:
        self._check_alive()
        return self.files.info(requests.path(path))

    async def mkdir(self, path: str, *, parents: bool = True, mode: int = 0o755) -> FileInfo:
        self._check_alive()
        self.files.make_directory(requests.path(path), parents=parents, mode=mode)
        return self.files.info(path)

    async def move(self, source: str, target: str, *, overwrite: bool = True) -> FileInfo:
        self._check_alive()
        self.files.move(requests.path(source), requests.path(target), overwrite=overwrite)
        return self.files.info(target)

    async def remove(self, path: str, *, recursive: bool = False) -> int:
        self._check_alive()
        return self.files.remove(requests.path(path), recursive=recursive)

    async def set_attributes(
        self,
        path: str,
        *,
        mode: int | None = None,
        mtime_ns: int | None = None,
        now: bool = False,
        create: bool = False,
    ) -> FileInfo:
        self._check_alive()
        if now and mtime_ns is not None:
            raise Invalid("A time is either given or the present one, not both.", field="mtime_ns")
        self.files.set_attributes(requests.path(path), mode=mode, mtime_ns=mtime_ns, now=now, create=create)
        return self.files.info(path)

    @asynccontextmanager
    async def pack(self, path: str, limits: ArchiveLimits) -> AsyncGenerator[FakeArchive]:
        self._check_alive()
        yield FakeArchive(*fake_archive.pack(self.files, requests.path(path), limits))

    async def unpack(self, path: str, chunks: AsyncIterator[bytes], limits: ArchiveLimits) -> Archived:
        self._check_alive()
        stream = b"".join([chunk async for chunk in chunks])
        return fake_archive.unpack(self.files, requests.path(path), stream, limits)

    def watch(self, path: str, *, recursive: bool = False) -> AbstractAsyncContextManager[AsyncIterator[FileChange]]:
        return self._watch(path, recursive)

    @asynccontextmanager
    async def _watch(self, path: str, recursive: bool) -> AsyncGenerator[AsyncIterator[FileChange]]:
        self._check_alive()
        watcher = Watcher(self.files.info(requests.path(path)).path, recursive, asyncio.Queue())
        self.files.watchers.append(watcher)
        try:
            yield self._changes(watcher)
        finally:
            self.files.watchers.remove(watcher)

    async def _changes(self, watcher: Watcher) -> AsyncIterator[FileChange]:
        while True:
            change = await watcher.changes.get()
            if change is None:
                self._check_alive()
                return
            yield change

    # -- processes and ports -----------------------------------------------------------------------------------

    async def processes(self) -> Sequence[Process]:
        """The commands that run: each is one process."""
        self._check_alive()
        return [
            Process(command.pid, 1, 0, name, argv, "S", 1, 4096, 10, command_id)
            for command_id, command in self._commands.items()
            if command.exit is None
            for argv in [command.spec.argv or ("/bin/sh", "-c", command.spec.shell or "")]
            for name in [argv[0].rpartition("/")[2]]
        ]

    async def ports(self) -> Sequence[ListeningPort]:
        self._check_alive()
        return [ListeningPort(port, "127.0.0.1", "ipv4", 0) for port in self._ports]

    # -- ports -------------------------------------------------------------------------------------------------

    async def open_port(self, port: int) -> FakeStream:
        self._check_alive()
        if not 1 <= port <= 65_535:
            raise Invalid("A TCP port is a number from 1 to 65535.", field="port")
        if port not in self._ports:
            raise GuestError("refused", f"Nothing listens on port {port}.")
        ours, theirs = stream_pair()
        server = asyncio.get_running_loop().create_task(self._serve(self._ports[port], theirs))
        self._servers.add(server)
        server.add_done_callback(self._servers.discard)
        return ours

    async def _serve(self, handler: Callable[[ByteStream], Awaitable[None]], stream: FakeStream) -> None:
        try:
            await handler(stream)
        finally:
            await stream.close()

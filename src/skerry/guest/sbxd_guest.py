"""`SbxdGuest`: the seam `Guest` over one connection to a real sbxd. Commands and files do the work.

It ends with its connection: whoever reconnects makes a new one.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from skerry.guest import archives, files, inspection, requests
from skerry.guest.answers import CommandInside, expect_event
from skerry.guest.archives import StreamedArchive
from skerry.guest.byte_stream import StreamBytes
from skerry.guest.commands import Commands
from skerry.guest.connection import Connection
from skerry.guest.files import StreamedFile
from skerry.model.command import CommandEvent, ExecSpec, TerminalSize
from skerry.model.errors import Invalid
from skerry.model.files import Archived, ArchiveLimits, FileChange, FileInfo
from skerry.model.ids import CommandId
from skerry.model.process import ListeningPort, Process

CONNECT_S = 30.0
_MAX_HOSTNAME = 64


class SbxdGuest:
    """What can be done inside one sandbox; see `seams.Guest` for each call.

    Every call raises Unavailable, SandboxGone or ProtocolError when the connection ends under it, whichever the
    connection was ended with, and DeadlineExceeded when sbxd does not answer. One reader a command: a second
    `attach` takes the command's stream over, and the first ends with GuestError `replaced`.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._commands = Commands(connection)

    async def exec(self, spec: ExecSpec) -> None:
        await self._commands.exec(spec)

    def attach(self, command_id: CommandId, offset: int = 0) -> AsyncIterator[CommandEvent]:
        """As in the seam, and: an item is acknowledged to sbxd, which then forgets it, when the next is asked for.

        So a consumer that puts an item into safety before it asks again loses nothing with the connection.
        """
        return self._commands.attach(command_id, offset)

    async def signal(self, command_id: CommandId, signal: int, scope: str = "tree") -> None:
        await self._commands.signal(command_id, signal, scope)

    async def kill(self, command_id: CommandId) -> None:
        await self._commands.control(command_id, {"kill": True})

    async def resize(self, command_id: CommandId, size: TerminalSize) -> None:
        await self._commands.resize(command_id, size)

    async def write_stdin(self, command_id: CommandId, data: bytes) -> None:
        await self._commands.write_stdin(command_id, data)

    async def close_stdin(self, command_id: CommandId) -> None:
        await self._commands.close_stdin(command_id)

    async def commands(self) -> list[CommandInside]:
        """All commands that sbxd knows, ended ones too until they are forgotten."""
        return await self._commands.list()

    async def forget(self, command_id: CommandId) -> None:
        """Drop an ended command's record inside. Unknown: success.

        Raises:
            GuestError: `busy`: it still runs.
        """
        await self._commands.forget(command_id)

    def read(self, path: str, offset: int = 0, length: int = -1) -> AbstractAsyncContextManager[StreamedFile]:
        return files.read(self.connection, path, offset, length)

    async def write(
        self, path: str, chunks: AsyncIterator[bytes], *, mode: int | None = None, create_only: bool = False
    ) -> FileInfo:
        return await files.write(self.connection, path, chunks, mode=mode, create_only=create_only)

    def list(self, path: str) -> AsyncIterator[FileInfo]:
        return files.list_directory(self.connection, path)

    async def stat(self, path: str, *, follow: bool = True) -> FileInfo:
        return await files.stat(self.connection, path, follow=follow)

    async def mkdir(self, path: str, *, parents: bool = True, mode: int = 0o755) -> FileInfo:
        return await files.mkdir(self.connection, path, parents=parents, mode=mode)

    async def move(self, source: str, target: str, *, overwrite: bool = True) -> FileInfo:
        return await files.move(self.connection, source, target, overwrite=overwrite)

    async def remove(self, path: str, *, recursive: bool = False) -> int:
        return await files.remove(self.connection, path, recursive=recursive)

    async def set_attributes(
        self,
        path: str,
        *,
        mode: int | None = None,
        mtime_ns: int | None = None,
        now: bool = False,
        create: bool = False,
    ) -> FileInfo:
        return await files.set_attributes(self.connection, path, mode=mode, mtime_ns=mtime_ns, now=now, create=create)

    def pack(self, path: str, limits: ArchiveLimits) -> AbstractAsyncContextManager[StreamedArchive]:
        return archives.pack(self.connection, path, limits)

    async def unpack(self, path: str, chunks: AsyncIterator[bytes], limits: ArchiveLimits) -> Archived:
        return await archives.unpack(self.connection, path, chunks, limits)

    async def processes(self) -> Sequence[Process]:
        return await inspection.processes(self.connection)

    async def ports(self) -> Sequence[ListeningPort]:
        return await inspection.ports(self.connection)

    def watch(self, path: str, *, recursive: bool = False) -> AbstractAsyncContextManager[AsyncIterator[FileChange]]:
        return files.watch(self.connection, path, recursive=recursive)

    async def open_port(self, port: int) -> StreamBytes:
        if not 1 <= port <= 65_535:
            raise Invalid("A TCP port is a number from 1 to 65535.", field="port")
        stream = await self.connection.open({"op": "port", "port": port})
        try:
            event = await stream.event(CONNECT_S)
            if event is None:
                await stream.result()
            self.connection.checked(expect_event, event, "connected")
        except BaseException:
            stream.close()
            raise
        return StreamBytes(stream)

    async def configure(
        self, *, hostname: str | None = None, env: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> None:
        """Set the sandbox's host name, replace its base environment, set its default directory; None leaves one alone.

        Raises:
            GuestError: The host name could not be set (`invalid`, `permission`).
        """
        request: dict[str, object] = {"op": "configure"}
        if hostname is not None:
            if not 1 <= len(requests.text(hostname, "hostname")) <= _MAX_HOSTNAME:
                raise Invalid("A host name has 1 to 64 characters.", field="hostname")
            request["hostname"] = hostname
        if env is not None:
            request["env"] = requests.environment(env)
        if cwd is not None:
            request["cwd"] = requests.path(cwd, "cwd")
        await files.one_answer(self.connection, request)

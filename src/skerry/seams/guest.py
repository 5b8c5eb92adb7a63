"""What can be done inside one sandbox."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from skerry.model.command import CommandEvent, ExecSpec, TerminalSize
from skerry.model.files import Archived, ArchiveLimits, FileChange, FileInfo
from skerry.model.ids import CommandId
from skerry.model.process import ListeningPort, Process


class ByteStream(Protocol):
    """A two-way stream of bytes, half-closable, with back pressure on both sides."""

    async def receive(self) -> bytes:
        """The next bytes, or b"" at the end."""
        ...

    async def send(self, data: bytes) -> None: ...

    async def send_eof(self) -> None: ...

    async def close(self) -> None:
        """Ends both directions. Safe to call twice."""
        ...


class FileReader(Protocol):
    """An open file's bytes: `info` is from the moment of opening; iterating yields the range asked for, in order."""

    info: FileInfo

    def __aiter__(self) -> AsyncIterator[bytes]: ...


class ArchiveReader(Protocol):
    """A tree as a tar stream: iterate it once. A stream that broke off has no end marker, and iterating raises."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    @property
    def result(self) -> Archived:
        """What is in it. Known at the end."""
        ...


class Guest(Protocol):
    """What can be done inside one sandbox.

    Every call may raise SandboxGone (it died; `cause`), Unavailable (the way to it is broken, try again) and
    GuestError (it was tried inside and failed, with sbxd's code). A command's failure is no raise: it is an `Exit`.
    """

    async def exec(self, spec: ExecSpec) -> None:
        """Start a command and return once it runs. Known `spec.id`: does nothing.

        Raises:
            GuestError: It could not be started (`not_found`, `permission`, `cwd`, `user`, `limit`).
        """
        ...

    def attach(self, command_id: CommandId, offset: int = 0) -> AsyncIterator[CommandEvent]:
        """The command's output from `offset` on, as it comes, then one `Exit`. Many readers may follow one command.

        Works after the command has ended, and for as long as its output is kept.

        Raises:
            NotFound: No such command here.
        """
        ...

    async def signal(self, command_id: CommandId, signal: int, scope: str = "tree") -> None:
        """Send a signal to `tree` (every descendant), `group` or `main`. An ended command: nothing happens."""
        ...

    async def kill(self, command_id: CommandId) -> None:
        """SIGKILL every descendant until none is left."""
        ...

    async def resize(self, command_id: CommandId, size: TerminalSize) -> None: ...

    async def write_stdin(self, command_id: CommandId, data: bytes) -> None: ...

    async def close_stdin(self, command_id: CommandId) -> None: ...

    def read(self, path: str, offset: int = 0, length: int = -1) -> AbstractAsyncContextManager[FileReader]:
        """Open a regular file for reading `length` bytes (-1: to the end) from `offset`."""
        ...

    async def write(
        self, path: str, chunks: AsyncIterator[bytes], *, mode: int | None = None, create_only: bool = False
    ) -> FileInfo:
        """Replace a file with `chunks`, all or nothing, parents made. An iterator that raises leaves nothing behind."""
        ...

    def list(self, path: str) -> AsyncIterator[FileInfo]: ...

    async def stat(self, path: str, *, follow: bool = True) -> FileInfo: ...

    async def mkdir(self, path: str, *, parents: bool = True, mode: int = 0o755) -> FileInfo: ...

    async def move(self, source: str, target: str, *, overwrite: bool = True) -> FileInfo: ...

    async def remove(self, path: str, *, recursive: bool = False) -> int:
        """Remove, never through a symlink; the number of entries removed."""
        ...

    async def set_attributes(
        self,
        path: str,
        *,
        mode: int | None = None,
        mtime_ns: int | None = None,
        now: bool = False,
        create: bool = False,
    ) -> FileInfo:
        """Change what is given: the mode, the time (to `mtime_ns`, or with `now` to the present). Follows symlinks.

        With `create`, an empty file (with its parents) where nothing is.
        """
        ...

    def pack(self, path: str, limits: ArchiveLimits) -> AbstractAsyncContextManager[ArchiveReader]:
        """Open a directory as a tar stream. Links are stored, never followed; the tree's file system is not left.

        What tar cannot carry, and what is beyond `max_bytes`, is left out and told.

        Raises:
            GuestError: `not_found`, `not_a_directory`; while iterating `limit`: more than `max_entries`.
        """
        ...

    async def unpack(self, path: str, chunks: AsyncIterator[bytes], limits: ArchiveLimits) -> Archived:
        """Unpack a tar stream below a directory, which is made. Nothing outside of it is touched by any name or link.

        Entries that lead out, devices and the like are skipped and told. Each file is replaced whole; owners are
        root; setuid and setgid are dropped. An error leaves what was complete before.

        Raises:
            GuestError: `invalid`: no tar, or it ends early; `limit`; `no_space`, `quota`.
        """
        ...

    def watch(
        self, path: str, *, recursive: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[FileChange]]: ...

    async def processes(self) -> Sequence[Process]:
        """What runs inside, but for Skerry's own, by pid."""
        ...

    async def ports(self) -> Sequence[ListeningPort]:
        """The TCP sockets that listen inside."""
        ...

    async def open_port(self, port: int) -> ByteStream:
        """Connect to a TCP port on the loopback inside.

        Raises:
            GuestError: `refused`: nothing listens there.
        """
        ...

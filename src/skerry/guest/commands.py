"""Commands inside one sandbox, over one connection: starting, following, signalling, feeding.

Keeps for each command the stream that this connection has for it, and nothing else: output is the node's to keep.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from skerry.guest import answers, requests
from skerry.guest.connection import Connection
from skerry.guest.frames import Channel
from skerry.guest.stream import Stream
from skerry.model.command import CommandEvent, ExecSpec, Exit, Lost, Output, TerminalSize
from skerry.model.errors import GuestError, Invalid, NotFound, Unavailable
from skerry.model.ids import CommandId

ANSWER_S = 60.0  # for answers that need no more than a fork, a syscall or a rename
STDIN_STALL_S = 3600.0  # a command may take its time before it reads


@dataclass(slots=True)
class _Link:
    """The stream this connection has for a command. `untouched`: nobody has read from it since exec."""

    stream: Stream
    untouched: bool


class Commands:
    """One reader a command: a second `attach` takes the stream over, and the first ends with GuestError `replaced`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._links: dict[CommandId, _Link] = {}

    async def exec(self, spec: ExecSpec) -> None:
        """Start a command; returns once it runs. A known id: does nothing. See `seams.Guest.exec`."""
        if self._followed(spec.id) is not None:
            return
        stream = await self._connection.open(requests.execute(spec))
        try:
            event = await stream.event(ANSWER_S)
            if event is None:
                await stream.result()
            self._connection.checked(answers.read_started, event)
        except GuestError as error:
            if error.guest_code != "exists":
                raise
        except BaseException:
            stream.close()
            raise
        else:
            self._links[spec.id] = _Link(stream, untouched=True)

    async def attach(self, command_id: CommandId, offset: int = 0) -> AsyncGenerator[CommandEvent]:
        """Output from `offset` on, then one Exit. What was yielded is acknowledged when the next is asked for.

        The first attach at 0 after an `exec` here goes on with that stream, at no cost. Each other one asks sbxd, and
        acknowledges everything before `offset`. Ending the iteration early detaches: the command goes on until its
        ring of output is full.

        Raises:
            NotFound: sbxd knows no such command.
            GuestError: `replaced`: another attach took the command over.
        """
        if offset < 0:
            raise Invalid("An output offset is 0 or more.", field="offset")
        stream, position = await self._take_over(command_id, offset)
        try:
            if position > offset:
                yield Lost(offset, position - offset)
            while (item := await stream.chunk()) is not None:
                channel, data = item
                if channel == Channel.MAIN:
                    raise stream.reject("output on the channel of stdin")
                if data:
                    yield Output(channel, position, data)
                    position += len(data)
                    stream.consumed(len(data))
            yield await self._exit(stream, position)
        finally:
            stream.close()
            self._unlink(command_id, stream)

    async def _take_over(self, command_id: CommandId, offset: int) -> tuple[Stream, int]:
        link = self._links.get(command_id)
        if link is not None and link.untouched and offset == 0 and self._connection.error is None:
            link.untouched = False
            return link.stream, 0
        return await self._open(command_id, offset)

    async def _open(self, command_id: CommandId, offset: int, *, follow: bool = True) -> tuple[Stream, int]:
        """Attach. A stream that is to be followed is known from now on, so that no signal opens another beside it."""
        request = {"op": "attach", "id": requests.command_id(command_id), "from": offset}
        stream = await self._connection.open(request)
        if follow:
            self._links[command_id] = _Link(stream, untouched=False)
        try:
            event = await stream.event(ANSWER_S)
            if event is None:
                await stream.result()
            attached = self._connection.checked(answers.read_attached, event, offset)
        except BaseException as error:
            stream.close()
            self._unlink(command_id, stream)
            if isinstance(error, GuestError) and error.guest_code == "not_found":
                raise NotFound(f"No command {command_id} in this sandbox.") from error
            raise
        return stream, attached.offset

    async def _exit(self, stream: Stream, position: int) -> Exit:
        event = await stream.event(ANSWER_S)
        if event is None:
            await stream.result()  # raises what ended it, such as `replaced`
        return self._connection.checked(answers.read_exit, event, position)

    def _unlink(self, command_id: CommandId, stream: Stream) -> None:
        link = self._links.get(command_id)
        if link is not None and link.stream is stream:
            del self._links[command_id]

    # -- acting on a command -----------------------------------------------------------------------------------

    async def control(self, command_id: CommandId, action: dict[str, object]) -> None:
        """Send a CONTROL. An ended command: nothing happens.

        Raises:
            NotFound: sbxd knows no such command.
        """
        async with self._any_stream(command_id) as stream:
            if stream is not None:
                await stream.control(action)

    async def signal(self, command_id: CommandId, signal: int, scope: str) -> None:
        if type(signal) is not int or not 1 <= signal <= 64:
            raise Invalid("A signal is a number from 1 to 64.", field="signal")
        if scope not in requests.SCOPES:
            raise Invalid("A signal's scope is tree, group or main.", field="scope")
        await self.control(command_id, {"signal": signal, "scope": scope})

    async def resize(self, command_id: CommandId, size: TerminalSize) -> None:
        await self.control(command_id, {"resize": requests.terminal(size)})

    async def write_stdin(self, command_id: CommandId, data: bytes) -> None:
        """Returns when all is on its way inside; waits while the command does not read. Ended: nothing happens."""
        await self._feed(command_id, data, end=False)

    async def close_stdin(self, command_id: CommandId) -> None:
        await self._feed(command_id, b"", end=True)

    async def _feed(self, command_id: CommandId, data: bytes, *, end: bool) -> None:
        async with self._any_stream(command_id) as stream:
            if stream is None:
                return
            try:
                if data:
                    await stream.send(data, deadline_s=STDIN_STALL_S)
                if end:
                    await stream.send_eof()
            except Unavailable:
                if not stream.finished:  # finished: the command has ended meanwhile
                    raise

    @asynccontextmanager
    async def _any_stream(self, command_id: CommandId) -> AsyncGenerator[Stream | None]:
        """A stream on the command: the one that is followed, or one for this moment. None: the command has ended."""
        if (stream := self._followed(command_id)) is not None:
            yield stream
            return
        known = next((command for command in await self.list() if command.id == command_id), None)
        if known is None:
            raise NotFound(f"No command {command_id} in this sandbox.")
        if (stream := self._followed(command_id)) is not None or not known.running:
            yield stream
            return
        try:
            # From exactly where it was acknowledged: attaching for a signal must not give up any output.
            stream, _ = await self._open(command_id, known.acked_bytes, follow=False)
        except GuestError as error:
            if error.guest_code != "replaced":
                raise
            yield self._followed(command_id)  # a reader came meanwhile
            return
        try:
            yield stream
        finally:
            stream.close()

    def _followed(self, command_id: CommandId) -> Stream | None:
        link = self._links.get(command_id)
        return link.stream if link is not None and not link.stream.over else None

    # -- what sbxd knows ---------------------------------------------------------------------------------------

    async def list(self) -> list[answers.CommandInside]:
        """All commands that sbxd knows, ended ones too until they are forgotten."""
        stream = await self._connection.open({"op": "commands"})
        try:
            result = await stream.result(ANSWER_S)
        finally:
            stream.close()
        return self._connection.checked(answers.read_commands, result)

    async def forget(self, command_id: CommandId) -> None:
        """Drop an ended command's record inside. Unknown: success.

        Raises:
            GuestError: `busy`: it still runs.
        """
        stream = await self._connection.open({"op": "forget", "id": requests.command_id(command_id)})
        try:
            await stream.result(ANSWER_S)
        finally:
            stream.close()
        if (link := self._links.pop(command_id, None)) is not None:
            link.stream.close()

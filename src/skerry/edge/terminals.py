"""Pumps bytes between a command and one WebSocket, until either has ended. What is said on it: `wire.terminals`.

A client that reads slowly is waited for and holds up nobody else: it reads from the spool, at most one message ahead.
Input that the command does not read waits in a small queue, then on the client's side; control overtakes it. Decides
nothing, and knows nobody's account.
"""

import asyncio
import json
from collections import deque
from dataclasses import dataclass

from pydantic import ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect

from skerry.control.attachments import Attachment
from skerry.control.streams import closing
from skerry.model.command import CommandCause, Exit, Lost, Output, TerminalSize
from skerry.model.errors import Invalid, SandboxGone, SkerryError
from skerry.wire.terminals import Control

NORMAL, POLICY, TRY_AGAIN, SANDBOX_GONE = 1000, 1008, 1013, 4410
_QUEUE_BYTES = 1_048_576  # of input that waits for the command
_EACH_BYTES = 128  # what a message costs beside its own bytes: without it, small ones would pile up
_PIECE = 65_536  # what waits is passed on in pieces of this at most
_LONGEST_REASON = 120


@dataclass(frozen=True, slots=True)
class Ending:
    """How the socket is to be closed; `error` is told before."""

    code: int
    reason: str
    error: SkerryError | None = None


async def pump(socket: WebSocket, attachment: Attachment, offset: int, *, channels: bool) -> None:
    """Serve an accepted socket to its end. `channels`: a byte before the output says which."""
    pumping = _Pump(socket, attachment, channels)
    async with asyncio.TaskGroup() as group:
        works = (pumping.outward(offset), pumping.inward(), pumping.feed(), pumping.revoked())
        tasks = [group.create_task(work) for work in works]
        ended, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
    # Of several that ended at once the command's own end says most.
    ending = next((task.result() for task in tasks if task in ended), None)
    if ending is not None:
        await _close(socket, ending)


class _Pump:
    """One client. Each of its works ends with how to close, or with None: the client has gone."""

    def __init__(self, socket: WebSocket, attachment: Attachment, channels: bool) -> None:
        self._socket = socket
        self._attachment = attachment
        self._channels = channels
        self._queue: deque[bytes] = deque()  # b"" is the end of input
        self._queued = 0
        self._changed = asyncio.Event()

    # -- out -------------------------------------------------------------------------------------------------------

    async def outward(self, offset: int) -> Ending | None:
        """Output to the client, to the command's end."""
        try:
            await self._tell({"offset": offset})
            async with closing(self._attachment.output(offset)) as events:
                async for event in events:
                    if isinstance(event, Exit):
                        return await self._exited(event)
                    await self._show(event)
        except WebSocketDisconnect:
            return None
        except SkerryError as error:
            return _broken(error)
        return None

    async def _show(self, event: Output | Lost) -> None:
        if isinstance(event, Lost):
            await self._tell({"lost": {"offset": event.offset, "length": event.length}})
        elif self._channels:
            await self._socket.send_bytes(event.channel.to_bytes() + event.data)
        else:
            await self._socket.send_bytes(event.data)

    async def _exited(self, exit: Exit) -> Ending:
        told = {"code": exit.code, "signal": exit.signal, "timed_out": exit.timed_out, "offset": exit.offset}
        await self._tell({"exit": {**told, "reason": exit.cause, "message": exit.detail or None}})
        if exit.cause is CommandCause.SANDBOX_GONE:
            return Ending(SANDBOX_GONE, exit.detail or "The sandbox has ended.")
        return Ending(NORMAL, "The command has ended.")

    async def _tell(self, told: dict[str, object]) -> None:
        await self._socket.send_text(json.dumps(told))

    # -- in --------------------------------------------------------------------------------------------------------

    async def inward(self) -> Ending | None:
        """What the client sends, into the queue or, control, to where it acts."""
        try:
            while True:
                message = await self._socket.receive()
                if message["type"] == "websocket.disconnect":
                    return None
                if (text := message.get("text")) is not None:
                    await self._act(text)
                elif data := message.get("bytes"):
                    await self._put(data)
        except SkerryError as error:
            return _broken(error)

    async def _act(self, text: str) -> None:
        try:
            control = Control.model_validate_json(text)
        except ValidationError as error:
            message = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise Invalid(f"A text message is no control message: {message}.") from error
        if control.resize is not None:
            await self._attachment.resize(TerminalSize(control.resize.cols, control.resize.rows))
        elif control.signal is not None:
            await self._attachment.signal(control.signal)
        else:
            await self._put(b"")

    async def _put(self, data: bytes) -> None:
        while self._queued >= _QUEUE_BYTES:
            self._changed.clear()
            await self._changed.wait()
        self._queue.append(data)
        self._queued += len(data) + _EACH_BYTES
        self._changed.set()

    async def feed(self) -> Ending | None:
        """The queue to the command's input."""
        try:
            while True:
                while not self._queue:
                    self._changed.clear()
                    await self._changed.wait()
                data = self._take()
                if data:
                    await self._attachment.write(data)
                else:
                    await self._attachment.end_input()
        except SkerryError as error:
            return _broken(error)

    async def revoked(self) -> Ending:
        """The end of the right to be here."""
        await self._attachment.revoked()
        return Ending(TRY_AGAIN, "An API key of this account was deleted. Connect again with one that is valid.")

    def _take(self) -> bytes:
        """What waits, keystrokes together: while one is on its way inside, the next ones gather."""
        pieces = [self._queue.popleft()]
        size = len(pieces[0])
        while pieces[0] and self._queue and self._queue[0] and size + len(self._queue[0]) <= _PIECE:
            pieces.append(self._queue.popleft())
            size += len(pieces[-1])
        self._queued -= size + len(pieces) * _EACH_BYTES
        self._changed.set()
        return b"".join(pieces)


def _broken(error: SkerryError) -> Ending:
    if isinstance(error, Invalid):
        return Ending(POLICY, error.message, error)
    return Ending(SANDBOX_GONE if isinstance(error, SandboxGone) else TRY_AGAIN, error.message, error)


async def _close(socket: WebSocket, ending: Ending) -> None:
    reason = ending.reason.encode("utf-8", "replace")[:_LONGEST_REASON].decode("utf-8", "ignore")
    try:
        if ending.error is not None:
            told = {"code": ending.error.code, "message": ending.error.message}
            await socket.send_text(json.dumps({"error": told}))
        await socket.close(ending.code, reason)
    except (WebSocketDisconnect, RuntimeError):
        return  # it has gone meanwhile

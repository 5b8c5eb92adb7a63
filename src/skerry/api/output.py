"""A command's output on its way out: the published client's events, the native ones, raw bytes. Flat memory."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

from skerry.api.render import command_view
from skerry.api.streaming import event, event_base64
from skerry.control import commands, endings, following
from skerry.control.commands import Started
from skerry.control.deps import Deps
from skerry.control.streams import closing
from skerry.model.command import Command, CommandCause, CommandEvent, CommandStatus, Exit, Lost, Output
from skerry.model.errors import SkerryError


async def flax_events(deps: Deps, started: Started) -> AsyncIterator[bytes]:
    """`chunk` (base64, both channels as they come), `error` (base64) when it failed, `end` (the exit code).

    The client decodes chunk by chunk, so a character is never cut in two.
    """
    tails: dict[int, bytes] = {}
    ended = started.command
    try:
        if ended.exit is None or ended.exit.cause is not CommandCause.NOT_STARTED:
            async with closing(following.follow(deps, ended)) as found:
                async for each in found:
                    if isinstance(each, Output):
                        whole, tails[each.channel] = _whole_characters(tails.get(each.channel, b"") + each.data)
                        if whole:
                            yield event_base64("chunk", whole)
                    elif isinstance(each, Lost):
                        yield event_base64("chunk", f"\n[{each.length} bytes of output are not kept]\n".encode())
                    else:
                        ended = await endings.end_command(deps, started.command, each)
    except SkerryError as error:
        yield event_base64("error", error.message.encode("utf-8", "replace"))
        return
    for tail in tails.values():
        if tail:
            yield event_base64("chunk", tail)
    if ended.status in (CommandStatus.FAILED, CommandStatus.TIMEOUT):
        yield event_base64("error", _why(ended).encode("utf-8", "replace"))
    code = ended.exit.code if ended.exit is not None else None
    yield event("end", "null" if code is None else str(code))


async def native_events(deps: Deps, command: Command, offset: int) -> AsyncIterator[bytes]:
    """`stdout` and `stderr` (base64), `lost`, `end` (the command, without output) or `error`; ids are offsets.

    `lost_bytes` of the end counts from `offset` on, as the events before it do.
    """
    lost_bytes = 0
    try:
        async with closing(following.follow(deps, command, offset)) as found:
            async for each in found:
                match each:
                    case Output(channel, start, data):
                        yield event_base64("stderr" if channel == 2 else "stdout", data, start + len(data))
                    case Lost(start, length):
                        lost_bytes += length
                        yield event("lost", json.dumps({"offset": start, "length": length}), start + length)
                    case Exit():
                        ended = await endings.end_command(deps, command, each)
                        view = command_view(ended).model_copy(update={"lost_bytes": lost_bytes})
                        yield event("end", view.model_dump_json(), each.offset)
    except SkerryError as error:
        yield event("error", json.dumps({"code": error.code, "message": error.message}))


@dataclass(frozen=True, slots=True)
class Window:
    """Part of an output: `limit` bytes (None: all) from `offset`, of one channel (None: both)."""

    offset: int
    limit: int | None
    channel: int | None

    def cut(self, output: Output) -> bytes:
        """What of `output` lies inside."""
        if self.channel is not None and output.channel != self.channel:
            return b""
        start = max(0, self.offset - output.offset)
        stop = len(output.data) if self.limit is None else max(0, self.offset + self.limit - output.offset)
        return output.data if start == 0 and stop >= len(output.data) else output.data[start:stop]

    def is_behind(self, output: Output) -> bool:
        """Whether all of `output`, and so all that follows, lies behind the window."""
        return self.limit is not None and output.offset >= self.offset + self.limit


async def raw(deps: Deps, command: Command, window: Window) -> AsyncIterator[bytes]:
    """The bytes of a window.

    Raises (before the first byte, so that it can still be answered properly):
        NotFound: The output is no longer kept.
    """
    found = commands.present(deps, command, window.offset)
    first = await anext(found, None)
    return _raw(first, found, window)


async def _raw(first: CommandEvent | None, rest: AsyncIterator[CommandEvent], window: Window) -> AsyncIterator[bytes]:
    async with closing(rest):
        each = first
        while each is not None:
            if isinstance(each, Output):
                if window.is_behind(each):
                    return
                part = window.cut(each)
                if part:
                    yield part
            each = await anext(rest, None)


def _whole_characters(data: bytes) -> tuple[bytes, bytes]:
    """`data` without the beginning of a UTF-8 character at its end, and that beginning."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue  # in the middle of a character: look further back for its first byte
        length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return (data[:-back], data[-back:]) if length > back else (data, b"")
    return data, b""


def _why(command: Command) -> str:
    if command.status is CommandStatus.TIMEOUT:
        return f"The command ran into its deadline of {command.timeout_s} s."
    exit = command.exit
    if exit is not None and exit.detail:
        return exit.detail
    if exit is not None and exit.signal is not None:
        return f"The command was killed by signal {exit.signal}."
    return "The command could not be run."

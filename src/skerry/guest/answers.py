"""Reading what sbxd answers: each function takes a JSON object and gives a noun, or a ProtocolError.

Root inside a sandbox owns its sbxd, so every member is checked for type and range before it is believed. No I/O.
"""

import json
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, cast

from skerry.model.command import CommandCause, Exit
from skerry.model.errors import ProtocolError
from skerry.model.files import Archived, ChangeKind, FileChange, FileInfo, FileType, Skipped
from skerry.model.ids import CommandId
from skerry.model.process import ListeningPort, Process

_INT64 = (1 << 63) - 1
_UINT32 = (1 << 32) - 1
_MAX_PID = 1 << 22
_MAX_PATH = 8_192  # PATH_MAX for the directory and room for a name behind it
_MAX_NAME = 255
_MAX_COMMANDS = 65_536
_MAX_SKIPPED = 1_000
_MAX_SKIPPED_JSON = 160_000  # so that it fits into one frame again
_MAX_REASON = 256
_MAX_ARGV = 4_096
_STATES = frozenset("RSDTtZXIPWKx?")

_FILE_TYPES = {str(kind): kind for kind in FileType}
_CHANGE_KINDS = {str(kind): kind for kind in ChangeKind}


@dataclass(frozen=True, slots=True)
class Attached:
    """Answer to an attach: `offset` is where the output goes on; what lies before it and was asked for is lost."""

    pid: int
    offset: int
    running: bool


@dataclass(frozen=True, slots=True)
class CommandInside:
    """A command as sbxd knows it: `acked_bytes` of its `output_bytes` have been acknowledged."""

    id: CommandId
    pid: int
    running: bool
    acked_bytes: int
    output_bytes: int


def number(value: dict[str, Any], member: str, low: int = 0, high: int = _INT64) -> int:
    """An integer member within low…high."""
    found = value.get(member)
    if type(found) is not int or not low <= found <= high:
        raise ProtocolError(f"The sandbox answered with a bad '{member}'.")
    return found


def flag(value: dict[str, Any], member: str) -> bool:
    found = value.get(member)
    if type(found) is not bool:
        raise ProtocolError(f"The sandbox answered with a bad '{member}'.")
    return found


def file_text(value: dict[str, Any], member: str, longest_bytes: int) -> str:
    """A member that is a file name or path: non-empty, no NUL, and `os.fsencode` will take it."""
    found = value.get(member)
    if type(found) is str and found and "\0" not in found and len(found) <= longest_bytes:
        try:
            if len(found.encode("utf-8", "surrogateescape")) <= longest_bytes:
                return found
        except UnicodeEncodeError:
            pass
    raise ProtocolError(f"The sandbox answered with a bad '{member}'.")


def any_text(value: dict[str, Any], member: str, longest_bytes: int) -> str:
    """A member that is a text, perhaps empty, of bytes that are no NUL."""
    return "" if value.get(member) == "" else file_text(value, member, longest_bytes)


def expect_event(value: dict[str, Any] | None, name: str) -> dict[str, Any]:
    """The event `name`, which had to come now."""
    if value is None or value.get("event") != name:
        raise ProtocolError(f"The sandbox did not answer with '{name}'.")
    return value


def read_started(event: dict[str, Any] | None) -> int:
    """The `started` event: the main process's pid inside."""
    return number(expect_event(event, "started"), "pid", 1, _MAX_PID)


def read_attached(event: dict[str, Any] | None, asked: int) -> Attached:
    """The `attached` event. An offset before the one that was asked for is a lie: those bytes were acknowledged."""
    value = expect_event(event, "attached")
    return Attached(number(value, "pid", 0, _MAX_PID), number(value, "from", asked), flag(value, "running"))


def read_exit(event: dict[str, Any] | None, offset: int) -> Exit:
    """The `exited` event, when `offset` bytes of output were received: no more and no less may be claimed."""
    value = expect_event(event, "exited")
    code = None if value.get("code") is None else number(value, "code", 0, 255)
    signal = None if value.get("signal") is None else number(value, "signal", 1, 64)
    if code is not None and signal is not None:
        raise ProtocolError("The sandbox told a command's end with both a code and a signal.")
    timed_out = flag(value, "timeout")
    if number(value, "offset") != offset:
        raise ProtocolError("The sandbox told a command's end at another offset than its output has.")
    duration_ms = number(value, "duration_ms")
    if code is None and signal is None:
        detail = "How it ended is lost: what watched over it inside was killed."
        return Exit(None, None, timed_out, offset, duration_ms, CommandCause.UNKNOWN, detail)
    return Exit(code, signal, timed_out, offset, duration_ms)


def read_file_info(value: dict[str, Any]) -> FileInfo:
    kind = value.get("type")
    if type(kind) is not str or kind not in _FILE_TYPES:
        raise ProtocolError("The sandbox answered with an unknown type of file.")
    path = file_text(value, "path", _MAX_PATH)
    name = file_text(value, "name", _MAX_NAME)
    if not path.startswith("/") or ("/" in name and name != "/"):
        raise ProtocolError("The sandbox answered with a path that is not absolute, or a name that is a path.")
    return FileInfo(
        name=name,
        path=path,
        type=_FILE_TYPES[kind],
        size_bytes=number(value, "size"),
        mode=number(value, "mode", 0, 0o7777),
        uid=number(value, "uid", 0, _UINT32),
        gid=number(value, "gid", 0, _UINT32),
        mtime_ns=number(value, "mtime_ns", -_INT64 - 1),
        target=None if value.get("target") is None else file_text(value, "target", _MAX_PATH),
    )


def read_stat(event: dict[str, Any] | None) -> FileInfo:
    """The `stat` event of a file that was opened."""
    return read_file_info(expect_event(event, "stat"))


def read_change(event: dict[str, Any] | None) -> FileChange:
    value = expect_event(event, "change")
    kind = value.get("kind")
    if type(kind) is not str or kind not in _CHANGE_KINDS:
        raise ProtocolError("The sandbox told of an unknown kind of change.")
    return FileChange(_CHANGE_KINDS[kind], file_text(value, "path", _MAX_PATH))


def read_commands(value: dict[str, Any]) -> list[CommandInside]:
    found = value.get("commands")
    if type(found) is not list or len(cast(list[object], found)) > _MAX_COMMANDS:
        raise ProtocolError("The sandbox answered with a bad list of commands.")
    return [_read_command(item) for item in cast(list[object], found)]


def _read_command(value: object) -> CommandInside:
    if type(value) is not dict:
        raise ProtocolError("The sandbox answered with a bad list of commands.")
    members = cast(dict[str, Any], value)
    offset = number(members, "offset")
    return CommandInside(
        id=CommandId(file_text(members, "id", 64)),
        pid=number(members, "pid", 0, _MAX_PID),
        running=flag(members, "running"),
        acked_bytes=number(members, "acked", 0, offset),
        output_bytes=offset,
    )


def read_archived(value: dict[str, Any]) -> Archived:
    """What packing or unpacking answers at its end."""
    found = value.get("skipped")
    if type(found) is not list or len(cast(list[object], found)) > _MAX_SKIPPED:
        raise ProtocolError("The sandbox answered with a bad list of skipped entries.")
    skipped = tuple(_read_skipped(item) for item in cast(list[object], found))
    if sum(len(json.dumps(each.path)) + len(each.reason) for each in skipped) > _MAX_SKIPPED_JSON:
        raise ProtocolError("The sandbox answered with too long a list of skipped entries.")
    return Archived(
        count=number(value, "count"),
        size_bytes=number(value, "bytes"),
        skipped=skipped,
        skipped_count=number(value, "skipped_count", len(skipped)),
    )


def _read_skipped(value: object) -> Skipped:
    if type(value) is not dict:
        raise ProtocolError("The sandbox answered with a bad list of skipped entries.")
    members = cast(dict[str, Any], value)
    reason = file_text(members, "reason", _MAX_REASON)
    return Skipped(file_text(members, "path", _MAX_PATH), "".join(c if c.isprintable() else "?" for c in reason))


def _read_holder(value: dict[str, Any]) -> CommandId | None:
    return None if value.get("command") is None else CommandId(file_text(value, "command", 64))


def read_process(value: dict[str, Any]) -> Process:
    argv = value.get("argv")
    if type(argv) is not list or len(cast(list[object], argv)) > _MAX_ARGV:
        raise ProtocolError("The sandbox answered with a bad 'argv'.")
    arguments = tuple(any_text({"argv": each}, "argv", _MAX_ARGV) for each in cast(list[object], argv))
    if sum(len(each) for each in arguments) > _MAX_ARGV:
        raise ProtocolError("The sandbox answered with too long an 'argv'.")
    state = value.get("state")
    if type(state) is not str or state not in _STATES:
        raise ProtocolError("The sandbox answered with a bad 'state'.")
    return Process(
        pid=number(value, "pid", 1, _MAX_PID),
        ppid=number(value, "ppid", 0, _MAX_PID),
        uid=number(value, "uid", 0, _UINT32),
        name=any_text(value, "name", _MAX_NAME),
        argv=arguments,
        state=state,
        cpu_ms=number(value, "cpu_ms"),
        rss_bytes=number(value, "rss_bytes"),
        age_ms=number(value, "age_ms"),
        command_id=_read_holder(value),
    )


def read_port(value: dict[str, Any]) -> ListeningPort:
    family = value.get("family")
    if family not in ("ipv4", "ipv6"):
        raise ProtocolError("The sandbox answered with a bad 'family'.")
    told = file_text(value, "address", 64)
    try:
        address = str(ip_address(told))
    except ValueError as error:
        raise ProtocolError("The sandbox answered with a bad 'address'.") from error
    if "%" in told:  # a zone, which can be any text; no listener has one
        raise ProtocolError("The sandbox answered with a bad 'address'.")
    return ListeningPort(
        port=number(value, "port", 1, 65_535),
        address=address,
        family=str(family),
        uid=number(value, "uid", 0, _UINT32),
        pid=None if value.get("pid") is None else number(value, "pid", 1, _MAX_PID),
        command_id=_read_holder(value),
    )

"""What the tests of a guest are handed, and do over and over. Each wait has a deadline."""

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from skerry.model.command import ExecSpec, Exit, Output
from skerry.model.errors import GuestError
from skerry.model.files import Archived, ArchiveLimits
from skerry.model.ids import CommandId, new_command_id
from skerry.seams import Guest

DEADLINE_S = 20.0


@dataclass(frozen=True, slots=True)
class Inside:
    """A guest to test: an existing, empty directory in it, and a way to let something echo on a port inside."""

    guest: Guest
    root: str
    echo_port: Callable[[], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Ended:
    """All that a command said."""

    stdout: bytes
    stderr: bytes
    exit: Exit


async def follow(guest: Guest, command_id: CommandId, offset: int = 0) -> Ended:
    """Read a command to its end; offsets have to be without a gap."""
    said = {1: b"", 2: b""}
    async with asyncio.timeout(DEADLINE_S):
        async for event in guest.attach(command_id, offset):
            if isinstance(event, Output):
                assert event.offset == offset and event.data
                offset += len(event.data)
                said[event.channel] += event.data
            elif isinstance(event, Exit):
                assert event.offset == offset
                return Ended(said[1], said[2], event)
            else:
                pytest.fail(f"output was lost: {event}")
    pytest.fail("the output ended without an Exit")


async def run(guest: Guest, shell: str | None = None, argv: tuple[str, ...] = (), **more: Any) -> Ended:
    """Run a command to its end."""
    spec = ExecSpec(id=new_command_id(), shell=shell, argv=argv, **more)
    async with asyncio.timeout(DEADLINE_S):
        await guest.exec(spec)
    return await follow(guest, spec.id)


async def start(guest: Guest, shell: str, **more: Any) -> CommandId:
    spec = ExecSpec(id=new_command_id(), shell=shell, **more)
    async with asyncio.timeout(DEADLINE_S):
        await guest.exec(spec)
    return spec.id


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def content(guest: Guest, path: str, offset: int = 0, length: int = -1) -> bytes:
    async with asyncio.timeout(DEADLINE_S), guest.read(path, offset, length) as reader:
        return b"".join([chunk async for chunk in reader])


LIMITS = ArchiveLimits(max_entries=10_000, max_bytes=1 << 30)


def tar(*entries: tuple[str, bytes | None], **more: Any) -> bytes:
    """A tar stream of files, and directories (None), each entry with the members in `more`."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in entries:
            info = tarfile.TarInfo(name)
            info.size = len(data or b"")
            info.mode, info.type = (0o755, tarfile.DIRTYPE) if data is None else (0o644, tarfile.REGTYPE)
            for member, value in more.items():
                setattr(info, member, value)
            archive.addfile(info, io.BytesIO(data or b""))
    return stream.getvalue()


async def packed(guest: Guest, path: str, limits: ArchiveLimits = LIMITS) -> tuple[bytes, Archived]:
    async with asyncio.timeout(DEADLINE_S), guest.pack(path, limits) as archive:
        stream = b"".join([chunk async for chunk in archive])
        return stream, archive.result


def code_of(caught: pytest.ExceptionInfo[GuestError]) -> str:
    return caught.value.guest_code


async def collect(guest: Guest, path: str) -> list[str]:
    """The names in a directory."""
    async with asyncio.timeout(DEADLINE_S):
        return [entry.name async for entry in guest.list(path)]

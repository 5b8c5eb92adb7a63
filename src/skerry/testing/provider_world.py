"""What the suites of `Provider` stand on: a provider with a way to hurt it, and helpers that have deadlines."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import cast

from skerry.model.command import CommandEvent, ExecSpec, Exit, Output
from skerry.model.errors import GuestError
from skerry.model.ids import CommandId, SandboxId, new_command_id, new_sandbox_id
from skerry.model.sandbox import Limits, NetworkMode, SandboxSpec
from skerry.seams import Provider

DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class World:
    """A provider that holds no sandbox, a template that is ready, and a way to make a sandbox die from outside."""

    provider: Provider
    template: str
    die: Callable[[SandboxId], Awaitable[None]]


def spec_for(world: World, **changes: object) -> SandboxSpec:
    """A small sandbox without a network."""
    spec = SandboxSpec(
        id=new_sandbox_id(),
        generation=1,
        template=world.template,
        limits=Limits(memory_mb=256, disk_mb=512),
        network_mode=NetworkMode.NONE,
        hostname="suite",
    )
    return replace(spec, **changes)  # type: ignore[arg-type]


async def started(world: World, sandbox_id: SandboxId, shell: str) -> CommandId:
    command = ExecSpec(id=new_command_id(), shell=shell)
    async with asyncio.timeout(DEADLINE_S):
        await world.provider.guest(sandbox_id).exec(command)
    return command.id


async def read(events: object) -> tuple[bytes, Exit | None]:
    """All output and the end, if one was told."""
    said, end = b"", None
    async with asyncio.timeout(DEADLINE_S), aclosing(cast(AsyncGenerator[CommandEvent], events)) as following:
        async for event in following:
            if isinstance(event, Output):
                said += event.data
            elif isinstance(event, Exit):
                end = event
    return said, end


async def put(world: World, sandbox_id: SandboxId, path: str, content: bytes) -> None:
    """Write a file, its directories too; nothing is synced."""

    async def pieces() -> AsyncIterator[bytes]:
        yield content

    guest = world.provider.guest(sandbox_id)
    async with asyncio.timeout(DEADLINE_S):
        await guest.mkdir(path.rpartition("/")[0])
        await guest.write(path, pieces())


async def got(world: World, sandbox_id: SandboxId, path: str) -> bytes | None:
    """A file's content; None where there is none."""
    try:
        async with asyncio.timeout(DEADLINE_S), world.provider.guest(sandbox_id).read(path) as reader:
            return b"".join([chunk async for chunk in reader])
    except GuestError as error:
        assert error.guest_code == "not_found", error
        return None

"""Following a command to its end, whatever becomes of the node meanwhile. Starts and records nothing."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta

from skerry.control import endings
from skerry.control.deps import Deps
from skerry.control.streams import closing
from skerry.model.command import Command, CommandEvent, Exit, Lost, Output
from skerry.model.errors import DeadlineExceeded, NotFound, ProtocolError, SandboxGone, Unavailable

# Whoever follows from here on sees no output, only the end.
BEYOND = 2**62
_RETRY_S = 0.25
# Beyond a command's own deadline: the time a node may be away before a follower leaves the rest to the reconciler.
_PATIENCE_S = 60
# Longer than it takes to find out that the node is not there.
_ATTEMPT = timedelta(seconds=10)


async def follow(deps: Deps, command: Command, offset: int = 0) -> AsyncIterator[CommandEvent]:
    """A command's events from `offset` on, to its `Exit`. A node that is away for a while is waited for.

    Raises:
        Unavailable: The node stayed away, or does not know the command any more.
    """
    away_since = deps.clock.now()
    while True:
        began = deps.clock.now()
        try:
            async with closing(deps.provider.output(command.sandbox_id, command.id, offset)) as events:
                async for event in events:
                    yield event
                    if isinstance(event, Exit):
                        return
                    offset = event.offset + (len(event.data) if isinstance(event, Output) else event.length)
        except SandboxGone as error:
            lost = await endings.found_gone(deps, command, error)
            yield lost if offset >= BEYOND else replace(lost, offset=max(lost.offset, offset))
            return
        except NotFound as error:
            # Never started, or its output is no longer kept: the record has the end, unless the reconciler is yet to
            # ask for it.
            ended = (await deps.store.get_command(command.id)).exit
            if ended is not None:
                if ended.offset > offset:
                    yield Lost(offset, ended.offset - offset)
                yield ended
                return
            raise Unavailable(f"The node does not know command '{command.id}' any more. Look it up later.") from error
        except (Unavailable, DeadlineExceeded, ProtocolError):
            pass
        now = deps.clock.now()
        if now - began > _ATTEMPT:
            away_since = now  # it was there until now
        if now > _patience(command, away_since):
            raise Unavailable(f"The node has not answered for command '{command.id}'. Look it up again later.")
        await deps.clock.sleep_until(now + timedelta(seconds=_RETRY_S))


def _patience(command: Command, away_since: datetime) -> datetime:
    """When to give a node up that does not answer: a while after the command's deadline, or after the node went."""
    last = away_since if command.timeout_s is None else command.started_at + timedelta(seconds=command.timeout_s)
    return last + timedelta(seconds=_PATIENCE_S)

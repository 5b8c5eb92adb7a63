"""How commands and sandboxes end: what is recorded when the outside says so. Idempotent; the first end stands."""

from skerry.control.deps import Deps
from skerry.model.command import Command, CommandCause, Exit, status_of
from skerry.model.errors import Conflict, NotFound
from skerry.model.ids import SandboxId
from skerry.model.lifecycle import Cause, Event, State

_MESSAGES = {
    Cause.OOM: "The sandbox used more memory than its limit and was killed.",
    Cause.RUNTIME_DIED: "The sandbox's runtime died.",
    Cause.HOST_RESTART: "The host was restarted.",
}


def unknown_exit(cause: CommandCause, detail: str, duration_ms: int = 0) -> Exit:
    """The end of a command of which no exit code is known, and none is invented."""
    return Exit(None, None, timed_out=False, offset=0, duration_ms=duration_ms, cause=cause, detail=detail)


async def end_command(deps: Deps, command: Command, exit: Exit) -> Command:
    return await deps.store.finish_command(command.id, status=status_of(exit), exit=exit, at=deps.clock.now())


async def sandbox_died(deps: Deps, sandbox_id: SandboxId, cause: Cause, detail: str = "") -> None:
    """Record a death that a provider reported. A sandbox that is not running any more is left as it is."""
    try:
        sandbox = await deps.store.get_sandbox(sandbox_id)
        if sandbox.state is not State.RUNNING:
            return
        await deps.store.transition(sandbox, Event.BROKE, cause=cause, detail=detail or _MESSAGES.get(cause, ""))
    except (NotFound, Conflict):
        return
    await settle_commands(deps, sandbox_id, cause)


async def settle_commands(deps: Deps, sandbox_id: SandboxId, cause: Cause | None) -> None:
    """End the commands of a sandbox that runs no more: as the provider saw them end, else with the sandbox's cause."""
    running = await deps.store.list_commands(sandbox_id=sandbox_id, running=True)
    if not running:
        return
    exits = await deps.provider.command_exits([command.id for command in running])
    for command in running:
        await end_command(deps, command, exits.get(command.id) or lost_with_sandbox(deps, command, cause))


def lost_with_sandbox(deps: Deps, command: Command, cause: Cause | None) -> Exit:
    """The end of a command whose sandbox ended under it."""
    why = CommandCause.OOM if cause is Cause.OOM else CommandCause.SANDBOX_GONE
    detail = _MESSAGES.get(cause, "The sandbox ended.") if cause is not None else "The sandbox was destroyed."
    lasted = deps.clock.now() - command.started_at
    return unknown_exit(why, detail, int(lasted.total_seconds() * 1000))


def cause_of(text: str) -> Cause:
    """A cause as an error carries it; one that this version does not know is the runtime's death."""
    return Cause(text) if text in list(Cause) else Cause.RUNTIME_DIED

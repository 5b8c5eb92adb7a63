"""How commands and sandboxes end: what is recorded when the outside says so. Idempotent; the first end stands."""

from dataclasses import replace

from skerry.control.deps import Deps
from skerry.model.command import Command, CommandCause, CommandKind, Exit, status_of
from skerry.model.errors import Conflict, NotFound, SandboxGone
from skerry.model.ids import SandboxId
from skerry.model.lifecycle import Cause, Event, State
from skerry.model.sandbox import Sandbox

_MESSAGES = {
    Cause.OOM: "The sandbox used more memory than its limit and was killed.",
    Cause.RUNTIME_DIED: "The sandbox's runtime died.",
    Cause.HOST_RESTART: "The host was restarted.",
}


def unknown_exit(cause: CommandCause, detail: str, duration_ms: int = 0) -> Exit:
    """The end of a command of which no exit code is known, and none is invented."""
    return Exit(None, None, timed_out=False, offset=0, duration_ms=duration_ms, cause=cause, detail=detail)


async def end_command(deps: Deps, command: Command, exit: Exit) -> Command:
    """Record it. The end of a command is a use of its sandbox: it is idle from then on."""
    now = deps.clock.now()
    if command.kind is CommandKind.COMMAND:
        deps.uses.note(command.sandbox_id, now)
    return await deps.store.finish_command(command.id, status=status_of(exit), exit=exit, at=now)


async def sandbox_died(
    deps: Deps, sandbox_id: SandboxId, cause: Cause, detail: str = "", *, generation: int | None = None
) -> None:
    """Record a death that a provider reported, of this generation or an older one. One that runs no more: nothing.

    A host that restarts is a stop that nobody asked for, where there is a place to keep the files.
    """
    try:
        sandbox = await deps.store.get_sandbox(sandbox_id)
        if sandbox.state is not State.RUNNING or (generation is not None and generation < sandbox.generation):
            return
        stopped = cause is Cause.HOST_RESTART and bool(deps.config.archive_place)
        event = Event.STOP if stopped else Event.BROKE
        await deps.store.transition(sandbox, event, cause=cause, detail=detail or _MESSAGES.get(cause, ""))
    except (NotFound, Conflict):
        return
    await settle_commands(deps, sandbox_id, cause)


async def found_gone(deps: Deps, command: Command, error: SandboxGone) -> Exit:
    """How a command ended whose sandbox a call found gone: also what that means for the sandbox is recorded.

    The call may have been to compute that was stopped in good order since: so its provider is asked.
    """
    sandbox = await deps.store.get_sandbox(command.sandbox_id)
    if sandbox.state is State.RUNNING:
        for seen in await deps.provider.list():
            if seen.id == sandbox.id and not seen.running:
                cause = seen.cause or cause_of(error.cause)
                detail = seen.detail or error.message
                await sandbox_died(deps, sandbox.id, cause, detail, generation=seen.generation)
        sandbox = await deps.store.get_sandbox(command.sandbox_id)
    exits = await deps.provider.command_exits([command.id])
    return exits.get(command.id) or lost_with_sandbox(deps, command, sandbox)


async def settle_commands(deps: Deps, sandbox_id: SandboxId, cause: Cause | None) -> None:
    """End the commands of a sandbox that runs no more: as the provider saw them end, else with the sandbox's cause."""
    running = await deps.store.list_commands(sandbox_id=sandbox_id, running=True)
    if not running:
        return
    sandbox = replace(await deps.store.get_sandbox(sandbox_id), cause=cause)
    exits = await deps.provider.command_exits([command.id for command in running])
    for command in running:
        await end_command(deps, command, exits.get(command.id) or lost_with_sandbox(deps, command, sandbox))


def lost_with_sandbox(deps: Deps, command: Command, sandbox: Sandbox) -> Exit:
    """The end of a command whose sandbox, as it is on record now, ended under it."""
    why = CommandCause.OOM if sandbox.cause is Cause.OOM else CommandCause.SANDBOX_GONE
    if sandbox.cause is not None:
        detail = _MESSAGES.get(sandbox.cause, "The sandbox ended.")
    elif sandbox.state in (State.DESTROYING, State.DESTROYED):
        detail = "The sandbox was destroyed."
    else:
        detail = "The sandbox was stopped."
    lasted = deps.clock.now() - command.started_at
    return unknown_exit(why, detail, int(lasted.total_seconds() * 1000))


def cause_of(text: str) -> Cause:
    """A cause as an error carries it; one that this version does not know is the runtime's death."""
    return Cause(text) if text in list(Cause) else Cause.RUNTIME_DIED

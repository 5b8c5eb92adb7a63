"""/v1/commands and /v1/sandboxes/{id}/commands"""

from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Header, Query, WebSocket
from starlette.requests import Request
from starlette.responses import Response

from skerry.api import output
from skerry.api.call import Caller, RepeatKey, answer, once
from skerry.api.hangups import while_there
from skerry.api.render import command_view
from skerry.api.streaming import BYTES, RAW_BODY, SSE, Stream, events, gathered
from skerry.api.terminals import attached
from skerry.control import code, command_lists, commands, inputs
from skerry.model.command import CommandFilter, CommandKind, CommandStatus
from skerry.model.errors import Invalid
from skerry.wire.base import Page
from skerry.wire.commands import CommandView, RunCode, RunCommand, SignalCommand
from skerry.wire.terminals import InputView

router = APIRouter(tags=["commands"])

Offset = Annotated[int | None, Query(ge=0, le=2**62, description="Position in the output, both channels together.")]


class Channel(StrEnum):
    """Which of a command's outputs."""

    STDOUT = "stdout"
    STDERR = "stderr"
    ALL = "all"


@router.post("/v1/sandboxes/{sandbox_id}/commands", response_model=CommandView, responses={202: {"model": CommandView}})
async def run_command(call: Caller, sandbox_id: str, body: RunCommand, key: RepeatKey = None) -> Response:
    """Run a command and answer when it has ended (200), or with `async` as soon as it runs (202)."""
    again = once(call, key, body)
    if body.run_async:
        started = await commands.start(call.deps, call.account_id, sandbox_id, _wanted(body), again)
        return answer(command_view(started.command), 202)
    result = await commands.run(call.deps, call.account_id, sandbox_id, _wanted(body), again)
    return answer(command_view(result.command, result.captured))


@router.post("/v1/sandboxes/{sandbox_id}/code", response_model=CommandView)
async def run_code(call: Caller, sandbox_id: str, body: RunCode) -> Response:
    """Run code in an interpreter of the sandbox and answer when it has ended."""
    wanted = code.NewCode(body.language, body.code, body.timeout_seconds, body.env or {}, body.working_directory)
    result = await code.run(call.deps, call.account_id, sandbox_id, wanted)
    return answer(command_view(result.command, result.captured))


@router.post("/v1/sandboxes/{sandbox_id}/commands/stream", response_class=Response, responses={**SSE})
async def stream_command(call: Caller, sandbox_id: str, body: RunCommand, key: RepeatKey = None) -> Response:
    """Run a command and stream its output in the published client's dialect: `chunk`, `error`, `end`."""
    if body.run_async:
        raise Invalid("A streamed command is followed as it runs: leave 'async' out.", field="async")
    again = once(call, key, body)
    started = await commands.start(call.deps, call.account_id, sandbox_id, _wanted(body), again)
    return events(output.flax_events(call.deps, started))


@router.get("/v1/sandboxes/{sandbox_id}/commands", response_model=Page[CommandView])
async def list_commands(
    call: Caller,
    sandbox_id: str,
    status: Annotated[list[CommandStatus] | None, Query(description="Only these; may be repeated.")] = None,
    kind: Annotated[list[CommandKind] | None, Query(description="Only these; may be repeated.")] = None,
    limit: Annotated[int, Query(ge=1, le=command_lists.PAGE_LIMIT)] = command_lists.PAGE_LIMIT,
    before: str | None = None,
) -> Response:
    """Newest first, without output; `output_bytes` is known of those that have ended. `next` is the following `before`.

    All that was run in the sandbox: commands, startups and terminals, told apart by `kind`.
    """
    where = CommandFilter(statuses=status, kinds=kind)
    page, following = await command_lists.list_page(
        call.deps, call.account_id, sandbox_id, where=where, limit=limit, before=before
    )
    return answer(Page[CommandView](data=[command_view(command) for command in page], next=following))


@router.get("/v1/commands/{command_id}", response_model=CommandView)
async def get_command(call: Caller, command_id: str) -> Response:
    """A command with its output so far, 1 MiB of each channel; after its sandbox is gone, too."""
    result = await commands.look_up(call.deps, call.account_id, command_id)
    return answer(command_view(result.command, result.captured))


@router.get("/v1/commands/{command_id}/events", response_class=Response, responses={**SSE})
async def follow_command(
    call: Caller,
    command_id: str,
    offset: Offset = None,
    last_event_id: Annotated[str | None, Header(pattern=r"^\d{1,18}$")] = None,
) -> Response:
    """Follow a command from `offset`, or from behind the last event seen: `stdout`, `stderr`, `lost`, `end`."""
    command = await commands.get(call.deps, call.account_id, command_id)
    start = offset if last_event_id is None else int(last_event_id)
    return events(output.native_events(call.deps, command, start or 0))


@router.get("/v1/commands/{command_id}/output", response_class=Response, responses={**BYTES})
async def get_output(
    call: Caller,
    command_id: str,
    stream: Channel = Channel.ALL,
    offset: Offset = None,
    limit: Annotated[int | None, Query(ge=1, le=2**62, description="Length of the window from `offset`.")] = None,
) -> Response:
    """What is kept of the output in the window of `limit` bytes from `offset`, counted over both channels, raw.

    Lost ranges are left out; `lost_bytes` of the command counts them and its `events` tell where they are.
    """
    command = await commands.get(call.deps, call.account_id, command_id)
    window = output.Window(offset or 0, limit, None if stream is Channel.ALL else int(stream is Channel.STDERR) + 1)
    return Stream(await output.raw(call.deps, command, window), headers={"X-Content-Type-Options": "nosniff"})


@router.post("/v1/commands/{command_id}/signal", response_model=CommandView)
async def signal_command(call: Caller, command_id: str, body: SignalCommand) -> Response:
    """Send a signal. To a command that has ended: nothing happens."""
    return answer(command_view(await commands.signal(call.deps, call.account_id, command_id, body.signal, body.scope)))


@router.post("/v1/commands/{command_id}/kill", response_model=CommandView)
async def kill_command(call: Caller, command_id: str) -> Response:
    """SIGKILL a command and all its descendants. One that has ended: nothing happens."""
    return answer(command_view(await commands.kill(call.deps, call.account_id, command_id)))


@router.post("/v1/commands/{command_id}/stdin", response_model=InputView, openapi_extra=RAW_BODY)
async def send_stdin(request: Request, call: Caller, command_id: str, eof: bool = False) -> Response:
    """Pass the body on to the input of a command started with `stdin_stream`, as it comes; with `eof`, then end it.

    The command's pace is the upload's; a client that leaves ends the call, not the command. Not idempotent: of an
    upload that broke off, some has arrived.
    """
    command = await inputs.check_open(call.deps, call.account_id, command_id)
    sending = inputs.send(call.deps, command, gathered(request.stream()), end=eof)
    sent = await while_there(request, sending)
    return answer(InputView(written_bytes=sent))


@router.websocket("/v1/commands/{command_id}/ws")
async def attach_command(socket: WebSocket, call: Caller, command_id: str, offset: Offset = None) -> None:
    """Output and input of a command, see `wire.terminals`; each binary message from here begins with its channel."""
    command = await commands.get(call.deps, call.account_id, command_id)
    await attached(socket, call, command, offset or 0, channels=True)


def _wanted(body: RunCommand) -> commands.NewCommand:
    return commands.NewCommand(
        argv=tuple(body.argv or ()),
        shell=body.command,
        timeout_s=body.timeout_seconds,
        cwd=body.working_directory,
        env=body.env or {},
        user=body.user,
        stdin=None if body.stdin is None else body.stdin.encode(),
        takes_input=body.stdin_stream,
        keep=body.keep,
    )

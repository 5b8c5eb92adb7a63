"""/v1/sandboxes/{id}/terminals, and the WebSockets of terminals and commands."""

from typing import Annotated

from fastapi import APIRouter, Query, WebSocket, WebSocketDisconnect
from starlette.responses import Response

from skerry.api.call import Call, Caller, answer
from skerry.api.render import terminal_view
from skerry.api.sockets import checked_ticket
from skerry.control import terminals, tickets
from skerry.control.attachments import Attachment
from skerry.edge.terminals import pump
from skerry.model.command import Command, TerminalSize
from skerry.wire.base import Page
from skerry.wire.terminals import SUBPROTOCOL, OpenTerminal, Resize, TerminalView, TicketView

router = APIRouter(prefix="/v1/sandboxes/{sandbox_id}/terminals", tags=["terminals"])

Offset = Annotated[
    int | None, Query(ge=0, le=2**62, description="Position in the output to go on from; 0 is its start.")
]


@router.post("", status_code=201, response_model=TerminalView)
async def open_terminal(call: Caller, sandbox_id: str, body: OpenTerminal) -> Response:
    """Start a program on a terminal, which goes on until it ends, whoever looks at it."""
    terminal = await terminals.open_terminal(call.deps, call.account_id, sandbox_id, _wanted(body))
    location = f"/v1/sandboxes/{terminal.sandbox_id}/terminals/{terminal.id}"
    return answer(terminal_view(terminal), 201, {"Location": location})


@router.get("", response_model=Page[TerminalView])
async def list_terminals(
    call: Caller,
    sandbox_id: str,
    ended: Annotated[bool, Query(description="Those that have ended too.")] = False,
    limit: Annotated[int, Query(ge=1, le=terminals.LIST_LIMIT)] = terminals.LIST_LIMIT,
) -> Response:
    """The terminals of a sandbox that run, newest first."""
    found = await terminals.list_page(call.deps, call.account_id, sandbox_id, ended=ended, limit=limit)
    return answer(Page[TerminalView](data=[terminal_view(terminal) for terminal in found]))


@router.get("/{terminal_id}", response_model=TerminalView)
async def get_terminal(call: Caller, sandbox_id: str, terminal_id: str) -> Response:
    """One terminal, ended ones too."""
    return answer(terminal_view(await terminals.get(call.deps, call.account_id, sandbox_id, terminal_id)))


@router.delete("/{terminal_id}", status_code=204)
async def close_terminal(call: Caller, sandbox_id: str, terminal_id: str) -> Response:
    """End a terminal and all that runs in it. Safe to call twice; what it showed is kept as any command's output."""
    await terminals.close(call.deps, call.account_id, sandbox_id, terminal_id)
    return Response(status_code=204)


@router.post("/{terminal_id}/resize", response_model=TerminalView)
async def resize_terminal(call: Caller, sandbox_id: str, terminal_id: str, body: Resize) -> Response:
    """Give it another size. The last one given counts, for all that look at it."""
    size = TerminalSize(body.cols, body.rows)
    return answer(terminal_view(await terminals.resize(call.deps, call.account_id, sandbox_id, terminal_id, size)))


@router.post("/{terminal_id}/ticket", status_code=201, response_model=TicketView)
async def issue_ticket(call: Caller, sandbox_id: str, terminal_id: str) -> Response:
    """A ticket for a browser: opens this terminal's WebSocket once within 30 s, without a key."""
    terminal = await terminals.get(call.deps, call.account_id, sandbox_id, terminal_id)
    issued = await tickets.issue(call.deps, terminal)
    return answer(TicketView(ticket=issued.secret, expires_at=issued.expires_at), 201, {"Cache-Control": "no-store"})


@router.websocket("/{terminal_id}/ws")
async def attach_terminal(
    socket: WebSocket, call: Caller, sandbox_id: str, terminal_id: str, offset: Offset = None
) -> None:
    """The terminal's bytes both ways, from `offset` on. See `wire.terminals`."""
    terminal = await terminals.get(call.deps, call.account_id, sandbox_id, terminal_id)
    await attached(socket, call, terminal, offset or 0, channels=False)


async def attached(socket: WebSocket, call: Call, command: Command, offset: int, *, channels: bool) -> None:
    """Accept a WebSocket on a command and serve it to its end."""
    checked_ticket(socket.scope, command)
    try:
        await socket.accept(SUBPROTOCOL if SUBPROTOCOL in socket.scope["subprotocols"] else None)
    except WebSocketDisconnect:
        return
    await pump(socket, Attachment(call.deps, command), offset, channels=channels)


def _wanted(body: OpenTerminal) -> terminals.NewTerminal:
    return terminals.NewTerminal(
        argv=tuple(body.argv or ()),
        shell=body.command,
        size=TerminalSize(body.cols, body.rows),
        cwd=body.working_directory,
        env=body.env or {},
        user=body.user,
        name=body.name,
    )

"""Terminals on the wire (snake_case), and what is said on their WebSockets.

`…/terminals/{id}/ws` and `/v1/commands/{id}/ws` carry bytes in binary messages and control in text messages, each one
JSON object with one member. From the server: `{"offset":n}` first, the position in the output that follows; then output
as it comes; `{"lost":{"offset","length"}}` in place of output that is not kept; `{"exit":{…}}` at the command's end;
`{"error":{"code","message"}}` before the server closes for another reason. From the client: bytes for the command's
input; `{"resize":{"cols","rows"}}`, `{"signal":"INT"}`, `{"eof":true}` (behind the bytes sent before it).

On a terminal's, binary messages are its bytes and nothing else. On a command's, those from the server begin with one
byte that says what follows: 1 stdout (and a terminal's), 2 stderr.
"""

from datetime import datetime
from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from skerry.model.command import CommandStatus
from skerry.wire.base import Answer, Request
from skerry.wire.commands import Argument, Signal
from skerry.wire.sandboxes import Env

SUBPROTOCOL = "skerry.terminal.v1"
TICKET_PREFIX = "skerry.ticket."  # a subprotocol that carries a ticket; never sent back

Cells = Annotated[int, Field(ge=0, le=10_000, description="0: 80 columns, 24 rows.")]


class OpenTerminal(Request):
    """POST /v1/sandboxes/{id}/terminals. `argv`, or `command` (a shell line), or neither: an interactive shell."""

    command: str | None = Field(None, min_length=1, max_length=1_048_576, pattern=r"^[^\x00]*$")
    argv: list[Argument] | None = Field(None, min_length=1, max_length=4096)
    cols: Cells = 0
    rows: Cells = 0
    working_directory: str | None = Field(None, min_length=1, max_length=4096, pattern=r"^/[^\x00]*$")
    env: Env | None = Field(None, repr=False)
    user: str | None = Field(None, min_length=1, max_length=256)
    name: Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$")] | None = None

    @model_validator(mode="after")
    def _not_both(self) -> "OpenTerminal":
        if self.command is not None and self.argv is not None:
            raise ValueError("give 'command' or 'argv', not both")
        return self


class Resize(Request):
    """POST …/terminals/{id}/resize."""

    cols: Cells
    rows: Cells


class Control(Request):
    """A text message from the client: exactly one member."""

    resize: Resize | None = None
    signal: Signal | None = None
    eof: bool | None = None

    @model_validator(mode="after")
    def _one(self) -> "Control":
        if len(self.model_fields_set) != 1 or self.eof is False:
            raise ValueError('give exactly one of "resize", "signal" and "eof":true')
        return self


class TerminalView(Answer):
    """A terminal is a command: its `id` serves at /v1/commands/{id}, too. Times are UTC."""

    id: str
    sandbox_id: str
    name: str | None
    command: str
    status: CommandStatus
    cols: int
    rows: int
    working_directory: str
    exit_code: int | None = None
    signal: int | None = None
    reason: str | None = None
    message: str | None = None
    started_at: datetime
    completed_at: datetime | None = None


class TicketView(Answer):
    """Opens the terminal's WebSocket once, until `expires_at`: send it as a subprotocol, `skerry.ticket.` before it."""

    ticket: str = Field(repr=False)
    expires_at: datetime


class InputView(Answer):
    """POST /v1/commands/{id}/stdin: the bytes that were passed on."""

    written_bytes: int

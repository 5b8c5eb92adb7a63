"""Commands on the wire (snake_case).

Streams are server-sent events. `POST …/commands/stream` speaks the published client's dialect: `chunk` (base64 of both
channels as they come), `error` (base64 of a message), `end` (the exit code, `null` if there is none).
`GET /v1/commands/{id}/events?offset=n` is the native one: `stdout` and `stderr` (base64), `lost`
(`{"offset","length"}`), `end` (a `CommandView` without output); every event's `id` is the output offset behind it, so
that `Last-Event-ID` or `offset` resumes exactly. An `error` (`{"code","message"}`) says that the stream broke off on
the server's side: resume it.
"""

from datetime import datetime
from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field, Strict, StringConstraints, WithJsonSchema, model_validator

from skerry.model.command import CommandKind, CommandStatus, Keep
from skerry.model.errors import Invalid
from skerry.model.signals import signal_number
from skerry.wire.base import Answer, Request
from skerry.wire.sandboxes import Env


def _known(given: object) -> int:
    if isinstance(given, float) and given.is_integer():
        given = int(given)  # JSON knows one kind of number
    if isinstance(given, bool) or not isinstance(given, int | str):
        raise ValueError("a signal is a number or a name")  # noqa: TRY004 - what the framework understands
    try:
        return signal_number(given)
    except Invalid as error:
        raise ValueError(error.message) from error


# A number or a name: 15, "TERM", "SIGTERM".
Signal = Annotated[
    int,
    BeforeValidator(_known),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1, "maximum": 64}, {"type": "string"}]}),
]
_MOST_BYTES = 131_071  # Linux gives no program a longer argument (MAX_ARG_STRLEN, its NUL counted)
Argument = Annotated[str, StringConstraints(max_length=_MOST_BYTES, pattern=r"^[^\x00]*$")]


class RunCommand(Request):
    """POST /v1/sandboxes/{id}/commands. Exactly one of `command` (a shell line) and `argv`.

    `command` and each argument take at most 131,071 bytes of UTF-8, all of it with the environment 258,048 as JSON.
    What is longer goes into a file, or into `stdin`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    command: str | None = Field(None, min_length=1, max_length=_MOST_BYTES, pattern=r"^[^\x00]*$")
    argv: list[Argument] | None = Field(None, min_length=1, max_length=4096)
    timeout_seconds: int | None = Field(None, ge=1)
    working_directory: str | None = Field(None, min_length=1, max_length=4096, pattern=r"^/[^\x00]*$")
    env: Env | None = Field(None, repr=False)
    user: str | None = Field(None, min_length=1, max_length=256)
    # Text given to the command's standard input, which then ends. Left out: end of file at once.
    stdin: str | None = Field(None, max_length=16_777_216, repr=False)
    # Leave standard input open, for `POST /v1/commands/{id}/stdin` and the command's WebSocket. Needs `async`.
    stdin_stream: bool = False
    # What to keep of an output larger than the server keeps: its beginning, or its end.
    keep: Annotated[Keep, Strict(False)] = Keep.HEAD  # in JSON it is text
    run_async: bool = Field(False, alias="async")

    @model_validator(mode="after")
    def _one_of(self) -> "RunCommand":
        if (self.command is None) == (self.argv is None):
            raise ValueError("give exactly one of 'command' and 'argv'")
        if self.stdin_stream and self.stdin is not None:
            raise ValueError("give 'stdin' or 'stdin_stream', not both")
        if self.stdin_stream and not self.run_async:
            raise ValueError("'stdin_stream' needs 'async': the input is sent by later calls")
        return self


class CommandView(Answer):
    """`completed` with any exit code; `failed` = could not be run or was killed (`signal`, `reason`); `timeout`.

    `kind` is what it was run for: `command`, `startup`, `terminal`.
    `timeout_seconds` is 0 where there is no deadline (startup commands).
    `stdout` and `stderr` are text, bytes that are not UTF-8 replaced; then the exact bytes stand in `…_base64` too.
    Each is cut at 1 MiB (`…_truncated`): `GET /v1/commands/{id}/output` has all that is kept. `lost_bytes` counts
    output beyond the server's cap, which is not kept.
    """

    id: str
    sandbox_id: str
    command: str
    kind: CommandKind = CommandKind.COMMAND
    status: CommandStatus
    stdout: str = ""
    stderr: str = ""
    stdout_base64: str | None = None
    stderr_base64: str | None = None
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    output_bytes: int = 0
    lost_bytes: int = 0
    exit_code: int | None = None
    signal: int | None = None
    reason: str | None = None
    message: str | None = None
    working_directory: str
    timeout_seconds: int | None  # null: none, as for terminals
    duration_ms: int | None = None
    started_at: datetime
    completed_at: datetime | None = None


class RunCode(Request):
    """POST /v1/sandboxes/{id}/code. `language`: python, node, ruby, bash, sh. `code` meets no shell that would read it.

    Its standard input is empty. The answer is a `CommandView` whose `command` is the code.
    """

    language: str = Field("python", min_length=1, max_length=50)
    code: str = Field(min_length=1, max_length=16_777_216)
    timeout_seconds: int | None = Field(None, ge=1)
    env: Env | None = None
    working_directory: str | None = Field(None, min_length=1, max_length=4096, pattern=r"^/[^\x00]*$")


class SignalCommand(Request):
    """POST /v1/commands/{id}/signal."""

    signal: Signal
    scope: str = Field("tree", pattern="^(tree|group|main)$")

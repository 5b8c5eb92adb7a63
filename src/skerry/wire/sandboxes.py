"""Sandboxes on the wire (snake_case)."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from skerry.model.sandbox import NetworkMode
from skerry.wire.base import Answer, ErrorDetail, PersonalName, Request

EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,255}$")]
EnvValue = Annotated[str, StringConstraints(max_length=131_071, pattern=r"^[^\x00]*$")]
Env = Annotated[
    dict[EnvName, EnvValue],
    Field(
        max_length=512,
        description="Each entry as NAME=value takes at most 131,071 bytes (Linux's limit), "
        "a sandbox's whole environment 98,304 as JSON.",
    ),
]


IDLE_LIMIT_S = 31_536_000  # a year
STOP_WAIT_S = 50  # the published client waits 60 s for an answer


class CreateSandbox(Request):
    """Everything left out takes the server's default; the answer reports what is in force."""

    template: str | None = Field(None, min_length=1, max_length=200)
    # For people. Several sandboxes may have the same one; commands that are given it then ask for an id.
    name: PersonalName | None = None
    memory_mb: int | None = Field(None, ge=64)
    cpu_millis: int | None = Field(None, ge=50, le=1_000_000)
    disk_mb: int | None = Field(None, ge=64)
    timeout_seconds: int | None = Field(None, ge=1)
    network_mode: Annotated[NetworkMode, Field(strict=False)] | None = None
    env: Env | None = Field(None, repr=False)
    metadata: dict[str, Any] | None = None
    model: dict[str, Any] | None = None
    # Run when the sandbox has come up; empty: none.
    startup_command: str | None = Field(None, max_length=98_304, pattern=r"^[^\x00]*$")
    # Without use for as long it is stopped; 0: never.
    idle_timeout_seconds: int | None = Field(None, ge=0, le=IDLE_LIMIT_S)
    # What its files begin with: those of another sandbox as they are now, or those of a snapshot, whose template and
    # configuration come along. One of the two; empty: neither.
    restore_from: str | None = Field(None, max_length=200)
    snapshot_id: str | None = Field(None, max_length=200)
    # Known to the published client, not yet supported: a value other than None or empty is refused by name.
    capabilities: list[str] | None = None


class ChangeSandbox(Request):
    """PATCH /v1/sandboxes/{id}. What is left out stays; `null` takes it away. `metadata` is replaced as a whole."""

    name: PersonalName | None = None
    metadata: dict[str, Any] | None = None


class SetEnv(Request):
    """PUT /v1/sandboxes/{id}/env. Replaces all of it, for commands from now on."""

    env: Env = Field(repr=False)


class StopSandbox(Request):
    """POST …/stop. The body may be left out.

    `force`: also where a command runs, which ends with it. `wait_seconds`: how long the answer may wait for its files
    to be in the object store; by then it is `stopped`, else `stopping`, which goes on by itself.
    """

    force: bool = False
    wait_seconds: Annotated[int, Field(ge=0, le=600)] = STOP_WAIT_S


class ForkSandbox(Request):
    """POST …/fork. The body may be left out. `count`, where it is sent, makes as many, and the answer a list."""

    name: PersonalName | None = None
    metadata: dict[str, Any] | None = None
    count: Annotated[int, Field(ge=1, le=100)] | None = None


class ArchiveView(Answer):
    """A sandbox's files in the object store. `stored_bytes`: what it took there beside what was there already.

    `skipped` counts sockets, FIFOs and devices, which are not kept.
    """

    size_bytes: int
    stored_bytes: int
    entries: int
    skipped: int


class ProgressView(Answer):
    """How far its files are on their way: `phase` is `archiving` or `restoring`; a total that is not known is null."""

    phase: str
    done_bytes: int
    total_bytes: int | None


class SandboxView(Answer):
    """`status`: `creating`, `ready`, `active` (a command runs), `stopping` (its compute is freed, its files are being
    stored; `message` tells where that fails), `stopped`, `resuming`, `failed` (see `reason`), `destroying`,
    `destroyed`.

    `env` has its values where one sandbox is asked for; in lists each value is `[redacted]`. `source`: the sandbox or
    snapshot whose files it began with. `reclaim_at`: when it is
    stopped for idleness (destroyed, where nothing is stored) if nobody uses it until then; null: not as things are, and
    `kept_awake_by` says what of, where something keeps it. `archive`: its files as they were stored last.
    """

    id: str
    name: str | None
    status: str
    reason: str | None = None
    message: str | None = None
    template: str
    runtime: str | None
    memory_mb: int
    cpu_millis: int
    disk_mb: int
    timeout_seconds: int
    network_mode: NetworkMode
    env: dict[str, str] = Field(repr=False)
    startup_command: str | None = None
    capabilities: list[str]
    model: dict[str, Any] | None = None
    metadata: dict[str, Any]
    source: str | None = None
    idle_timeout_seconds: int = 0
    reclaim_at: datetime | None = None
    kept_awake_by: list[str] = Field(default_factory=list[str])
    archive: ArchiveView | None = None
    progress: ProgressView | None = None
    created_at: datetime
    updated_at: datetime


class ForkFailed(Answer):
    """A copy that was not made, in the place that it would have had."""

    error: ErrorDetail


class ForkList(Answer):
    """The answer to a fork with `count`: each copy, or why it was not made."""

    data: list[SandboxView | ForkFailed]


class ProbeView(Answer):
    name: str
    ok: bool
    detail: str
    remedy: str


class CapabilitiesView(Answer):
    """GET /v1/capabilities: what the machine behind this server can and cannot do.

    `memory_mb`, `cpu_millis` and `disk_mb` are what it has: no sandbox can be given more. 0: not told. `storage` says
    where the files of stopped sandboxes and snapshots lie; empty: nowhere, so that nothing can be stopped.
    """

    provider: str
    runtime: str
    runtime_version: str
    shares_kernel: bool
    network_modes: list[str]
    keeps_memory: bool
    disk_limit: str
    memory_mb: int = 0
    cpu_millis: int = 0
    disk_mb: int = 0
    storage: str = ""
    probes: list[ProbeView]


class TemplateView(Answer):
    """`id` is the name for built-in templates.

    `POST /v1/templates/{name}/build` answers with server-sent events: `progress` (`{"fraction","line"}`), then `end` (a
    `TemplateView`) or `error` (`{"code","message"}`). `GET …/build/logs` speaks the published client's dialect: `log`
    (base64 of a line).
    """

    id: str
    name: str
    description: str
    source_type: str
    builtin: bool
    status: str
    digest: str | None
    size_bytes: int
    error: str | None


class MeView(Answer):
    """GET /v1/me."""

    id: str
    email: str | None
    name: str
    plan: str
    created_at: datetime


class LimitsView(Answer):
    """What the plan allows an account at once; null is without limit."""

    sandboxes: int | None
    running_commands: int | None
    memory_mb: int | None
    cpu_millis: int | None
    disk_mb: int | None


class SandboxLimitsView(Answer):
    """The most that one sandbox may ask for."""

    memory_mb: int
    disk_mb: int
    timeout_seconds: int


class UsageView(Answer):
    """GET /v1/usage. `sandboxes` counts by status, destroyed ones left out.

    Memory, CPU and disk are what the account's sandboxes may use together, not what they use: disk of all that are
    counted, memory and CPU of those that are neither stopped nor `failed`.
    """

    plan: str
    sandboxes: dict[str, int]
    running_commands: int
    memory_mb: int
    cpu_millis: int
    disk_mb: int
    limits: LimitsView
    sandbox_limits: SandboxLimitsView


class ReadyView(Answer):
    """GET /readyz."""

    status: str
    parts: dict[str, str]

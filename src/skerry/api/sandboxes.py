"""/v1/sandboxes"""

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from skerry.api.call import Caller, RepeatKey, answer, once
from skerry.api.documents import document
from skerry.api.views import shown, shown_page
from skerry.control import sandboxes
from skerry.model.errors import Invalid
from skerry.model.lifecycle import State
from skerry.model.sandbox import Filter
from skerry.wire.base import Page
from skerry.wire.sandboxes import ChangeSandbox, CreateSandbox, SandboxView, SetEnv

router = APIRouter(tags=["sandboxes"])

_STATES: Mapping[str, State] = {"ready": State.RUNNING, "active": State.RUNNING} | {
    state.value: state for state in State if state is not State.RUNNING
}
_MOST_FILTERS = 64  # each one is a part of the query

Statuses = Annotated[list[str] | None, Query(description="Only these statuses; left out: all but `destroyed`.")]
Filters = Annotated[
    list[str] | None, Query(description="`key=value`, or `key` with any value; repeatable, all must hold.")
]


@router.post("/v1/sandboxes", status_code=201, response_model=SandboxView)
async def create_sandbox(call: Caller, body: CreateSandbox, key: RepeatKey = None) -> Response:
    """Make a sandbox and answer when it is ready."""
    sandbox = await sandboxes.create(call.deps, call.account_id, _wanted(body), once(call, key, body))
    return answer(await shown(call, sandbox), 201, {"Location": f"/v1/sandboxes/{sandbox.id}"})


@router.get("/v1/sandboxes", response_model=Page[SandboxView])
async def list_sandboxes(
    call: Caller,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
    before: str | None = None,
    status: Statuses = None,
    metadata: Filters = None,
    name: Annotated[str | None, Query(max_length=200, description="Only sandboxes of exactly this name.")] = None,
    id_prefix: Annotated[str | None, Query(max_length=64, description="Only ids that begin like this.")] = None,
) -> Response:
    """Newest first. `next` is the `before` of the following page. Values in `env` are `[redacted]` here."""
    where = Filter(busy=_busy(status), metadata=_filters(metadata), name=name, id_prefix=id_prefix)
    page, following = await sandboxes.list_page(
        call.deps, call.account_id, states=_states(status), where=where, limit=limit, before=before
    )
    views = await shown_page(call, page, busy=where.busy)
    return answer(Page[SandboxView](data=views, next=following))


@router.get("/v1/sandboxes/{sandbox_id}", response_model=SandboxView)
async def get_sandbox(call: Caller, sandbox_id: str) -> Response:
    """One sandbox, in any state, destroyed ones too."""
    return answer(await shown(call, await sandboxes.get(call.deps, call.account_id, sandbox_id)))


@router.patch("/v1/sandboxes/{sandbox_id}", response_model=SandboxView)
async def change_sandbox(call: Caller, sandbox_id: str, body: ChangeSandbox) -> Response:
    """Replace name or metadata, in any state. What is left out stays as it is; `null` takes it away."""
    given = body.model_fields_set
    name = (body.name or "") if "name" in given else None
    metadata = (document("metadata", body.metadata) or {}) if "metadata" in given else None
    sandbox = await sandboxes.relabel(call.deps, call.account_id, sandbox_id, name=name, metadata=metadata)
    return answer(await shown(call, sandbox))


@router.put("/v1/sandboxes/{sandbox_id}/env", response_model=SandboxView)
async def set_env(call: Caller, sandbox_id: str, body: SetEnv) -> Response:
    """Replace the environment of commands from now on. What runs already keeps the one it has."""
    return answer(await shown(call, await sandboxes.set_env(call.deps, call.account_id, sandbox_id, body.env)))


@router.delete("/v1/sandboxes/{sandbox_id}", status_code=204)
async def destroy_sandbox(call: Caller, sandbox_id: str) -> Response:
    """End a sandbox and everything in it, in any state. Safe to call twice."""
    await sandboxes.destroy(call.deps, call.account_id, sandbox_id)
    return Response(status_code=204)


def _wanted(body: CreateSandbox) -> sandboxes.NewSandbox:
    if body.capabilities:
        raise Invalid(
            "'capabilities' is not supported by this version of Skerry yet. Leave it out.", field="capabilities"
        )
    return sandboxes.NewSandbox(
        template=body.template,
        name=body.name,
        memory_mb=body.memory_mb,
        cpu_millis=body.cpu_millis,
        disk_mb=body.disk_mb,
        timeout_s=body.timeout_seconds,
        network_mode=body.network_mode,
        env=body.env or {},
        metadata=document("metadata", body.metadata) or {},
        model=document("model", body.model),
        startup_command=body.startup_command,
        idle_timeout_s=body.idle_timeout_seconds,
        restore_from=body.restore_from or None,
        snapshot_id=body.snapshot_id or None,
    )


def _states(statuses: list[str] | None) -> list[State]:
    if statuses is None:
        return [state for state in State if state is not State.DESTROYED]
    for status in statuses:
        if status not in _STATES:
            raise Invalid(f"Unknown status '{status}'. There are: {', '.join(_STATES)}.", field="status")
    return [_STATES[status] for status in statuses]


def _busy(statuses: list[str] | None) -> bool | None:
    """Which of the running ones: None when both are asked for, or none of them."""
    shown = {"ready", "active"} & set(statuses or ())
    return "active" in shown if len(shown) == 1 else None


def _filters(metadata: list[str] | None) -> dict[str, str | None]:
    wanted: dict[str, str | None] = {}
    for entry in metadata or []:
        key, separator, value = entry.partition("=")
        if not key:
            raise Invalid("A metadata filter has the form 'key=value' or 'key'.", field="metadata")
        wanted[key] = value if separator else wanted.get(key)
    if len(wanted) > _MOST_FILTERS:
        raise Invalid(f"One call takes {_MOST_FILTERS} metadata filters at most.", field="metadata")
    return wanted

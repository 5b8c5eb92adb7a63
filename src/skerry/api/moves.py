"""/v1/sandboxes/{id}/stop, …/resume, …/fork"""

from fastapi import APIRouter
from starlette.responses import Response

from skerry.api.call import Call, Caller, RepeatKey, answer, once
from skerry.api.documents import document
from skerry.api.views import shown
from skerry.control import forks, resuming, stopping
from skerry.model.errors import SkerryError
from skerry.model.sandbox import Sandbox
from skerry.wire.base import ErrorDetail
from skerry.wire.sandboxes import ForkFailed, ForkList, ForkSandbox, SandboxView, StopSandbox

router = APIRouter(tags=["sandboxes"])


@router.post("/v1/sandboxes/{sandbox_id}/stop", response_model=SandboxView)
async def stop_sandbox(call: Caller, sandbox_id: str, body: StopSandbox | None = None) -> Response:
    """Free a sandbox's compute and store the files of /workspace. Safe to call twice.

    Answered when it is `stopped`, or still `stopping`: after `wait_seconds`, or as soon as the store fails, with why.
    """
    wanted = body or StopSandbox()
    sandbox = await stopping.stop(
        call.deps, call.account_id, sandbox_id, force=wanted.force, wait_s=wanted.wait_seconds
    )
    return answer(await shown(call, sandbox))


@router.post("/v1/sandboxes/{sandbox_id}/resume", response_model=SandboxView)
async def resume_sandbox(call: Caller, sandbox_id: str) -> Response:
    """Bring a sandbox back with its files, and answer when it is ready. One that runs is left as it is."""
    return answer(await shown(call, await resuming.resume(call.deps, call.account_id, sandbox_id)))


@router.post("/v1/sandboxes/{sandbox_id}/fork", status_code=201, response_model=SandboxView | ForkList)
async def fork_sandbox(
    call: Caller, sandbox_id: str, body: ForkSandbox | None = None, key: RepeatKey = None
) -> Response:
    """Make a sandbox with a copy of another one's files and configuration; with `count` so many, a result each."""
    wanted = body or ForkSandbox()
    copies = await forks.fork(
        call.deps,
        call.account_id,
        sandbox_id,
        count=wanted.count or 1,
        name=wanted.name,
        metadata=document("metadata", wanted.metadata),
        once=once(call, key, wanted),
    )
    if wanted.count is not None:
        return answer(ForkList(data=[await _told(call, copy) for copy in copies]), 201)
    (copy,) = copies
    if isinstance(copy, SkerryError):
        raise copy
    return answer(await shown(call, copy), 201, {"Location": f"/v1/sandboxes/{copy.id}"})


async def _told(call: Call, copy: Sandbox | SkerryError) -> SandboxView | ForkFailed:
    if isinstance(copy, SkerryError):
        return ForkFailed(error=ErrorDetail(code=copy.code, message=copy.message, field=copy.field))
    return await shown(call, copy)

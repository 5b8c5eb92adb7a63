"""/v1/sandboxes/{id}/git"""

from fastapi import APIRouter
from starlette.responses import Response

from skerry.api.call import Call, Caller, answer
from skerry.api.render import command_view
from skerry.control import git
from skerry.wire.commands import CommandView
from skerry.wire.git import GitAuth, GitClone, GitPull, GitPush

router = APIRouter(tags=["git"])


@router.post("/v1/sandboxes/{sandbox_id}/git/clone", response_model=CommandView)
async def clone(call: Caller, sandbox_id: str, body: GitClone) -> Response:
    """Clone a repository into the sandbox and answer when it is there. `auth` is for this operation alone."""
    wanted = git.Clone(body.url, body.path, body.branch, body.depth)
    return await _run(call, sandbox_id, wanted, body.auth, body.timeout_seconds)


@router.post("/v1/sandboxes/{sandbox_id}/git/pull", response_model=CommandView)
async def pull(call: Caller, sandbox_id: str, body: GitPull) -> Response:
    """Pull into a repository of the sandbox."""
    wanted = git.Pull(body.path, body.remote, body.branch)
    return await _run(call, sandbox_id, wanted, body.auth, body.timeout_seconds)


@router.post("/v1/sandboxes/{sandbox_id}/git/push", response_model=CommandView)
async def push(call: Caller, sandbox_id: str, body: GitPush) -> Response:
    """Push from a repository of the sandbox. `set_upstream` without `branch` pushes the one that is checked out."""
    wanted = git.Push(body.path, body.remote, body.branch, body.set_upstream)
    return await _run(call, sandbox_id, wanted, body.auth, body.timeout_seconds)


async def _run(
    call: Call, sandbox_id: str, wanted: git.Operation, auth: GitAuth | None, timeout_s: int | None
) -> Response:
    given = None if auth is None else git.Auth(auth.username, auth.token)
    result = await git.run(call.deps, call.account_id, sandbox_id, wanted, given, timeout_s)
    return answer(command_view(result.command, result.captured))

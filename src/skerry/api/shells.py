"""/v1/sessions and /v1/sandboxes/{id}/sessions: shell sessions."""

from fastapi import APIRouter
from starlette.responses import Response

from skerry.api.call import Caller, answer
from skerry.api.render import command_view, session_result, session_view
from skerry.control import shells
from skerry.wire.shells import SessionExec, SessionList, SessionResult, SessionView

router = APIRouter(tags=["sessions"])


@router.post("/v1/sandboxes/{sandbox_id}/sessions", status_code=201, response_model=SessionView)
async def create_session(call: Caller, sandbox_id: str) -> Response:
    """Make a session: directory and exported variables persist from one command to the next."""
    return answer(session_view(await shells.create(call.deps, call.account_id, sandbox_id)), 201)


@router.get("/v1/sandboxes/{sandbox_id}/sessions", response_model=SessionList)
async def list_sessions(call: Caller, sandbox_id: str) -> Response:
    """A sandbox's sessions, oldest first. They end with it."""
    found = await shells.list_of(call.deps, call.account_id, sandbox_id)
    return answer(SessionList(data=[session_view(session) for session in found]))


@router.get("/v1/sessions/{session_id}", response_model=SessionView)
async def get_session(call: Caller, session_id: str) -> Response:
    """One session."""
    return answer(session_view(await shells.get(call.deps, call.account_id, session_id)))


@router.post("/v1/sessions/{session_id}/exec", response_model=SessionResult)
async def run_in_session(call: Caller, session_id: str, body: SessionExec) -> Response:
    """Run a command in a session and answer when it has ended. One at a time: else 409 `session_busy`."""
    ended = await shells.execute(call.deps, call.account_id, session_id, body.command, body.timeout_seconds)
    return answer(session_result(ended, command_view(ended.command, ended.captured)))


@router.delete("/v1/sessions/{session_id}", status_code=204)
async def delete_session(call: Caller, session_id: str) -> Response:
    """End a session; a command that it runs is killed."""
    await shells.delete(call.deps, call.account_id, session_id)
    return Response(status_code=204)

"""/v1/sandboxes/{id}/startup"""

from fastapi import APIRouter
from starlette.responses import Response

from skerry.api.call import Caller, answer
from skerry.api.render import startup_view
from skerry.control import startup
from skerry.wire.startup import SetStartup, StartupView

router = APIRouter(tags=["startup"])


@router.get("/v1/sandboxes/{sandbox_id}/startup", response_model=StartupView)
async def get_startup(call: Caller, sandbox_id: str) -> Response:
    """What a sandbox is started up with, and how its latest run goes."""
    return answer(startup_view(await startup.status(call.deps, call.account_id, sandbox_id)))


@router.put("/v1/sandboxes/{sandbox_id}/startup", response_model=StartupView)
async def set_startup(call: Caller, sandbox_id: str, body: SetStartup) -> Response:
    """Set or take away the startup command. Nothing is started: it runs when the sandbox comes up the next time."""
    return answer(startup_view(await startup.configure(call.deps, call.account_id, sandbox_id, body.command)))


@router.post("/v1/sandboxes/{sandbox_id}/startup/run", response_model=StartupView)
async def run_startup(call: Caller, sandbox_id: str) -> Response:
    """Run the startup command now; an earlier run is killed first."""
    return answer(startup_view(await startup.run(call.deps, call.account_id, sandbox_id)))

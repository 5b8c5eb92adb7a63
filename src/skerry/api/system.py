"""The account, the host's capabilities, health."""

import asyncio

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from skerry.api.call import Caller, answer
from skerry.api.render import capabilities_view, me_view, usage_view
from skerry.control import accounts, usage
from skerry.control.deps import Deps
from skerry.model.errors import Unavailable
from skerry.wire.sandboxes import CapabilitiesView, MeView, UsageView

router = APIRouter(tags=["system"])

_READY_DEADLINE_S = 5.0


@router.get("/v1/me", response_model=MeView)
async def get_me(call: Caller) -> Response:
    """The account that the key belongs to."""
    return answer(me_view(await accounts.get(call.deps, call.account_id)))


@router.get("/v1/usage", response_model=UsageView)
async def get_usage(call: Caller) -> Response:
    """What the account uses now, beside what its plan allows."""
    return answer(usage_view(await usage.get(call.deps, call.account_id), call.deps.config))


@router.get("/v1/capabilities", response_model=CapabilitiesView)
async def get_capabilities(call: Caller) -> Response:
    """What the machine behind this server can and cannot do."""
    return answer(capabilities_view(await call.deps.provider.capabilities()))


@router.get("/healthz")
async def healthz() -> Response:
    """The process answers."""
    return JSONResponse({"status": "ok"})


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """The database and the node answer too; 503 when one does not."""
    deps: Deps = request.app.state.deps
    try:
        async with asyncio.timeout(_READY_DEADLINE_S):
            await deps.store.ping()
            await deps.provider.list()
    except TimeoutError as error:
        raise Unavailable("The database or the node does not answer in time.") from error
    return JSONResponse({"status": "ready"})

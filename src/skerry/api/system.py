"""The account, the host's capabilities, health."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from skerry.api.call import Caller, answer
from skerry.api.gate import ACCOUNT
from skerry.api.render import capabilities_view, leaks_view, me_view, usage_view
from skerry.control import accounts, health, leaks, usage
from skerry.control.deps import Deps
from skerry.control.telemetry import CONTENT_TYPE
from skerry.model.errors import Unavailable
from skerry.wire.leaks import LeaksView
from skerry.wire.sandboxes import CapabilitiesView, MeView, ReadyView, UsageView

router = APIRouter(tags=["system"])


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


@router.get("/v1/leaks", response_model=LeaksView)
async def get_leaks(call: Caller) -> Response:
    """What the server, its node and its object store hold that is on no record. With a key of the first account."""
    await accounts.require_operator(call.deps, call.account_id)
    return answer(leaks_view(await leaks.find(call.deps)))


@router.get("/healthz")
async def healthz() -> Response:
    """The process answers."""
    return JSONResponse({"status": "ok"})


@router.get("/readyz", response_model=ReadyView)
async def readyz(request: Request) -> Response:
    """The database and the node answer too; 503 when one does not, with which and why."""
    found = await health.problems(request.app.state.deps)
    if found:
        told = "; ".join(f"the {part} {problem}" for part, problem in found.items())
        raise Unavailable(f"Not ready: {told}. The server's log may say more.", code="not_ready")
    return answer(ReadyView(status="ready", parts=dict.fromkeys(("store", "node"), "ok")))


@router.get("/metrics", response_class=PlainTextResponse)
async def get_metrics(request: Request) -> Response:
    """The server's own metrics, for Prometheus: with a key of the first account, or with the setting `metrics_token`.

    With any other key 403. For what one sandbox uses see /v1/sandboxes/{sandbox_id}/metrics.
    """
    deps: Deps = request.app.state.deps
    await accounts.require_operator(deps, request.scope[ACCOUNT])
    return Response(await health.exposition(deps), media_type=CONTENT_TYPE)

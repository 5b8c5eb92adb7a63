"""The HTTP application. Made of parts that were opened elsewhere; opens and closes nothing itself but its tasks."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

import skerry
from skerry.api import (
    commands,
    errors,
    files,
    git,
    keys,
    metrics,
    moves,
    processes,
    sandboxes,
    shells,
    snapshots,
    startup,
    system,
    templates,
    terminals,
    trees,
)
from skerry.api.access import Access
from skerry.api.direct import Direct
from skerry.api.gate import Gate
from skerry.api.openapi import describe
from skerry.control import reconcile
from skerry.control.deps import Deps
from skerry.model.errors import SkerryError


def create_app(deps: Deps) -> FastAPI:
    """The application over `deps`. While it is up it reconciles; at its end it leaves what runs to the next start."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        deps.tasks.spawn(reconcile.run(deps), name="reconcile")
        deps.tasks.spawn(deps.telemetry.watch_loop(), name="watch the loop")
        try:
            yield
        finally:
            await deps.tasks.close()

    app = FastAPI(
        title="Skerry",
        version=skerry.__version__,
        description="Sandboxes for AI agents on machines you own.",
        lifespan=lifespan,
        redirect_slashes=False,
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.state.deps = deps
    sandbox_parts = (
        sandboxes,
        moves,
        snapshots,
        commands,
        terminals,
        shells,
        startup,
        git,
        files,
        trees,
        processes,
        metrics,
    )
    routers = [module.router for module in (*sandbox_parts, templates, keys, system)]
    for router in routers:
        app.include_router(router)
    app.add_exception_handler(SkerryError, errors.on_skerry_error)
    app.add_exception_handler(RequestValidationError, errors.on_invalid_request)
    app.add_exception_handler(HTTPException, errors.on_http_error)
    app.add_middleware(Direct, routes=[route for router in routers for route in router.routes])
    app.add_middleware(Gate, deps=deps)
    app.add_middleware(Access, telemetry=deps.telemetry)  # the last one added stands before all others
    app.openapi = lambda: describe(app)
    return app

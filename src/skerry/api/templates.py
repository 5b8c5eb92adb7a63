"""/v1/templates"""

import json
from collections.abc import AsyncIterator

from fastapi import APIRouter
from starlette.responses import Response

from skerry.api.call import Call, Caller, answer
from skerry.api.render import template_view
from skerry.api.streaming import SSE, event, event_base64, events
from skerry.control import templates
from skerry.control.streams import closing
from skerry.model.errors import SkerryError
from skerry.wire.base import Page
from skerry.wire.sandboxes import TemplateView

router = APIRouter(tags=["templates"])


@router.get("/v1/templates", response_model=Page[TemplateView])
async def list_templates(call: Caller) -> Response:
    """All that sandboxes can be made from, built or not."""
    views = [template_view(state) for state in await templates.list_all(call.deps)]
    return answer(Page[TemplateView](data=views))


@router.get("/v1/templates/{name}", response_model=TemplateView)
async def get_template(call: Caller, name: str) -> Response:
    """One template."""
    return answer(template_view(await templates.get(call.deps, name)))


@router.post("/v1/templates/{name}/build", response_class=Response, responses={**SSE})
async def build_template(call: Caller, name: str) -> Response:
    """Build a template, or follow the build that runs: `progress` (`fraction`, `line`), then `end` or `error`."""
    await templates.get(call.deps, name)
    return events(_progress(call, name))


@router.get("/v1/templates/{name}/build/logs", response_class=Response, responses={**SSE})
async def template_log(call: Caller, name: str) -> Response:
    """The running build's lines in the published client's dialect: `log` (base64), until it is ready or has failed."""
    await templates.get(call.deps, name)
    return events(_log(call, name))


async def _progress(call: Call, name: str) -> AsyncIterator[bytes]:
    try:
        async with closing(templates.build(call.deps, name)) as steps:
            async for step in steps:
                yield event("progress", json.dumps({"fraction": step.fraction, "line": step.line}))
        yield event("end", template_view(await templates.get(call.deps, name)).model_dump_json())
    except SkerryError as error:
        yield event("error", json.dumps({"code": error.code, "message": error.message}))


async def _log(call: Call, name: str) -> AsyncIterator[bytes]:
    try:
        async with closing(templates.build_log(call.deps, name)) as steps:
            async for step in steps:
                yield event_base64("log", f"{step.line}\n".encode("utf-8", "replace"))
    except SkerryError as error:
        yield event_base64("log", f"{error.message}\n".encode("utf-8", "replace"))

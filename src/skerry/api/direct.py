"""The short way to a route, for a request that is in every way as it should be.

The framework's way to an endpoint costs more than most endpoints do. It is still the one that describes the routes and
says what is wrong with a request: whatever is not plainly right here (an unknown path, a query, a body or header that
does not have its shape) is handed on to it untouched. Both ways end in the same endpoints with the same arguments.
"""

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi.datastructures import DefaultPlaceholder
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from skerry.api import errors
from skerry.api.call import call_of
from skerry.model.errors import SkerryError

Segments = tuple[str | None, ...]  # of a path; None stands for a parameter


class Direct:
    """Stands before the framework's router, behind everything that admits a request."""

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._ways = _ways_of(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._find(scope) if scope["type"] == "http" and not scope["query_string"] else None
        if found is None:
            await self._app(scope, receive, send)
            return
        way, scope["path_params"] = found
        scope["route"] = way.route
        request, body = Request(scope, receive), b""
        try:
            if way.body is not None:
                body = await request.body()
            arguments = await way.arguments(request, body)
            response: Response | None = None if arguments is None else await way.route.endpoint(**arguments)
        except SkerryError as error:
            response = errors.render(error)
        except HTTPException as error:
            response = await errors.on_http_error(request, error)
        if response is not None:
            await response(scope, receive, send)
        else:
            await self._app(scope, _again(body, receive) if way.body is not None else receive, send)

    def _find(self, scope: Scope) -> "tuple[_Way, dict[str, str]] | None":
        parts = scope["path"].split("/")
        for way in self._ways.get((scope["method"], len(parts)), ()):
            params = way.match(parts)
            if params is not None:
                return way, params
        return None


@dataclass(frozen=True, slots=True)
class _Way:
    """A route with what its endpoint is to be given. `headers`: by alias, the field."""

    route: APIRoute
    segments: Segments
    caller: str | None
    request: str | None
    headers: Mapping[str, Any]
    body: tuple[str, type[BaseModel]] | None

    def match(self, parts: Sequence[str]) -> dict[str, str] | None:
        params: dict[str, str] = {}
        for segment, part in zip(self.segments, parts, strict=True):
            if segment is None and part:
                params[self.route.dependant.path_params[len(params)].name] = part
            elif segment != part:
                return None
        return params

    async def arguments(self, request: Request, body: bytes) -> dict[str, Any] | None:
        """What to call the endpoint with; None: the framework has to say what is wrong.

        Raises:
            SkerryError: As `call_of`.
        """
        given: dict[str, Any] = dict(request.path_params)
        if self.body is not None:
            name, shape = self.body
            if request.headers.get("content-type") != "application/json":
                return None
            try:
                given[name] = shape.model_validate(json.loads(body))
            except (ValidationError, ValueError, RecursionError):
                return None
        for alias, field in self.headers.items():
            if (value := request.headers.get(alias)) is not None:
                given[field.name], wrong = field.validate(value, {}, loc=("header", alias))
                if wrong:
                    return None
        if self.caller is not None:
            given[self.caller] = await call_of(request)
        if self.request is not None:
            given[self.request] = request
        return given


def _ways_of(routes: Iterable[BaseRoute]) -> dict[tuple[str, int], list[_Way]]:
    """By method and number of segments. A route whose path another one's might mean as well has no short way."""
    known = [route for route in routes if isinstance(route, APIRoute)]
    ways: dict[tuple[str, int], list[_Way]] = {}
    for route in known:
        segments = _segments(route.path)
        others = (other for other in known if other is not route and _methods(other) & _methods(route))
        if any(_overlap(segments, _segments(other.path)) for other in others):
            continue
        if (way := _way_to(route, segments)) is not None:
            for method in _methods(route):
                ways.setdefault((method, len(segments)), []).append(way)
    return ways


def _methods(route: APIRoute) -> set[str]:
    return route.methods or set()


def _segments(path: str) -> Segments:
    return tuple(None if part.startswith("{") else part for part in path.split("/"))


def _overlap(one: Segments, other: Segments) -> bool:
    return len(one) == len(other) and all(a is None or b is None or a == b for a, b in zip(one, other, strict=True))


def _way_to(route: APIRoute, segments: Segments) -> _Way | None:
    """None: its arguments or its answer are of a kind that only the framework knows."""
    needs, caller = route.dependant, None
    if not isinstance(route.response_class, DefaultPlaceholder) or not inspect.iscoroutinefunction(route.endpoint):
        return None  # what streams may fail later than here is caught
    for dependency in needs.dependencies:
        if dependency.call is not call_of:
            return None
        caller = dependency.name
    in_order = [f"{{{field.name}}}" for field in needs.path_params]
    if in_order != [part for part in route.path.split("/") if part.startswith("{")]:
        return None
    if any(field.field_info.annotation is not str or field.field_info.metadata for field in needs.path_params):
        return None
    if any(field.field_info.is_required() for field in (*needs.query_params, *needs.header_params)):
        return None
    if any(isinstance(one.default, FieldInfo) for one in inspect.signature(route.endpoint).parameters.values()):
        return None  # a default that the framework alone can read
    special = (needs.http_connection_param_name, needs.response_param_name, needs.background_tasks_param_name)
    if needs.cookie_params or any(name is not None for name in special):
        return None
    body = _body_of(route)
    if needs.body_params and body is None:
        return None
    headers = {field.alias: field for field in needs.header_params}
    return _Way(route, segments, caller, needs.request_param_name, headers, body)


def _body_of(route: APIRoute) -> tuple[str, type[BaseModel]] | None:
    """The one argument that is the whole body, where there is one."""
    fields = route.dependant.body_params
    if len(fields) != 1 or route.body_field is None or not fields[0].field_info.is_required():
        return None
    shape = fields[0].field_info.annotation
    if route.body_field.field_info.annotation is not shape or not inspect.isclass(shape):
        return None
    return (fields[0].name, shape) if issubclass(shape, BaseModel) else None


def _again(body: bytes, receive: Receive) -> Receive:
    """`receive` as it was before the body was taken."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return left.pop() if left else await receive()

    return again

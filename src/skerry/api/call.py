"""What a route is handed, and what it hands back: the caller, and JSON. Decides nothing."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header
from pydantic import BaseModel
from starlette.requests import HTTPConnection
from starlette.responses import Response

from skerry import logs
from skerry.api.gate import ACCOUNT
from skerry.control.deps import Deps
from skerry.model.errors import Invalid
from skerry.model.ids import AccountId, is_id
from skerry.model.request import Once


@dataclass(frozen=True, slots=True)
class Call:
    """One request of an account."""

    deps: Deps
    account_id: AccountId
    path: str


async def call_of(request: HTTPConnection) -> Call:
    """Who calls, and what. Refuses what the route would ignore; safe to call twice.

    Raises:
        Invalid: A parameter or a key that the route does not take (`unknown_field`).
    """
    if request.scope["query_string"]:
        _refuse_unknown(request)
    if request.scope.get("method") == "POST" and _KEY in request.headers:
        _refuse_unused_key(request)
    _bind(request.path_params)
    return Call(request.app.state.deps, request.scope[ACCOUNT], request.scope["path"])


_KEY = "idempotency-key"
Caller = Annotated[Call, Depends(call_of)]
RepeatKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[\x21-\x7e]{1,255}$",
        description="Sent again with the same key and body within a day, the request is done once and answered again.",
    ),
]


def once(call: Call, key: str | None, body: BaseModel) -> Once | None:
    """How the request is known again. The same members in another order are the same request."""
    if key is None:
        return None
    said = json.dumps(body.model_dump(mode="json", exclude_unset=True), sort_keys=True)
    return Once(key, hashlib.sha256(f"POST {call.path}\n{said}".encode("utf-8", "surrogatepass")).hexdigest())


def answer(body: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON, serialised once: the shape was checked when `body` was made."""
    return Response(body.model_dump_json(), status, headers, "application/json")


def _bind(params: Mapping[str, str]) -> None:
    """Log lines say what they are about. Whatever has not the form of an id may be anything, and is not repeated."""
    for name, kind in (("sandbox_id", "sbx"), ("command_id", "cmd"), ("snapshot_id", "snap")):
        if is_id(params.get(name, ""), kind):
            logs.bind(**{name: params[name]})


def _refuse_unused_key(request: HTTPConnection) -> None:
    """Who sends a key relies on it."""
    if all(field.alias.lower() != _KEY for field in request.scope["route"].dependant.header_params):
        raise Invalid(
            "This route takes no Idempotency-Key. It is taken where sandboxes, snapshots and commands are made.",
            code="unknown_field",
            field="Idempotency-Key",
        )


def _refuse_unknown(request: HTTPConnection) -> None:
    """A misspelled parameter must not be ignored: it may have been a limit."""
    known: set[str] = {field.alias for field in request.scope["route"].dependant.query_params}
    for name in request.query_params:
        if name not in known:
            raise Invalid(f"Unknown parameter '{name}'.", code="unknown_field", field=name)

"""What a route is handed, and what it hands back: the caller, and JSON. Decides nothing."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends
from pydantic import BaseModel
from starlette.requests import HTTPConnection
from starlette.responses import Response

from skerry.api.gate import ACCOUNT
from skerry.control.deps import Deps
from skerry.model.errors import Invalid
from skerry.model.ids import AccountId


@dataclass(frozen=True, slots=True)
class Call:
    """One request of an account."""

    deps: Deps
    account_id: AccountId


async def _call(request: HTTPConnection) -> Call:
    if request.scope["query_string"]:
        _refuse_unknown(request)
    return Call(request.app.state.deps, request.scope[ACCOUNT])


Caller = Annotated[Call, Depends(_call)]


def answer(body: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """JSON, serialised once: the shape was checked when `body` was made."""
    return Response(body.model_dump_json(), status, headers, "application/json")


def _refuse_unknown(request: HTTPConnection) -> None:
    """A misspelled parameter must not be ignored: it may have been a limit."""
    known: set[str] = {field.alias for field in request.scope["route"].dependant.query_params}
    for name in request.query_params:
        if name not in known:
            raise Invalid(f"Unknown parameter '{name}'.", code="unknown_field", field=name)

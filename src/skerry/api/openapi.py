"""The description at /openapi.json: what the framework finds out by itself, plus keys and errors as they really are."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from skerry.api.gate import OPEN
from skerry.wire.base import ErrorBody

_ERROR = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}}}
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key."},
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "An API key."},
}
_ALWAYS = {"401": "No key, or a wrong one", "500": "A fault of the server", "503": "A part does not answer; try again"}
_WITH_INPUT = {"400": "Something asked for is wrong, or cannot be done; `field` names it"}
_WITH_ID = {"404": "Absent, or another account's", "409": "Not in the state for it"}
_WITH_BODY = {"413": "The body is too large", "415": "The body is not JSON", "429": "Try again after `Retry-After`"}


def describe(app: FastAPI) -> dict[str, Any]:
    """Made once, kept on the app."""
    if app.openapi_schema is not None:
        return app.openapi_schema
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    errors = ErrorBody.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= errors.pop("$defs", {})
    schemas["ErrorBody"] = errors
    for name in ("HTTPValidationError", "ValidationError"):  # ours is another envelope, and another status
        schemas.pop(name, None)
    components["securitySchemes"] = _SCHEMES
    document["security"] = [{"bearer": []}, {"key": []}]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            _complete(path, operation)
    app.openapi_schema = document
    return document


def _complete(path: str, operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    responses.pop("422", None)
    if path in OPEN:
        operation["security"] = []
        if path == "/readyz":
            responses["503"] = {"description": _ALWAYS["503"], **_ERROR}
        return
    told = dict(_ALWAYS)
    if operation.get("parameters") or "requestBody" in operation:
        told |= _WITH_INPUT
    if "{" in path:
        told |= _WITH_ID
    if "requestBody" in operation:
        told |= _WITH_BODY
    for status, description in told.items():
        responses.setdefault(status, {"description": description}).update(_ERROR)

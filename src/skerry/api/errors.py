"""The one map from errors to HTTP, and the one envelope. Nobody else names a status of an error."""

import re
from collections.abc import Mapping

import structlog
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from skerry import logs
from skerry.model import errors
from skerry.wire.base import ErrorBody, ErrorDetail

_log = structlog.get_logger()

STATUS: Mapping[type[errors.SkerryError], int] = {
    errors.Invalid: 400,
    errors.Unauthorized: 401,
    errors.LimitExceeded: 402,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.Refused: 400,
    errors.TooBusy: 429,
    errors.SandboxGone: 409,
    errors.GuestError: 400,
    errors.ProtocolError: 502,
    errors.Unavailable: 503,
    errors.DeadlineExceeded: 504,
}

# Codes that say more than their class does; sbxd's are in PROTOCOL.md.
STATUS_OF_CODE: Mapping[str, int] = {
    "too_large": 413,
    "range_not_satisfiable": 416,
    "not_found": 404,
    "permission": 403,
    "read_only": 403,
    "exists": 409,
    "not_empty": 409,
    "archive_missing": 409,  # what was asked for is there; its files are not
    "busy": 409,
    "replaced": 409,
    "no_space": 507,
    "quota": 507,
    "disk_full": 507,
    "io": 502,
}

# Parts of the published client's interface that are yet to come, by their addresses.
_YET_TO_COME = re.compile(r"/v1/sandboxes/[^/]+/(?:preview-link|preview/.*|browser/.*)")
_HTTP_CODES = {404: "not_found", 405: "method_not_allowed", 413: "too_large", 415: "unsupported_media_type"}


def status_of(error: errors.SkerryError) -> int:
    if error.code in STATUS_OF_CODE:
        return STATUS_OF_CODE[error.code]
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)


def envelope(
    status: int, code: str, message: str, field: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    request_id = logs.request_id() if status >= 500 else None
    body = ErrorBody(error=ErrorDetail(code=code, message=_printable(message), field=field, request_id=request_id))
    return Response(body.model_dump_json(exclude_none=True), status, headers, "application/json")


def render(error: errors.SkerryError) -> Response:
    status = status_of(error)
    headers: dict[str, str] = {}
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="skerry"'
    if isinstance(error, errors.TooBusy):
        headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    elif status == 503:
        headers["Retry-After"] = "1"
    return envelope(status, error.code, error.message, error.field, headers)


async def on_skerry_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.SkerryError)
    return render(error)


async def on_invalid_request(_request: Request, error: Exception) -> Response:
    """A body or parameter that does not have the shape: the first thing that is wrong, by the path of its field."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return envelope(400, "invalid_json", f"The body is not valid JSON: {first['ctx']['error']}.")
    field = ".".join(str(part) for part in first["loc"][1:])  # the first says where: body, query, header
    if first["type"] == "extra_forbidden":
        return envelope(400, "unknown_field", f"Unknown field '{_printable(field)}'.", _printable(field))
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "string_pattern_mismatch":
        message = f"There are characters in it that may not be there, or it has not the form {first['ctx']['pattern']}"
    if not field:
        return envelope(400, "invalid", f"The body is wrong: {_printable(message)}.", "body")
    return envelope(400, "invalid", f"Field '{_printable(field)}': {_printable(message)}.", _printable(field))


async def on_http_error(request: Request, error: Exception) -> Response:
    """What the framework itself refuses: unknown routes, wrong methods, bodies it cannot read."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404 and _YET_TO_COME.fullmatch(request.url.path):
        what = request.url.path.split("/")[4]
        return envelope(501, "not_supported", f"'{what}' is not supported by this version of Skerry yet.")
    code = _HTTP_CODES.get(error.status_code, "invalid" if error.status_code < 500 else "internal")
    messages = {
        404: f"There is no {request.url.path[:200]} here. See /openapi.json for what there is.",
        405: f"{request.method} is not allowed on {request.url.path[:200]}.",
    }
    message = messages.get(error.status_code, str(error.detail))
    return envelope(error.status_code, code, message, headers=error.headers)


def fault(error: Exception) -> Response:
    """The answer to a fault of ours: its details go to the log, not to the client."""
    _log.error("request failed", exc_info=error)
    return envelope(500, "internal", "Something broke inside Skerry. Its log says what, by the request_id.")


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()

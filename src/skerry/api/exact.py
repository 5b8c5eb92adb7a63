"""What the framework would spoil on its way to a route: paths of any bytes, and bodies of any size as they come."""

from collections.abc import AsyncIterator
from urllib.parse import parse_qsl

from starlette.requests import Request

from skerry.api.streaming import gathered
from skerry.model.errors import Invalid


def exact(request: Request, path: str) -> str:
    """The path with bytes that are no UTF-8 kept as surrogates; the framework has replaced them by U+FFFD."""
    if "\ufffd" not in path:
        return path
    query = request.scope["query_string"].decode("latin-1")
    return dict(parse_qsl(query, keep_blank_values=True, errors="surrogateescape"))["path"]


def upload(request: Request, limit: int) -> AsyncIterator[bytes]:
    """The body as it comes, small pieces together.

    Raises:
        Invalid: It is longer than `limit` bytes, code `too_large`; where it says so itself, before anything is read.
    """
    return gathered(_bounded(request, limit))


async def _bounded(request: Request, limit: int) -> AsyncIterator[bytes]:
    _check_length(int(request.headers.get("content-length", "0") or 0), limit)
    received = 0
    async for chunk in request.stream():
        received += len(chunk)
        _check_length(received, limit)
        yield chunk


def _check_length(length: int, limit: int) -> None:
    if length > limit:
        raise Invalid(f"The body is larger than {limit} bytes, this server's 'upload_limit_mb'.", code="too_large")

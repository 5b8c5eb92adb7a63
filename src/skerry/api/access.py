"""Around everything else: gives a request its id, and notes when it was answered, how, and how long that took.

A plain ASGI callable. What it logs of a request is its route, never its path, query, headers or body.
"""

import re
import secrets
import time
from collections.abc import Iterable

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from skerry import logs
from skerry.control.telemetry import Telemetry

REQUEST_ID = b"x-request-id"
UNMATCHED = "(none)"

# Asked every few seconds by machines: of interest only when one looks for it.
_QUIET = frozenset({"/healthz", "/readyz", "/metrics"})
_SANE = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_BEGINS = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})
_GONE = 499  # the client left before it was answered
_log = structlog.get_logger()


class Access:
    """Binds `request_id`, echoes it as X-Request-Id, logs one line a request, feeds the telemetry."""

    def __init__(self, app: ASGIApp, telemetry: Telemetry) -> None:
        self._app = app
        self._telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        logs.unbind_call()
        request_id = _request_id(scope["headers"])
        logs.bind(request_id=request_id)
        began, status, answered_s = time.monotonic(), _GONE, None

        async def noted(message: Message) -> None:
            nonlocal status, answered_s
            if message["type"] in _BEGINS:
                status, answered_s = message.get("status", 101), time.monotonic() - began
                message["headers"] = [*message.get("headers", ()), (REQUEST_ID, request_id.encode())]
            elif message["type"] == "websocket.close" and answered_s is None:
                status = 403  # what the client sees of a socket that was refused
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception:
            status = 500
            raise
        finally:
            took_s = time.monotonic() - began
            self._note(scope, status, took_s if answered_s is None else answered_s, took_s)

    def _note(self, scope: Scope, status: int, answered_s: float, took_s: float) -> None:
        """What is measured is the time until the answer begins; what is logged, until it has ended."""
        method = scope.get("method", "WEBSOCKET")
        if method not in _METHODS and scope["type"] == "http":
            method = "OTHER"
        route = getattr(scope.get("route"), "path", UNMATCHED)
        self._telemetry.request(method, route, status, answered_s)
        level = "debug" if route in _QUIET and status < 400 else "warning" if status >= 500 else "info"
        getattr(_log, level)("request", method=method, route=route, status=status, duration_ms=round(took_s * 1000, 1))


def _request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The client's, if it is a sane one, else a new one."""
    for name, value in headers:
        if name == REQUEST_ID and _SANE.fullmatch(value):
            return value.decode("ascii")
    return f"req_{secrets.token_hex(10)}"

"""The gate before every route: who asks, and how much they may send. Nothing behind it runs without an account.

A plain ASGI callable, since it stands in the path of every request.
"""

import asyncio
import re
from collections.abc import Iterable
from contextlib import nullcontext

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from skerry import logs
from skerry.api import errors, sockets
from skerry.api.calls import Calls
from skerry.control import accounts
from skerry.control.deps import Deps
from skerry.model.errors import SkerryError, Unauthorized, Unavailable
from skerry.model.ids import AccountId

OPEN = frozenset({"/healthz", "/readyz", "/openapi.json", "/docs"})
METRICS = "/metrics"
ACCOUNT = "skerry.account"  # None: whoever holds the token for /metrics, which is no account's

JSON_LIMIT = 32 * 1024 * 1024
FILES_LIMIT = 96 * 1024 * 1024
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
# Whole paths, since a client chooses ids: `/v1/sandboxes/stdin` is a route of JSON.
# Bodies that are no JSON; their routes bound them.
_BYTES = re.compile(r"/v1/sandboxes/[^/]+/files/(?:raw|tar)|/v1/commands/[^/]+/stdin")
_FILES = re.compile(r"/v1/sandboxes/[^/]+/files(?:/batch)?")  # file contents in JSON


class Gate:
    """Authenticates, bounds the calls at once, and JSON bodies before they are read; refuses what is not JSON."""

    def __init__(self, app: ASGIApp, deps: Deps) -> None:
        self._app = app
        self._deps = deps
        self._calls = Calls(deps.config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in OPEN:
            await self._app(scope, receive, send)
            return
        try:
            await self._admit(scope)
            with nullcontext() if scope[ACCOUNT] is None else self._calls.held(scope, scope[ACCOUNT]):
                await self._pass(scope, receive, send)
        except SkerryError as error:
            await errors.render(error)(scope, receive, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] in _WITH_BODY and not _BYTES.fullmatch(scope["path"]):
            limit = FILES_LIMIT if _FILES.fullmatch(scope["path"]) else JSON_LIMIT
            refusal = _refusal(scope["headers"], limit)
            if refusal is not None:
                await refusal(scope, receive, send)
                return
            receive = _bounded(receive, limit)
        await self._run(scope, receive, send)

    async def _admit(self, scope: Scope) -> None:
        secret = _secret(scope["headers"])
        if scope["path"] == METRICS and secret is not None and accounts.is_metrics_token(self._deps, secret):
            scope[ACCOUNT] = None
            return
        scope[ACCOUNT] = await self._account(scope, secret)
        logs.bind(account_id=scope[ACCOUNT])

    async def _account(self, scope: Scope, secret: str | None) -> AccountId:
        if scope["type"] == "websocket":
            return await sockets.authenticate(self._deps, scope, secret)
        if secret is None:
            raise Unauthorized("Send an API key: 'Authorization: Bearer <key>'. `skerry client-env` prints one.")
        return await accounts.authenticate(self._deps, secret)

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application. A fault of ours is logged and answered; the connection stays usable."""
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except ClientDisconnect:
            return
        except asyncio.CancelledError:
            # The server's end: it has waited, and cancels what still runs.
            if started or scope["type"] != "http":
                raise
            await errors.render(Unavailable("The server is being stopped, and has ended this call."))(
                scope, receive, send
            )
        except Exception as error:
            if started or scope["type"] != "http":
                raise  # half an answer is out: breaking the connection is the only way to tell
            await errors.fault(error)(scope, receive, send)


def _secret(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    for name, value in headers:
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            return value[7:].strip().decode("latin-1")
        if name == b"x-api-key":
            return value.strip().decode("latin-1")
    return None


def _refusal(headers: Iterable[tuple[bytes, bytes]], limit: int) -> ASGIApp | None:
    """The answer to a body that is too long or no JSON by its own headers."""
    kind, length, chunked = b"", 0, False
    for name, value in headers:
        if name == b"content-type":
            kind = value.split(b";", 1)[0].strip().lower()
        elif name == b"content-length":
            length = int(value) if value.isdigit() else 0
        elif name == b"transfer-encoding":
            chunked = True
    if length > limit:
        return errors.envelope(413, "too_large", _too_large(limit))
    if (length or chunked) and kind != b"application/json" and not kind.endswith(b"+json"):
        return errors.envelope(
            415, "unsupported_media_type", "This route takes JSON: send 'Content-Type: application/json'."
        )
    return None


def _bounded(receive: Receive, limit: int) -> Receive:
    """`receive` for a body whose length is not known beforehand."""
    received = 0

    async def bounded() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise HTTPException(413, _too_large(limit))
        return message

    return bounded


def _too_large(limit: int) -> str:
    return f"The body is larger than {limit} bytes. Send large files with PUT …/files/raw, many with PUT …/files/tar."

"""The short way to a route, beside the framework's own: which requests take it, and that both give the same answer."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute
from starlette.types import Message, Receive, Scope, Send

from skerry.api import commands, sandboxes
from skerry.api.app import create_app
from skerry.api.direct import Direct
from tests.api.conftest import Server

ROUTES = [*sandboxes.router.routes, *commands.router.routes]
RUN = "/v1/sandboxes/sbx_x/commands"
JSON = {"content-type": "application/json"}


class Framework:
    """Stands for the router behind: notes that it was asked, and reads the body."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.bodies.append(b"" if scope["method"] == "GET" else (await receive())["body"])
        await send({"type": "http.response.start", "status": 299, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def asked(
    method: str,
    path: str,
    body: bytes = b"",
    query: bytes = b"",
    headers: dict[str, str] = {},  # noqa: B006 - only read
    routes: Sequence[BaseRoute] = ROUTES,
) -> Framework:
    """What of this request reached the framework. The endpoint itself is not reached: nobody admitted the caller."""
    behind = Framework()
    scope: Scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query,
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(_message: Message) -> None:
        pass

    with suppress(KeyError):  # the short way ends where it asks who calls
        asyncio.run(Direct(behind, routes)(scope, receive, send))
    return behind


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [("GET", "/v1/sandboxes/sbx_x", b""), ("POST", RUN, b'{"argv":["true"]}'), ("POST", "/v1/sandboxes", b"{}")],
)
def test_what_is_as_it_should_be_goes_the_short_way(method: str, path: str, body: bytes) -> None:
    assert asked(method, path, body, headers=JSON).bodies == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"argv":[]}',
        b'{"argv":["true"],"nonsense":1}',
        b'{"argv":["\xff"]}',
        b"[" * 100_000,
    ],
)
def test_a_wrong_body_reaches_the_framework_whole(body: bytes) -> None:
    assert asked("POST", RUN, body, headers=JSON).bodies == [body]


@pytest.mark.parametrize(
    ("method", "path", "query", "headers"),
    [
        ("GET", "/v1/sandboxes/sbx_x", b"a=1", {}),
        ("GET", "/v1/sandboxes/", b"", {}),
        ("GET", "/v1/sandboxes/sbx_x/", b"", {}),
        ("GET", "/v1/nothing", b"", {}),
        ("PUT", "/v1/sandboxes/sbx_x", b"", {}),
        ("HEAD", "/v1/sandboxes/sbx_x", b"", {}),
        ("POST", RUN, b"", {"content-type": "text/plain"}),
        ("POST", RUN, b"", {**JSON, "idempotency-key": "two words"}),
        ("GET", "/v1/commands/cmd_x/events", b"", {}),
    ],
)
def test_what_only_the_framework_knows_reaches_it(
    method: str, path: str, query: bytes, headers: dict[str, str]
) -> None:
    assert len(asked(method, path, b'{"argv":["true"]}', query, headers).bodies) == 1


@pytest.mark.parametrize(("path", "reached"), [("/v1/a/b", 1), ("/v1/b/a", 1), ("/v1/long/c/d", 0)])
def test_a_path_that_two_routes_might_mean_has_no_short_way(path: str, reached: int) -> None:
    paths = ["/v1/{sandbox_id}/b", "/v1/a/{sandbox_id}", "/v1/long/c/{sandbox_id}"]
    routes = [APIRoute(each, sandboxes.get_sandbox, methods=["GET"]) for each in paths]
    assert len(asked("GET", path, routes=routes).bodies) == reached


NONE: dict[str, str] = {}
REQUESTS = [
    ("GET", "/v1/sandboxes/sbx_00000000000000000000", b"", NONE),
    ("GET", "/v1/sandboxes/%2e%2e", b"", NONE),
    ("GET", "/v1/commands/cmd_x", b"", NONE),
    ("GET", "/v1/sandboxes", b"", NONE),
    ("GET", "/v1/me", b"", NONE),
    ("GET", "/healthz", b"", NONE),
    ("DELETE", "/v1/keys/key_x", b"", NONE),
    ("POST", "/v1/sandboxes", b'{"template":"nonsense"}', JSON),
    ("POST", "/v1/sandboxes", b'{"memory_mb":0}', JSON),
    ("POST", "/v1/sandboxes", b'{"memory_mb":"512","template":"nonsense"}', JSON),
    ("POST", "/v1/sandboxes", b'{"name":"\\ud800"}', JSON),
    ("POST", "/v1/sandboxes", b'{"name":NaN}', JSON),
    ("POST", "/v1/sandboxes", b"{}", {**JSON, "idempotency-key": "a b"}),
    ("POST", "/v1/keys", b'{"name":"x"}', {**JSON, "idempotency-key": "k"}),
    ("POST", RUN, b'{"argv":["true"]}', JSON),
    ("POST", RUN, b"{", JSON),
    ("POST", RUN, b"", NONE),
    ("POST", RUN, b'{"argv":["true"]}', {"content-type": "application/json; charset=utf-8"}),
    ("PUT", "/v1/sandboxes/sbx_x/env", b'{"env":{"A=B":"c"}}', JSON),
]


@pytest.mark.parametrize("asking", REQUESTS, ids=lambda asking: f"{asking[0]} {asking[1]} {asking[2][:40]!r}")
def test_both_ways_give_the_same_answer(server: Server, asking: tuple[str, str, bytes, dict[str, str]]) -> None:
    both, framework_alone = create_app(server.deps), create_app(server.deps)
    framework_alone.user_middleware = [each for each in both.user_middleware if each.cls is not Direct]
    assert len(framework_alone.user_middleware) == len(both.user_middleware) - 1
    answer = server.call(answer_of(both, server.key, *asking))
    assert answer == server.call(answer_of(framework_alone, server.key, *asking))


async def answer_of(
    app: FastAPI, key: str, method: str, path: str, body: bytes, headers: dict[str, str]
) -> tuple[int, str, str]:
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://server") as client:
        given = {"Authorization": f"Bearer {key}", **headers}
        answer = await client.request(method, path, content=body, headers=given)
        return answer.status_code, answer.headers["content-type"], answer.text

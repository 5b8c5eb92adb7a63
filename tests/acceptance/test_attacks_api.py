"""The HTTP surface under attack, generated from the server's own description: strangers, nonsense and hostile bytes."""

import asyncio
import itertools
import json
import random
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2
import pytest
from acceptance.nonsense import HEADERS, IDS, RAW_BODIES, VALUES
from acceptance.servers import Server

from skerry import Sandbox
from skerry.model.account import Account, ApiKey, hash_secret, new_secret
from skerry.model.ids import new_account_id, new_key_id, new_project_id
from skerry.store import open_store

OPEN = {"/healthz", "/readyz", "/openapi.json", "/docs"}
# Nothing there is of one account alone.
COMMON = {"/v1/sandboxes", "/v1/templates", "/v1/capabilities", "/v1/me", "/v1/keys"}


@dataclass(frozen=True)
class Route:
    method: str
    path: str
    operation: dict[str, Any]

    @property
    def names(self) -> list[str]:
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]

    def at(self, **ids: str) -> str:
        return self.path.format(**{name: quote(ids.get(name, "x"), safe="") for name in self.names})


@pytest.fixture
def anybody(server: Server) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, timeout=30) as client:
        yield client


@pytest.fixture
def described(anybody: httpx2.Client) -> dict[str, Any]:
    return anybody.get("/openapi.json").raise_for_status().json()


@pytest.fixture
def routes(described: dict[str, Any]) -> list[Route]:
    found = [
        Route(method.upper(), path, operation)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
        if path not in OPEN
    ]
    assert len(found) > 20
    return found


@pytest.fixture
def owner(server: Server) -> dict[str, str]:
    return {"Authorization": f"Bearer {server.key}"}


@pytest.fixture
def stranger(server: Server) -> dict[str, str]:
    """The key of a second account, put into the store beside the server."""
    secret, now = new_secret(), datetime.now(UTC)

    async def add() -> None:
        store = await open_store(server.config.database_url)
        try:
            account = Account(new_account_id(), "stranger", "unlimited", new_project_id(), now)
            await store.add_account(account, ApiKey(new_key_id(), account.id, "first", hash_secret(secret), now))
        finally:
            await store.close()

    asyncio.run(add())
    return {"Authorization": f"Bearer {secret}"}


def is_envelope(answer: httpx2.Response) -> bool:
    error = json.loads(answer.content)["error"]
    return bool(error["code"]) and bool(error["message"]) and set(error) <= {"code", "message", "field"}


def sample(described: dict[str, Any], schema: dict[str, Any], depth: int = 0) -> Any:
    """The least value of a schema's shape that is likely to be taken."""
    if "$ref" in schema:
        return sample(described, described["components"]["schemas"][schema["$ref"].rpartition("/")[2]], depth)
    if "anyOf" in schema:
        return sample(described, schema["anyOf"][0], depth)
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        wanted = schema.get("required", [])
        return {name: sample(described, schema["properties"][name], depth + 1) for name in wanted}
    return {"integer": 1, "number": 1.0, "boolean": False, "array": [], "string": "/workspace/x"}.get(kind or "")


def body_of(described: dict[str, Any], route: Route) -> dict[str, Any]:
    content = route.operation.get("requestBody", {}).get("content", {})
    if "application/json" in content:
        body = sample(described, content["application/json"]["schema"])
        if route.path.endswith(("/commands", "/commands/stream")):
            body["command"] = "true"
        return {"json": body}
    return {"content": b"bytes", "headers": {"Content-Type": "application/octet-stream"}} if content else {}


def query_of(described: dict[str, Any], route: Route) -> dict[str, Any]:
    given = [one for one in route.operation.get("parameters", []) if one["in"] == "query" and one.get("required")]
    return {one["name"]: sample(described, one["schema"]) for one in given}


def test_without_a_key_or_with_a_wrong_one_every_route_is_401(
    anybody: httpx2.Client, described: dict[str, Any], routes: list[Route], sandbox: Sandbox
) -> None:
    wrong = [{}, {"Authorization": "Bearer skerry_live_wrong"}, {"X-API-Key": ""}, {"Authorization": "Basic eDp5"}]
    for route, headers in itertools.product(routes, wrong):
        given = body_of(described, route)
        headers = {**given.pop("headers", {}), **headers}
        answer = anybody.request(route.method, route.at(sandbox_id=sandbox.id), headers=headers, **given)
        assert answer.status_code == 401, (route.method, route.path, headers)
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        assert route.method == "HEAD" or is_envelope(answer)


def test_what_is_another_accounts_is_404_on_every_route(
    anybody: httpx2.Client,
    described: dict[str, Any],
    routes: list[Route],
    sandbox: Sandbox,
    stranger: dict[str, str],
    owner: dict[str, str],
) -> None:
    command = sandbox.commands.run("echo mine")
    key = anybody.get("/v1/keys", headers=owner).json().get("data", [{}])[0].get("id", "key_x")
    ids = {"sandbox_id": sandbox.id, "command_id": command.id, "key_id": key}
    tried = 0
    for route in routes:
        if route.path in COMMON or not set(route.names) & set(ids):
            continue
        given = body_of(described, route)
        headers = {**given.pop("headers", {}), **stranger}
        answer = anybody.request(
            route.method, route.at(**ids), headers=headers, params=query_of(described, route), **given
        )
        assert answer.status_code == 404, (route.method, route.path, answer.text)
        nowhere = anybody.request(
            route.method,
            route.at(sandbox_id="sbx_" + "0" * 20, command_id="cmd_" + "0" * 20, key_id="key_" + "0" * 20),
            headers=headers,
            params=query_of(described, route),
            **given,
        )
        assert nowhere.status_code == 404
        if route.method != "HEAD":
            assert is_envelope(answer)
            theirs, none = answer.json()["error"], nowhere.json()["error"]
            assert theirs["code"] == none["code"], "another account's is told apart from none"
        tried += 1
    assert tried > 15
    listed = anybody.get("/v1/sandboxes", headers=stranger).json()
    assert listed["data"] == []
    assert sandbox.refresh().status == "ready"
    assert sandbox.commands.get(command.id).poll().stdout == "mine\n"


# Said by the HTTP server itself, to what is no request at all: nothing of ours has seen it.
NO_HTTP = b"Invalid HTTP request received."


class Prober:
    """Sends requests that should not be well, and judges the answers."""

    def __init__(self, client: httpx2.Client, owner: dict[str, str]) -> None:
        self._client = client
        self._owner = owner
        self.sent = 0
        self.faults: list[str] = []

    def send(
        self, method: str, target: str, content: bytes | None = None, headers: Sequence[tuple[str, bytes]] = ()
    ) -> int:
        names = {name.lower() for name, _ in headers}
        kind = [] if content is None or "content-type" in names else [("Content-Type", b"application/json")]
        owner = [(name, value.encode()) for name, value in self._owner.items()]
        with self._client.stream(method, target, content=content, headers=[*owner, *kind, *headers]) as answer:
            self.sent += 1
            what = f"{method} {target[:150]} {(content or b'')[:150]!r} {headers}: {answer.status_code}"
            # 507 and 502 say that the sandbox has no room, or failed to do it: nothing here does that.
            if answer.status_code >= 500:
                self.faults.append(f"{what} {answer.read()[:300]!r}")
            elif answer.status_code >= 400 and method != "HEAD":
                if answer.read() == NO_HTTP:
                    return answer.status_code
                try:
                    assert is_envelope(answer)
                except (ValueError, KeyError, TypeError, AssertionError):
                    self.faults.append(f"{what} is not in the envelope: {answer.content[:200]!r}")
            return answer.status_code

    def passed(self, least: int) -> None:
        assert not self.faults, "\n".join(self.faults[:40])
        assert self.sent >= least


@pytest.fixture
def prober(anybody: httpx2.Client, owner: dict[str, str]) -> Prober:
    return Prober(anybody, owner)


def test_x7_broken_ids_are_refused_on_every_route(
    prober: Prober, routes: list[Route], described: dict[str, Any]
) -> None:
    for route in routes:
        for wrong in IDS if route.names else []:
            body = body_of(described, route)
            content = json.dumps(body["json"]).encode() if "json" in body else body.get("content")
            status = prober.send(route.method, route.at(**dict.fromkeys(route.names, wrong)), content)
            assert status >= 400 or (route.method, wrong) == ("GET", ".."), (route, wrong, status)
    prober.passed(300)


def fields_of(described: dict[str, Any], route: Route) -> list[str]:
    schema = route.operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    name = schema.get("$ref", "").rpartition("/")[2]
    return [*described["components"]["schemas"].get(name, {}).get("properties", {}), "unknown_to_all"] if name else []


def is_slow_when_taken(route: Route, field: str, value: Any) -> bool:
    """A create that is taken makes a real sandbox; a template's build takes minutes. Neither is bad input."""
    return route.path.endswith("/build") or (route.method == "POST" and route.path == "/v1/sandboxes" and value is None)


def test_x4_wrong_values_in_every_field_are_refused(
    prober: Prober, routes: list[Route], described: dict[str, Any], sandbox: Sandbox
) -> None:
    command = sandbox.commands.run("true")
    for route in routes:
        base = body_of(described, route).get("json")
        for field, value in itertools.product(fields_of(described, route), VALUES):
            if is_slow_when_taken(route, field, value) or not isinstance(base, dict):
                continue
            body = base | {field: value}
            if route.path == "/v1/sandboxes":
                body = {"template": "no-such-template"} | body  # what is taken by its shape makes nothing
                if field == "template" and value in (None, ""):
                    continue
            prober.send(route.method, route.at(sandbox_id=sandbox.id, command_id=command.id), json.dumps(body).encode())
    prober.passed(500)
    assert sandbox.commands.run("echo still").stdout == "still\n"


def test_x4_wrong_parameters_on_every_route_are_refused(
    prober: Prober, routes: list[Route], described: dict[str, Any], sandbox: Sandbox
) -> None:
    command = sandbox.commands.run("true")
    wrong = [
        "",
        "x",
        "-1",
        "9" * 30,
        "%00",
        "%ff",
        "%ed%a0%80",
        "a" * 5000,
        "true",
        "%F0%9F%8F%9D",
        "../..",
        "[]",
        "1&",
        "%",
    ]
    for route in routes:
        names = [one["name"] for one in route.operation.get("parameters", []) if one["in"] == "query"]
        for name, value in itertools.product([*names, "unknown", "%ff", "a[b]", ""], wrong):
            if route.method in ("GET", "HEAD") or (route.method == "DELETE" and "path" in names):
                prober.send(
                    route.method,
                    route.at(sandbox_id=sandbox.id, command_id=command.id, name="python") + f"?{name}={value}",
                )
    prober.passed(400)


def test_x4_broken_bodies_and_headers_on_every_route_are_refused(
    prober: Prober, routes: list[Route], described: dict[str, Any], sandbox: Sandbox
) -> None:
    command = sandbox.commands.run("true")
    for route in routes:
        target = route.at(sandbox_id=sandbox.id, command_id=command.id, name="python")
        if route.method in ("POST", "PUT") and not route.path.endswith("/build"):
            for content in RAW_BODIES:
                if route.path != "/v1/sandboxes" or content not in (b"", b"\xef\xbb\xbf{}"):
                    prober.send(route.method, target + ("?path=x" if route.path.endswith("/raw") else ""), content)
        if route.method in ("GET", "HEAD"):
            for header in HEADERS:
                prober.send(
                    route.method, target + ("?path=/etc/hostname" if "/files" in target else ""), None, [header]
                )
    for method in ("OPTIONS", "TRACE", "PATCH", "FOO", "PROPFIND"):
        for path in ("/v1/sandboxes", "/", "/nowhere", "/v1/commands/x", "//", "/%00", "/v1/%2e%2e/healthz"):
            prober.send(method, path)
    prober.passed(500)


def test_rubbish_on_the_wire_leaves_the_server_answering(server: Server, anybody: httpx2.Client) -> None:
    place = urlsplit(server.url)
    assert place.hostname and place.port
    randomly = random.Random(7)
    key = server.key.encode()
    pieces = [
        b"\x16\x03\x01\x02\x00\x01" + randomly.randbytes(200),
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: " + key + b"\r\nContent-Length: -5\r\n\r\n{}",
        b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: "
        + key
        + b"\r\nContent-Length: 5\r\nContent-Length: 9\r\n\r\n{}",
        b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: "
        + key
        + b"\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n",
        b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: "
        + key
        + b"\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(20_000)) + b"\r\n",
        b"GET /v1/sandboxes HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        randomly.randbytes(5000),
    ]
    for piece in pieces:
        with socket.create_connection((place.hostname, place.port), 10) as wire:
            wire.settimeout(5)
            try:
                wire.sendall(piece)
                wire.shutdown(socket.SHUT_WR)
                said = wire.recv(65536)
            except OSError:
                continue
            assert said[:12] != b"HTTP/1.1 500", (piece[:100], said)
        assert anybody.get("/healthz").status_code == 200

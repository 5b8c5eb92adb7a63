"""Every route there is, by the description: nothing without a key, nothing of another account."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from skerry.api.gate import OPEN
from skerry.control import accounts

from .conftest import Server, new_account

DOCUMENT = json.loads((Path(__file__).resolve().parents[2] / "docs" / "openapi.json").read_text())
OPERATIONS = [
    (method.upper(), path, operation)
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
]
NAMES = [f"{method} {path}" for method, path, _ in OPERATIONS]
# Not an account's: everybody sees the same.
SHARED = {"name"}
WRONG: list[dict[str, str]] = [
    {},
    {"Authorization": "Bearer skerry_live_wrong"},
    {"Authorization": "Basic eDp5"},
    {"X-API-Key": "x"},
]
# Bodies are made from the shapes; members that a shape cannot say.
MEMBERS: dict[str, object] = {"RunCommand": {"command": "true"}, "GitClone": {"url": "https://host/a.git"}}


@pytest.fixture(scope="module")
def theirs(running: Server) -> Iterator[dict[str, str]]:
    """One of each thing that has an id, all of another account."""
    account, secret = running.call(new_account(running.deps))
    with httpx2.Client(base_url=running.url, headers={"Authorization": f"Bearer {secret}"}) as http:
        sandbox = http.post("/v1/sandboxes", json={}).json()["id"]
        command = http.post(f"/v1/sandboxes/{sandbox}/commands", json={"command": "echo secret"}).json()["id"]
        terminal = http.post(f"/v1/sandboxes/{sandbox}/terminals", json={"argv": ["cat"]}).json()["id"]
        http.put(f"/v1/sandboxes/{sandbox}/files/raw?path=x", content=b"secret")
        key, _ = running.call(accounts.create_key(running.deps, account.id, "other"))
        session = http.post(f"/v1/sandboxes/{sandbox}/sessions").json()["id"]
        ids = {"sandbox_id": sandbox, "command_id": command, "terminal_id": terminal}
        snapshot = http.post(f"/v1/sandboxes/{sandbox}/snapshots", json={"name": "theirs"}).json()["id"]
        ids["snapshot_id"] = snapshot
        yield {**ids, "key_id": key.id, "session_id": session}
        http.delete(f"/v1/sandboxes/{sandbox}")
        http.delete(f"/v1/snapshots/{snapshot}")


def shape(schema: dict[str, Any]) -> Any:
    """A value that a schema takes: what is required, as plainly as possible."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return MEMBERS.get(name) or shape(DOCUMENT["components"]["schemas"][name])
    if "default" in schema:
        return schema["default"]
    if "anyOf" in schema:
        return shape(schema["anyOf"][0])
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            return {name: shape(schema["properties"][name]) for name in schema.get("required", [])}
        case "array":
            return []
        case "integer":
            return int(schema.get("minimum", 1))  # the description has bounds as 1.0, which is no integer on the wire
        case "boolean":
            return False
        case _:
            return "x" * max(1, schema.get("minLength", 1))


def ask(http: httpx2.Client, method: str, path: str, operation: dict[str, Any], ids: dict[str, str]) -> httpx2.Response:
    query: dict[str, Any] = {}
    for parameter in operation.get("parameters", []):
        if parameter["in"] == "query" and parameter.get("required"):
            query[parameter["name"]] = shape(parameter["schema"])
    content = operation.get("requestBody", {}).get("content", {})
    body: dict[str, Any] = {}
    if "application/json" in content:
        body = {"json": shape(content["application/json"]["schema"])}
    elif content:
        body = {"content": b"x"}
    return http.request(method, path.format_map(ids), params=query, **body)


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS, ids=NAMES)
def test_without_a_key_nothing_is_answered(
    running: Server, theirs: dict[str, str], method: str, path: str, operation: dict[str, Any]
) -> None:
    ids = {"name": "python", **theirs}
    for headers in WRONG:
        with httpx2.Client(base_url=running.url, headers=headers) as http:
            answer = ask(http, method, path, operation, ids)
        if path in OPEN:
            assert answer.status_code == 200
            continue
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        if method != "HEAD":
            assert answer.json()["error"]["code"] == "unauthorized"


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS, ids=NAMES)
def test_f1_what_is_another_accounts_is_absent(
    http: httpx2.Client, theirs: dict[str, str], method: str, path: str, operation: dict[str, Any]
) -> None:
    wanted = {p["name"] for p in operation.get("parameters", []) if p["in"] == "path"} - SHARED
    if not wanted:
        return  # it names nothing of anybody's
    assert wanted <= set(theirs), f"make one of another account's, for {wanted - set(theirs)}"
    foreign = ask(http, method, path, operation, theirs)
    assert foreign.status_code == 404, foreign.text
    # Not told apart from what was never there.
    absent = ask(http, method, path, operation, {name: f"{value[:4]}{'0' * 20}" for name, value in theirs.items()})
    assert (absent.status_code, absent.headers.get("Content-Type")) == (404, foreign.headers.get("Content-Type"))
    if method != "HEAD":
        assert foreign.json()["error"]["code"] == absent.json()["error"]["code"] == "not_found"


def test_another_accounts_things_are_as_they_were(running: Server, theirs: dict[str, str]) -> None:
    """Runs after the ones above: none of what they sent has done anything."""
    sandbox = running.call(running.deps.store.get_sandbox(theirs["sandbox_id"]))  # pyright: ignore[reportArgumentType]
    assert (sandbox.state, sandbox.name, dict(sandbox.env)) == ("running", None, {})
    terminal, command = running.call(running.deps.store.list_commands(sandbox_id=sandbox.id))
    assert (terminal.status, command.status) == ("running", "completed")
    (snapshot,) = running.call(running.deps.store.list_snapshots(account_id=sandbox.account_id))
    assert (snapshot.id, snapshot.state) == (theirs["snapshot_id"], "ready")
    assert len(running.call(running.deps.store.list_sandboxes(account_id=sandbox.account_id))) == 1
    assert len(running.call(running.deps.store.list_keys(sandbox.account_id))) == 2
    assert len(running.call(running.deps.store.list_shells(sandbox.id))) == 1
    assert (sandbox.startup_command, running.call(running.deps.store.get_startup(sandbox.id))) == (None, None)


def test_a_list_shows_nothing_of_another_account(http: httpx2.Client, theirs: dict[str, str]) -> None:
    theirs_as_before = f"/v1/sandboxes/{{}}/commands?before={theirs['command_id']}"
    mine = http.post("/v1/sandboxes", json={}).json()["id"]
    assert http.get(theirs_as_before.format(mine)).status_code == 400
    assert http.get(f"/v1/sandboxes/{mine}/commands").json() == {"data": [], "next": None}
    for body in ({"restore_from": theirs["sandbox_id"]}, {"snapshot_id": theirs["snapshot_id"]}):
        answer = http.post("/v1/sandboxes", json=body)
        absent = http.post("/v1/sandboxes", json={name: f"{id[:5]}{'0' * 20}" for name, id in body.items()})
        assert answer.status_code == absent.status_code and answer.status_code in (400, 404)
    assert http.get(f"/v1/snapshots?before={theirs['snapshot_id']}").status_code == 400
    assert http.get(f"/v1/snapshots?source_sandbox_id={theirs['sandbox_id']}").json()["data"] == []
    http.delete(f"/v1/sandboxes/{mine}")
    seen = http.get("/v1/sandboxes?status=ready&status=failed&status=destroyed").text + http.get("/v1/keys").text
    seen += http.get("/v1/snapshots").text
    assert not [value for value in theirs.values() if value in seen]

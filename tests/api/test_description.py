"""/openapi.json says what is true: every route, keys, the one envelope, the errors that come."""

import httpx2
import pytest

from skerry.api.gate import OPEN
from skerry.model.errors import Refused
from skerry.model.template import TemplateStatus

from .conftest import Server


@pytest.fixture
def document(http: httpx2.Client) -> dict[str, object]:
    return http.get("/openapi.json").json()


ROUTES = {
    "/healthz": {"get"},
    "/metrics": {"get"},
    "/readyz": {"get"},
    "/v1/capabilities": {"get"},
    "/v1/commands/{command_id}": {"get"},
    "/v1/commands/{command_id}/events": {"get"},
    "/v1/commands/{command_id}/kill": {"post"},
    "/v1/commands/{command_id}/output": {"get"},
    "/v1/commands/{command_id}/signal": {"post"},
    "/v1/commands/{command_id}/stdin": {"post"},
    "/v1/keys": {"get", "post"},
    "/v1/keys/{key_id}": {"delete"},
    "/v1/leaks": {"get"},
    "/v1/me": {"get"},
    "/v1/sandboxes": {"get", "post"},
    "/v1/sandboxes/{sandbox_id}": {"get", "patch", "delete"},
    "/v1/sandboxes/{sandbox_id}/code": {"post"},
    "/v1/sandboxes/{sandbox_id}/commands": {"get", "post"},
    "/v1/sandboxes/{sandbox_id}/commands/stream": {"post"},
    "/v1/sandboxes/{sandbox_id}/env": {"put"},
    "/v1/sandboxes/{sandbox_id}/files": {"get", "post", "delete"},
    "/v1/sandboxes/{sandbox_id}/files/batch": {"put"},
    "/v1/sandboxes/{sandbox_id}/files/list": {"get"},
    "/v1/sandboxes/{sandbox_id}/files/mkdir": {"post"},
    "/v1/sandboxes/{sandbox_id}/files/move": {"post"},
    "/v1/sandboxes/{sandbox_id}/files/raw": {"get", "head", "put"},
    "/v1/sandboxes/{sandbox_id}/files/stat": {"get"},
    "/v1/sandboxes/{sandbox_id}/git/clone": {"post"},
    "/v1/sandboxes/{sandbox_id}/git/pull": {"post"},
    "/v1/sandboxes/{sandbox_id}/git/push": {"post"},
    "/v1/sandboxes/{sandbox_id}/sessions": {"get", "post"},
    "/v1/sandboxes/{sandbox_id}/fork": {"post"},
    "/v1/sandboxes/{sandbox_id}/resume": {"post"},
    "/v1/sandboxes/{sandbox_id}/snapshots": {"post"},
    "/v1/sandboxes/{sandbox_id}/stop": {"post"},
    "/v1/snapshots": {"get"},
    "/v1/snapshots/{snapshot_id}": {"get", "delete"},
    "/v1/sandboxes/{sandbox_id}/startup": {"get", "put"},
    "/v1/sandboxes/{sandbox_id}/startup/run": {"post"},
    "/v1/sessions/{session_id}": {"get", "delete"},
    "/v1/sessions/{session_id}/exec": {"post"},
    "/v1/sandboxes/{sandbox_id}/files/tar": {"get", "put"},
    "/v1/sandboxes/{sandbox_id}/files/touch": {"post"},
    "/v1/sandboxes/{sandbox_id}/files/watch": {"get"},
    "/v1/sandboxes/{sandbox_id}/metrics": {"get"},
    "/v1/sandboxes/{sandbox_id}/ports": {"get"},
    "/v1/sandboxes/{sandbox_id}/processes": {"get"},
    "/v1/sandboxes/{sandbox_id}/terminals": {"get", "post"},
    "/v1/sandboxes/{sandbox_id}/terminals/{terminal_id}": {"get", "delete"},
    "/v1/sandboxes/{sandbox_id}/terminals/{terminal_id}/resize": {"post"},
    "/v1/sandboxes/{sandbox_id}/terminals/{terminal_id}/ticket": {"post"},
    "/v1/templates": {"get"},
    "/v1/templates/{name}": {"get"},
    "/v1/templates/{name}/build": {"post"},
    "/v1/templates/{name}/build/logs": {"get"},
    "/v1/usage": {"get"},
}


def test_every_route_is_described(document: dict[str, dict[str, dict[str, object]]]) -> None:
    assert {path: set(operations) for path, operations in document["paths"].items()} == ROUTES


def test_every_reference_leads_somewhere(document: dict[str, dict[str, dict[str, object]]]) -> None:
    def references(node: object) -> set[str]:
        if isinstance(node, dict):
            own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
            return own.union(*(references(child) for child in node.values()))
        return set().union(*(references(child) for child in node)) if isinstance(node, list) else set()

    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) <= known


def test_keys_and_errors_are_told_as_they_are(document: dict[str, dict[str, dict[str, dict[str, object]]]]) -> None:
    assert document["security"] == [{"bearer": []}, {"key": []}]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            responses = operation["responses"]
            assert "422" not in responses
            if path in OPEN:
                assert operation["security"] == []
            else:
                assert "ErrorBody" in str(responses["401"])
            if "{" in path:
                assert "ErrorBody" in str(responses["404"])
    create = document["paths"]["/v1/sandboxes"]["post"]
    assert "SandboxView" in str(create["responses"]["201"])
    assert "CreateSandbox" in str(create["requestBody"])
    assert "HTTPValidationError" not in document["components"]["schemas"]


def test_operations_have_names_of_their_own(document: dict[str, dict[str, dict[str, dict[str, object]]]]) -> None:
    names = [op["operationId"] for operations in document["paths"].values() for op in operations.values()]
    assert len(names) == len(set(names))


def test_f4_a_template_that_is_not_built_is_built_by_its_first_sandbox(server: Server, http: httpx2.Client) -> None:
    server.provider.add_template("fresh")
    assert http.get("/v1/templates/fresh").json()["status"] == "pending"
    assert http.post("/v1/sandboxes", json={"template": "fresh"}).json()["status"] == "ready"
    assert http.get("/v1/templates/fresh").json()["status"] == "ready"
    assert server.provider.built == ["fresh"]


def test_a_build_tells_its_progress(server: Server, http: httpx2.Client) -> None:
    server.provider.add_template("slow")
    with http.stream("POST", "/v1/templates/slow/build") as answer:
        text = answer.read().decode()
    assert "event: progress" in text and "event: end" in text
    assert http.get("/v1/templates/slow").json()["status"] == "ready"


def test_f7_a_build_that_fails_fails_the_create(server: Server, http: httpx2.Client) -> None:
    server.provider.add_template("broken")
    server.provider.build_error = Refused("apt said no")
    answer = http.post("/v1/sandboxes", json={"template": "broken"})
    assert answer.status_code == 400
    (record,) = http.get("/v1/sandboxes?status=failed").json()["data"]
    assert (record["reason"], record["message"]) == ("create", "apt said no")
    assert http.get("/v1/templates/broken").json()["status"] == TemplateStatus.FAILED


def test_pages_follow_each_other(http: httpx2.Client) -> None:
    made = [http.post("/v1/sandboxes", json={"metadata": {"n": i % 2}}).json()["id"] for i in range(5)]
    first = http.get("/v1/sandboxes?limit=3").json()
    second = http.get("/v1/sandboxes", params={"limit": 3, "before": first["next"]}).json()
    assert [view["id"] for view in first["data"] + second["data"]] == list(reversed(made))
    assert second["next"] is None
    odd = http.get("/v1/sandboxes", params={"metadata": "n=1"}).json()["data"]
    assert [view["id"] for view in odd] == [made[3], made[1]]


def test_capabilities_are_told(http: httpx2.Client) -> None:
    body = http.get("/v1/capabilities").json()
    assert (body["provider"], body["network_modes"]) == ("fake", ["bridge", "none"])

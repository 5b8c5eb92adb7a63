"""Bad input: a 4xx with code, message and field in the one envelope, and nothing half-made."""

import json
import socket
from collections.abc import Iterator

import httpx2
import pytest

from skerry.model.errors import Refused, TooBusy
from skerry.model.ids import SandboxId

from .conftest import Server

SANDBOX = "sbx_00000000000000000000"
COMMAND = "cmd_00000000000000000000"


def refused(answer: httpx2.Response, status: int, code: str, field: str | None = None) -> str:
    """Check the envelope; the message."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert set(body) == {"error"}
    assert (body["error"]["code"], body["error"].get("field")) == (code, field), body
    assert body["error"]["message"]
    return body["error"]["message"]


@pytest.fixture
def sandbox(http: httpx2.Client) -> str:
    return http.post("/v1/sandboxes", json={}).json()["id"]


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({"template": "nope"}, "unknown_template", "template"),
        ({"template": ""}, "invalid", "template"),
        ({"memory_mb": 0}, "invalid", "memory_mb"),
        ({"memory_mb": 10**9}, "invalid", "memory_mb"),
        ({"memory_mb": "lots"}, "invalid", "memory_mb"),
        ({"memory_mb": "256"}, "invalid", "memory_mb"),
        ({"memory_mb": 256.0}, "invalid", "memory_mb"),
        ({"timeout_seconds": True}, "invalid", "timeout_seconds"),
        ({"cpu_millis": 8001}, "invalid", "cpu_millis"),
        ({"memory_mb": 10_000}, "invalid", "memory_mb"),
        ({"disk_mb": 9_000}, "invalid", "disk_mb"),
        ({"name": "two\nlines"}, "invalid", "name"),
        ({"name": "\x1b[2J"}, "invalid", "name"),
        ({"name": "\x9b2J"}, "invalid", "name"),
        ({"name": "a\u202eb"}, "invalid", "name"),
        ({"name": 7}, "invalid", "name"),
        ({"env": {f"A{n}": "x" * 1000 for n in range(100)}}, "invalid", "env"),
        ({"env": {"A": "x" * 131_070}}, "invalid", "env.A"),
        ({"startup_command": "é" * 60_000}, "invalid", "startup_command"),
        ({"env": {"A": "é" * 70_000}}, "invalid", "env.A"),
        ({"disk_mb": 10**12}, "invalid", "disk_mb"),
        ({"cpu_millis": 1}, "invalid", "cpu_millis"),
        ({"timeout_seconds": -1}, "invalid", "timeout_seconds"),
        ({"timeout_seconds": 10**30}, "invalid", "timeout_seconds"),
        ({"network_mode": "host"}, "invalid", "network_mode"),
        ({"env": {"A B": "x"}}, "invalid", "env.A B.[key]"),
        ({"env": {"A": "x\0"}}, "invalid", "env.A"),
        ({"env": {"A": 1}}, "invalid", "env.A"),
        ({"colour": "red"}, "unknown_field", "colour"),
        ({"startup_command": "x\0"}, "invalid", "startup_command"),
        ({"capabilities": ["browser"]}, "invalid", "capabilities"),
        ({"metadata": {"a": "x" * 70_000}}, "invalid", "metadata"),
        ({"metadata": {"a": json.loads("[" * 40 + "]" * 40)}}, "invalid", "metadata"),
        ({"model": json.loads('{"a":' * 300 + "1" + "}" * 300)}, "invalid", "model"),
        ([], "invalid", "body"),
        ("text", "invalid", "body"),
        (None, "invalid", "body"),
    ],
)
def test_x4_a_wrong_create_names_the_field_and_makes_nothing(
    server: Server, http: httpx2.Client, body: object, code: str, field: str
) -> None:
    server.provider.host = (9_000, 8_000, 8_000)
    refused(http.post("/v1/sandboxes", json=body), 400, code, field)
    assert http.get("/v1/sandboxes").json()["data"] == []
    assert server.provider.created == 0


@pytest.mark.parametrize(
    "text",
    [
        '{"metadata": {"a": NaN}}',
        '{"metadata": {"a": Infinity}}',
        '{"metadata": {"a": "\\ud800"}}',
        '{"metadata": {"\\udfff": 1}}',
        '{"model": {"a": ["\\ud800"]}}',
    ],
)
def test_metadata_that_json_cannot_give_back_is_refused(http: httpx2.Client, text: str) -> None:
    answer = http.post("/v1/sandboxes", content=text, headers={"Content-Type": "application/json"})
    refused(answer, 400, "invalid", "model" if "model" in text else "metadata")


@pytest.mark.parametrize("text", [b"{", b"", b"\xff\xfe", b'{"name": "\xff"}', b"[" * 100_000])
def test_broken_json_is_a_bad_request(http: httpx2.Client, text: bytes) -> None:
    answer = http.post("/v1/sandboxes", content=text, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize("name", ["\\ud800", "x" * 201, ""])
def test_a_name_that_is_no_text_is_refused(http: httpx2.Client, name: str) -> None:
    content = f'{{"name": "{name}"}}'
    answer = http.post("/v1/sandboxes", content=content, headers={"Content-Type": "application/json"})
    refused(answer, 400, "invalid", "name")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "body"),
        ({"command": "true", "argv": ["true"]}, "body"),
        ({"command": ""}, "command"),
        ({"command": "a\0b"}, "command"),
        ({"argv": []}, "argv"),
        ({"argv": ["a", "b\0"]}, "argv.1"),
        ({"command": "true", "timeout_seconds": -5}, "timeout_seconds"),
        ({"command": "true", "timeout_seconds": 0}, "timeout_seconds"),
        ({"command": "true", "timeout_seconds": 86_401}, "timeout_seconds"),
        ({"command": "true", "working_directory": "relative"}, "working_directory"),
        ({"command": "true", "env": {"=": "x"}}, "env.=.[key]"),
        ({"command": "true", "colour": 1}, "colour"),
        ({"command": "true", "timeout_seconds": "5"}, "timeout_seconds"),
        ({"command": "true", "async": "yes"}, "async"),
        ({"command": "true", "async": 1}, "async"),
        ({"command": "x" * 131_072}, "command"),
        ({"command": "é" * 65_536}, "command"),
        ({"argv": ["echo", "x" * 131_072]}, "argv.1"),
        ({"argv": ["echo", "é" * 65_536]}, "argv.1"),
        ({"argv": ["echo", *["x" * 100_000] * 3]}, "argv"),
        ({"command": "x" * 100_000, "env": {"A": "x" * 100_000, "B": "x" * 100_000}}, "command"),
        ({"command": "true", "env": {"A": "é" * 65_536}}, "env.A"),
    ],
)
def test_x4_a_wrong_command_names_the_field_and_runs_nothing(
    server: Server, http: httpx2.Client, sandbox: str, body: dict[str, object], field: str
) -> None:
    code = "unknown_field" if field == "colour" else "invalid"
    refused(http.post(f"/v1/sandboxes/{sandbox}/commands", json=body), 400, code, field)
    assert server.call(server.deps.store.list_commands(sandbox_id=SandboxId(sandbox))) == []


def test_the_largest_command_that_is_allowed_is_run(http: httpx2.Client, sandbox: str) -> None:
    view = http.post(f"/v1/sandboxes/{sandbox}/commands", json={"argv": ["echo", "x" * 131_071]}).json()
    assert len(view["stdout"]) == 131_072


def test_several_sandboxes_may_have_one_name_and_odd_ones(http: httpx2.Client) -> None:
    for name in ("twice", "twice", "-x", "👨\u200d👩\u200d👧 ✓"):
        assert http.post("/v1/sandboxes", json={"name": name}).json()["name"] == name


def test_what_the_machine_has_is_told(http: httpx2.Client, server: Server) -> None:
    told = http.get("/v1/capabilities").json()
    assert (told["memory_mb"], told["cpu_millis"], told["disk_mb"]) == server.provider.host


def test_a_streamed_command_cannot_be_asynchronous(http: httpx2.Client, sandbox: str) -> None:
    answer = http.post(f"/v1/sandboxes/{sandbox}/commands/stream", json={"command": "true", "async": True})
    refused(answer, 400, "invalid", "async")


def test_a_signal_is_a_number_from_1_to_64(http: httpx2.Client) -> None:
    refused(http.post(f"/v1/commands/{COMMAND}/signal", json={"signal": 65}), 400, "invalid", "signal")
    json_head = {"Content-Type": "application/json"}
    no_text = http.post(f"/v1/commands/{COMMAND}/signal", content='{"signal": "\\ud800"}', headers=json_head)
    refused(no_text, 400, "invalid", "signal")


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer"}, {"Authorization": "Basic eA=="}])
def test_without_a_key_nothing_is_answered(server: Server, headers: dict[str, str]) -> None:
    with httpx2.Client(base_url=server.url) as client:
        for path in (
            "/v1/sandboxes",
            "/v1/me",
            "/v1/templates",
            "/v1/capabilities",
            "/nowhere",
            f"/v1/commands/{COMMAND}",
        ):
            answer = client.get(path, headers=headers)
            refused(answer, 401, "unauthorized")
            assert answer.headers["www-authenticate"].startswith("Bearer")


def test_a_body_is_not_read_before_the_key_is_known(server: Server) -> None:
    with httpx2.Client(base_url=server.url) as client:
        refused(client.post("/v1/sandboxes", content=b"{" * 1000), 401, "unauthorized")


def test_health_is_told_without_a_key(server: Server) -> None:
    with httpx2.Client(base_url=server.url) as client:
        for path in ("/healthz", "/readyz", "/openapi.json", "/docs"):
            assert client.get(path).status_code == 200


def test_a_key_may_come_in_a_header_of_its_own(server: Server) -> None:
    with httpx2.Client(base_url=server.url, headers={"X-API-Key": server.key}) as client:
        assert client.get("/v1/me").status_code == 200


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/nowhere", "/v2/sandboxes", "/v1/sandboxes/x/y/z", "/v1/sandboxes/"])
def test_an_unknown_route_is_not_found(http: httpx2.Client, path: str) -> None:
    refused(http.get(path), 404, "not_found")


def test_a_wrong_method_is_told_with_the_right_ones(http: httpx2.Client) -> None:
    answer = http.put("/v1/sandboxes", json={})
    refused(answer, 405, "method_not_allowed")
    assert "POST" in answer.headers["allow"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_a_body_that_is_not_json_is_told_so(http: httpx2.Client, kind: str) -> None:
    answer = http.post("/v1/sandboxes", content=b"a=b", headers={"Content-Type": kind})
    refused(answer, 415, "unsupported_media_type")


def test_an_oversized_body_is_refused_by_its_length_alone(server: Server) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        head = f"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.key}\r\n"
        rest = f"Content-Type: application/json\r\nContent-Length: {40 * 1024 * 1024}\r\n\r\n"
        connection.sendall((head + rest).encode())
        answer = b""
        while b'"too_large"' not in answer and (more := connection.recv(65_536)):
            answer += more
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"too_large"' in answer


def endless() -> Iterator[bytes]:
    yield b'{"name": "'
    for _ in range(34):
        yield b"x" * 1024 * 1024
    yield b'"}'


def test_an_oversized_body_without_a_length_is_refused_while_it_comes(http: httpx2.Client) -> None:
    answer = http.post("/v1/sandboxes", content=endless(), headers={"Content-Type": "application/json"})
    refused(answer, 413, "too_large")


def test_a_route_of_json_is_bounded_whatever_its_last_part_is_called(http: httpx2.Client) -> None:
    answer = http.patch("/v1/sandboxes/stdin", content=endless(), headers={"Content-Type": "application/json"})
    refused(answer, 413, "too_large")
    answer = http.patch("/v1/sandboxes/stdin", content=b"x", headers={"Content-Type": "text/plain"})
    refused(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize(
    "path",
    [
        f"/v1/sandboxes/{SANDBOX}",
        f"/v1/sandboxes/{SANDBOX}/files/list",
        f"/v1/sandboxes/{SANDBOX}/files/raw?path=a",
        "/v1/sandboxes/x",
        "/v1/sandboxes/sbx_%F0%9F%98%80",
        "/v1/sandboxes/..%2f..%2fetc",
        f"/v1/commands/{COMMAND}",
        f"/v1/commands/{COMMAND}/events",
        f"/v1/commands/{COMMAND}/output",
        f"/v1/commands/{SANDBOX}",
        "/v1/templates/nope",
        "/v1/templates/nope/build/logs",
    ],
)
def test_what_does_not_exist_is_not_found(http: httpx2.Client, path: str) -> None:
    refused(http.get(path), 404, "not_found")


def test_a_misspelled_parameter_is_refused(http: httpx2.Client) -> None:
    refused(http.get("/v1/sandboxes?limmit=3"), 400, "unknown_field", "limmit")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("before=sbx_none", "before"),
        (f"before={SANDBOX}", "before"),
        ("status=busy", "status"),
        ("metadata==x", "metadata"),
        ("&".join(f"metadata=k{i}" for i in range(1100)), "metadata"),
    ],
)
def test_a_wrong_filter_is_refused(http: httpx2.Client, query: str, field: str) -> None:
    refused(http.get(f"/v1/sandboxes?{query}"), 400, "invalid", field)


def test_f7_a_failed_create_is_recorded_with_its_reason_and_answered(server: Server, http: httpx2.Client) -> None:
    server.provider.create_error = Refused("No room for that much memory on this host.", code="memory")
    message = refused(http.post("/v1/sandboxes", json={}), 400, "memory")
    (record,) = http.get("/v1/sandboxes").json()["data"]
    assert (record["status"], record["reason"]) == ("failed", "create")
    assert record["message"] == "No room for that much memory on this host."
    assert record["id"] in message


def test_a_busy_host_says_when_to_come_back(server: Server, http: httpx2.Client) -> None:
    server.provider.create_error = TooBusy("No room now.", retry_after_s=7)
    answer = http.post("/v1/sandboxes", json={})
    refused(answer, 429, "too_busy")
    assert answer.headers["retry-after"] == "7"


def test_a_node_that_is_away_is_told_as_unavailable(server: Server, http: httpx2.Client, sandbox: str) -> None:
    server.provider.down = True
    refused(http.post("/v1/sandboxes", json={"template": "python"}), 503, "unavailable")
    refused(http.get("/v1/capabilities"), 503, "unavailable")
    refused(http.get("/readyz"), 503, "not_ready")
    assert http.get(f"/v1/sandboxes/{sandbox}").json()["status"] == "ready"
    server.provider.down = False


def test_a_fault_of_ours_tells_no_details(server: Server, http: httpx2.Client) -> None:
    server.provider.create_error = ZeroDivisionError("secret")  # type: ignore[assignment]
    answer = http.post("/v1/sandboxes", json={})
    message = refused(answer, 500, "internal")
    assert "secret" not in message
    assert http.get("/v1/me").status_code == 200


@pytest.mark.parametrize(
    "route",
    ["sandboxes/x/preview-link", "sandboxes/x/preview/80/a", "sandboxes/x/browser/start"],
)
def test_x4_what_is_yet_to_come_is_refused_by_name(http: httpx2.Client, route: str) -> None:
    answer = http.post(f"/v1/{route}", json={})
    refused(answer, 501, "not_supported")
    assert f"'{route.split('/')[2]}'" in answer.json()["error"]["message"]

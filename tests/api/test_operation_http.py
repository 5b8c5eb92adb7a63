"""Health, the server's own metrics, request ids and log lines, over HTTP."""

import io
import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
import structlog

from skerry import logs
from skerry.model.errors import TooBusy, Unavailable
from skerry.seams import Store

from .conftest import Server, new_account
from .test_authorisation import NAMES, OPERATIONS, ask

OWN_ID = re.compile(r"req_[0-9a-f]{20}")
PROMETHEUS_LINE = re.compile(r'[a-z_]+(\{([a-z_]+="[^"]*",?)*\})? (\S+)')


@dataclass
class Log:
    """What the server logs, as lines of JSON."""

    text: io.StringIO

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.getvalue().splitlines()]

    def requests(self, request_id: str) -> list[dict[str, Any]]:
        """The lines of one request. It is answered a moment before it is logged."""
        until = time.monotonic() + 10
        while True:
            found = [one for one in self.lines if one["event"] == "request" and one["request_id"] == request_id]
            if found or time.monotonic() > until:
                return found
            time.sleep(0.005)


@pytest.fixture
def log() -> Iterator[Log]:
    told = Log(io.StringIO())
    structlog.configure(
        processors=[*logs.gathering(), *logs.rendering(text=False)],
        wrapper_class=structlog.make_filtering_bound_logger(10),
        logger_factory=structlog.WriteLoggerFactory(file=told.text),
        cache_logger_on_first_use=False,
    )
    yield told
    structlog.reset_defaults()


@pytest.fixture
def operator(running: Server) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=running.url, headers={"Authorization": f"Bearer {running.key}"}) as client:
        yield client


@pytest.fixture
def anybody(running: Server) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=running.url) as client:
        yield client


def numbers(text: str) -> dict[str, float]:
    """The samples of an exposition."""
    return {
        name: float(value)
        for line in text.splitlines()
        if not line.startswith("#")
        for name, _, value in [line.rpartition(" ")]
    }


# -- health ------------------------------------------------------------------------------------------------------------


def test_health_asks_nobody_and_readiness_asks_all(server: Server, anybody: httpx2.Client) -> None:
    assert anybody.get("/readyz").json() == {"status": "ready", "parts": {"store": "ok", "node": "ok"}}
    server.provider.down = True
    assert (anybody.get("/healthz").status_code, anybody.get("/healthz").json()) == (200, {"status": "ok"})
    answer = anybody.get("/readyz")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert answer.json()["error"]["code"] == "not_ready"
    assert "the node does not answer (unavailable)" in answer.json()["error"]["message"]


def test_readiness_names_each_part_and_tells_no_detail(
    server: Server, anybody: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_store: Store) -> None:
        raise RuntimeError("sqlite:////secret/place")

    monkeypatch.setattr(type(server.deps.store), "ping", broken)
    server.provider.down = True
    told = anybody.get("/readyz").json()["error"]["message"]
    assert "the store is broken; the node does not answer" in told
    assert "secret" not in told and "/" not in told.replace("server's", "")


# -- metrics -----------------------------------------------------------------------------------------------------------


def test_the_servers_metrics_are_for_its_operator(http: httpx2.Client, anybody: httpx2.Client) -> None:
    assert anybody.get("/metrics").status_code == 401
    refused = http.get("/metrics")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission")


def test_the_metrics_token_opens_the_metrics_and_nothing_else(
    running: Server, anybody: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = {"Authorization": "Bearer hunter2-hunter2-hunter2"}
    assert anybody.get("/metrics", headers=token).status_code == 401
    opened = running.deps.config.model_copy(update={"metrics_token": "hunter2-hunter2-hunter2"})
    monkeypatch.setattr(type(running.deps), "config", opened)
    assert anybody.get("/metrics", headers=token).status_code == 200
    assert anybody.get("/metrics", headers={"Authorization": "Bearer hunter2-hunter2-hunter3"}).status_code == 401
    assert anybody.get("/v1/me", headers=token).status_code == 401
    assert anybody.get("/metrics/", headers=token).status_code == 401
    assert "hunter2" not in repr(opened)


def test_what_happens_is_counted(server: Server, http: httpx2.Client, operator: httpx2.Client) -> None:
    before = numbers(operator.get("/metrics").text)
    made = http.post("/v1/sandboxes", json={}).json()
    for _ in range(3):
        http.get(f"/v1/sandboxes/{made['id']}")
    http.get("/v1/sandboxes/sbx_none")
    server.provider.create_error = TooBusy("full")
    http.post("/v1/sandboxes", json={})
    http.post(f"/v1/sandboxes/{made['id']}/commands", json={"command": "sleep 100", "async": True})
    after = operator.get("/metrics")
    assert after.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    for line in after.text.splitlines():
        assert line.startswith("#") or PROMETHEUS_LINE.fullmatch(line), line
    now = numbers(after.text)

    def rose(name: str) -> float:
        return now.get(name, 0) - before.get(name, 0)

    route = 'method="GET",route="/v1/sandboxes/{sandbox_id}"'
    assert rose(f'skerry_http_requests_total{{{route},status="2xx"}}') == 3
    assert rose(f'skerry_http_requests_total{{{route},status="4xx"}}') == 1
    assert rose(f"skerry_http_request_duration_seconds_count{{{route}}}") == 4
    assert rose('skerry_sandbox_creates_total{outcome="ready"}') == 1
    assert rose('skerry_sandbox_creates_total{outcome="TooBusy"}') == 1
    assert rose("skerry_sandbox_create_duration_seconds_count") == 1
    assert rose('skerry_sandboxes{runtime="fake",state="running",template="python"}') == 1
    assert rose("skerry_commands_running") == 1
    assert now['skerry_pool_bytes{kind="total"}'] == 1 << 30
    assert now['skerry_pool_bytes{kind="used"}'] == 1 << 29
    assert now['skerry_up{part="node"}'] == 1
    assert any(name.startswith("skerry_build_info{") for name in now)
    assert any(name.startswith("skerry_event_loop_lag_seconds_bucket") for name in now)
    server.provider.down = True
    down = numbers(operator.get("/metrics").text)
    assert down['skerry_up{part="node"}'] == 0 and 'skerry_pool_bytes{kind="total"}' not in down


def test_labels_are_bounded_whatever_is_asked(http: httpx2.Client, operator: httpx2.Client) -> None:
    def series() -> int:
        names = numbers(operator.get("/metrics").text)
        return len([name for name in names if name.startswith("skerry_http")])

    def nonsense(kind: int) -> None:
        for n in range(30):
            http.get(f"/v1/sandboxes/sbx_{kind}{n}")
            http.request(f"BREW{kind}{n}", f"/coffee/{kind}/{n}")
            http.request("PUT", f"/v1/me?{kind}{n}")

    operator.get("/metrics")
    nonsense(1)
    many = series()
    nonsense(2)
    assert series() == many
    assert "sbx_" not in operator.get("/metrics").text


# -- request ids and lines ---------------------------------------------------------------------------------------------


def test_a_sane_request_id_is_kept_and_any_other_is_replaced(http: httpx2.Client) -> None:
    assert http.get("/v1/me", headers={"X-Request-Id": "trace-1.a_b:c"}).headers["X-Request-Id"] == "trace-1.a_b:c"
    for odd in ("", "a b", "x" * 65, "-x", 'a"b', "<script>", "é"):
        told = http.get("/v1/me", headers={"X-Request-Id": odd.encode()}).headers["X-Request-Id"]
        assert OWN_ID.fullmatch(told), odd
    assert OWN_ID.fullmatch(http.get("/v1/none").headers["X-Request-Id"])
    assert len({http.get("/healthz").headers["X-Request-Id"] for _ in range(5)}) == 5


def test_a_refusal_at_the_gate_has_an_id_too(anybody: httpx2.Client) -> None:
    answer = anybody.get("/v1/me")
    assert answer.status_code == 401 and OWN_ID.fullmatch(answer.headers["X-Request-Id"])
    assert "request_id" not in answer.json()["error"]


def test_a_fault_is_found_in_the_log_by_its_request_id(
    server: Server, http: httpx2.Client, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_store: Store, _account: str) -> None:
        raise RuntimeError("the fault")

    monkeypatch.setattr(type(server.deps.store), "get_account", broken)
    answer = http.get("/v1/me", headers={"X-Request-Id": "look-for-me"})
    assert answer.status_code == 500
    assert answer.json()["error"]["request_id"] == answer.headers["X-Request-Id"] == "look-for-me"
    (fault,) = [line for line in log.lines if line["event"] == "request failed"]
    assert fault["request_id"] == "look-for-me" and "the fault" in fault["exception"]
    assert "the fault" not in answer.text
    (line,) = log.requests("look-for-me")
    assert (line["status"], line["level"], line["route"]) == (500, "warning", "/v1/me")


def test_a_part_that_does_not_answer_is_told_with_the_request_id(server: Server, http: httpx2.Client) -> None:
    server.provider.create_error = Unavailable("away")
    answer = http.post("/v1/sandboxes", json={})
    assert answer.status_code == 503
    assert answer.json()["error"]["request_id"] == answer.headers["X-Request-Id"]


def test_a_request_is_one_line_with_what_it_was_about(server: Server, http: httpx2.Client, log: Log) -> None:
    sandbox = http.post("/v1/sandboxes", json={}).json()["id"]
    ran = http.post(f"/v1/sandboxes/{sandbox}/commands", json={"command": "true"}).json()["id"]
    http.get(f"/v1/commands/{ran}", headers={"X-Request-Id": "the-one"})
    (line,) = log.requests("the-one")
    assert (line["method"], line["route"], line["status"]) == ("GET", "/v1/commands/{command_id}", 200)
    assert line["command_id"] == ran and line["account_id"].startswith("acct_") and line["duration_ms"] > 0
    http.get(f"/v1/sandboxes/{sandbox}", headers={"X-Request-Id": "another"})
    (line,) = log.requests("another")
    assert line["sandbox_id"] == sandbox and "command_id" not in line
    http.get("/v1/sandboxes/hunter2-in-the-path", headers={"X-Request-Id": "odd"})
    (line,) = log.requests("odd")
    assert "sandbox_id" not in line and line["route"] == "/v1/sandboxes/{sandbox_id}"
    assert "hunter2" not in log.text.getvalue()


def test_the_health_checks_of_machines_are_told_only_to_who_debugs(http: httpx2.Client, log: Log) -> None:
    http.get("/healthz", headers={"X-Request-Id": "machine"})
    assert [line["level"] for line in log.requests("machine")] == ["debug"]


def test_requests_at_once_keep_their_ids_apart(http: httpx2.Client, log: Log) -> None:
    def one(n: int) -> None:
        sandbox = http.post("/v1/sandboxes", json={}, headers={"X-Request-Id": f"make-{n}"}).json()["id"]
        http.get(f"/v1/sandboxes/{sandbox}", headers={"X-Request-Id": f"get-{n}"})
        made[n] = sandbox

    made: dict[int, str] = {}
    threads = [threading.Thread(target=one, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert {n: log.requests(f"get-{n}")[0]["sandbox_id"] for n in range(8)} == made


def marked(value: Any, marker: str) -> Any:
    """The same body with every string in it a secret."""
    if isinstance(value, dict):
        return {name: marked(each, marker) for name, each in value.items()}
    if isinstance(value, list):
        return [marked(each, marker) for each in value]
    return marker if isinstance(value, str) else value


def test_no_route_logs_what_it_was_sent(running: Server, log: Log) -> None:
    """Every route of the description, well- and ill-formed, at the most talkative level."""
    assert len(OPERATIONS) == len(NAMES) > 30
    marker = "hunter2-no-good-password"
    account, secret = running.call(new_account(running.deps))
    headers = {"Authorization": f"Bearer {secret}", "X-Secret": marker, "Cookie": marker}
    with httpx2.Client(base_url=running.url, headers=headers, timeout=30) as http:
        body = {"env": {"TOKEN": marker}, "metadata": {"note": marker}}
        sandbox = http.post("/v1/sandboxes", json=body, headers={"Idempotency-Key": marker}).json()["id"]
        path = f"/v1/sandboxes/{sandbox}"
        command = {"command": f"echo {marker}", "env": {"MINE": marker}, "stdin": marker}
        ran = http.post(f"{path}/commands", json=command).json()["id"]
        http.put(f"{path}/files/raw", params={"path": marker}, content=marker.encode())
        http.put(f"{path}/env", json={"env": {"TOKEN": marker}})
        ids = {"sandbox_id": sandbox, "command_id": ran, "key_id": marker, "name": marker}
        for method, route, operation in OPERATIONS:
            if (method, route) == ("DELETE", "/v1/sandboxes/{sandbox_id}") or "stream" in route or "watch" in route:
                continue
            ids |= {name: marker for name in re.findall(r"{(\w+)}", route) if name not in ids}
            ask(http, method, route, operation, ids)
            for content in (json.dumps(marked(body | command, marker)), marker, "{" + marker):
                kind = {"Content-Type": "application/json"}
                http.request(method, route.format_map(ids), params={marker: marker}, content=content, headers=kind)
        http.get("/v1/me", headers={"Authorization": f"Bearer skerry_live_{marker}"})
        http.delete(path)
    text = log.text.getvalue()
    assert len([line for line in log.lines if line["event"] == "request"]) > 100
    assert marker not in text
    assert secret not in text and secret[20:] not in text
    assert account.id in text and sandbox in text

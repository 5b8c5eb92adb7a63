"""Commands over HTTP in Skerry's own dialect: events by offset, raw output, signals, exact bytes."""

import base64
import json
import time
from collections.abc import Callable, Iterator

import httpx2
import pytest

from skerry.model.lifecycle import Cause

from .conftest import Server


@pytest.fixture
def sandbox(http: httpx2.Client) -> str:
    return f"/v1/sandboxes/{http.post('/v1/sandboxes', json={}).json()['id']}"


def run(http: httpx2.Client, sandbox: str, **body: object) -> dict[str, object]:
    answer = http.post(f"{sandbox}/commands", json=body)
    assert answer.status_code == (202 if body.get("async") else 200), answer.text
    return answer.json()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def sse(answer: httpx2.Response) -> Iterator[tuple[str | None, str, str]]:
    """(id, event, data) of each event; pings are left out."""
    found: dict[str, str] = {}
    for line in answer.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            found[name] = value
        elif "event" in found:
            yield found.get("id"), found["event"], found["data"]
            found = {}


def follow(http: httpx2.Client, command: object, **query: object) -> list[tuple[str | None, str, str]]:
    with http.stream("GET", f"/v1/commands/{command}/events", params=query) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        return list(sse(answer))


def test_stdout_and_stderr_are_told_apart_byte_for_byte(http: httpx2.Client, sandbox: str) -> None:
    view = run(http, sandbox, command=r"printf 'a\000\xff'; printf 'b\xe2' >&2; printf '\x9c\x93'")
    assert view["stdout"] == "a\0\ufffd\ufffd\ufffd"
    assert base64.b64decode(str(view["stdout_base64"])) == b"a\0\xff\x9c\x93"
    assert base64.b64decode(str(view["stderr_base64"])) == b"b\xe2"
    assert (view["output_bytes"], view["lost_bytes"]) == (7, 0)


def test_text_that_is_text_needs_no_base64(http: httpx2.Client, sandbox: str) -> None:
    view = run(http, sandbox, argv=["echo", "✓", "$HOME", "a b"])
    assert (view["stdout"], view["stdout_base64"]) == ("✓ $HOME a b\n", None)
    assert view["command"] == "echo '✓' '$HOME' 'a b'"


def test_f32_a_program_that_is_not_there_is_failed_with_its_reason(http: httpx2.Client, sandbox: str) -> None:
    view = run(http, sandbox, argv=["no-such-program"])
    assert (view["status"], view["reason"], view["exit_code"]) == ("failed", "not_started", None)
    assert "no-such-program" in str(view["message"])
    assert http.get(f"/v1/commands/{view['id']}").json()["status"] == "failed"


@pytest.mark.parametrize(
    ("body", "blamed"),
    [
        ({"argv": ["no-such-program"]}, "the program 'no-such-program' of 'argv'"),
        ({"command": "true", "working_directory": "/no/where"}, "'working_directory' '/no/where'"),
    ],
)
def test_f32_what_kept_a_command_from_starting_is_named(
    http: httpx2.Client, sandbox: str, body: dict[str, object], blamed: str
) -> None:
    view = run(http, sandbox, **body)
    assert (view["status"], view["reason"]) == ("failed", "not_started")
    assert blamed in str(view["message"])


def test_stdin_is_given_and_ends(http: httpx2.Client, sandbox: str) -> None:
    assert run(http, sandbox, argv=["cat"], stdin="one\ntwo ✓")["stdout"] == "one\ntwo ✓"
    assert run(http, sandbox, argv=["cat"])["stdout"] == ""


def test_events_tell_channels_offsets_and_the_end(http: httpx2.Client, sandbox: str) -> None:
    view = run(http, sandbox, command="echo one; echo two >&2; exit 4")
    *output, (end_id, end, data) = follow(http, view["id"])
    assert [(i, name, base64.b64decode(data)) for i, name, data in output] == [
        ("4", "stdout", b"one\n"),
        ("8", "stderr", b"two\n"),
    ]
    assert (end_id, end) == ("8", "end")
    ended = json.loads(data)
    assert (ended["id"], ended["status"], ended["exit_code"], ended["stdout"]) == (view["id"], "completed", 4, "")


def test_events_go_on_from_an_offset_and_from_the_last_event(http: httpx2.Client, sandbox: str) -> None:
    command = run(http, sandbox, command="echo one; echo two")["id"]
    (_, _, data), *_ = follow(http, command, offset=6)
    assert base64.b64decode(data) == b"o\n"
    with http.stream("GET", f"/v1/commands/{command}/events?offset=0", headers={"Last-Event-ID": "4"}) as answer:
        (_, _, data), *_ = sse(answer)
    assert base64.b64decode(data) == b"two\n"


def test_a_client_that_vanishes_kills_nothing_and_comes_back(server: Server, http: httpx2.Client, sandbox: str) -> None:
    command = run(
        http, sandbox, command="echo one; read line; echo two", stdin=None, timeout_seconds=20, **{"async": True}
    )
    with http.stream("GET", f"/v1/commands/{command['id']}/events") as answer:
        assert next(sse(answer))[1] in ("stdout", "end")
    until(lambda: http.get(f"/v1/commands/{command['id']}").json()["status"] == "completed")
    assert [name for _, name, _ in follow(http, command["id"])] == ["stdout", "stdout", "end"]


def test_a_streaming_client_that_vanishes_kills_nothing(http: httpx2.Client, sandbox: str) -> None:
    body = {"command": "echo one; sleep 0.5; echo two"}
    with http.stream("POST", f"{sandbox}/commands/stream", json=body) as answer:
        assert next(sse(answer))[1] == "chunk"
    assert http.get(sandbox).json()["status"] == "active"
    until(lambda: http.get(sandbox).json()["status"] == "ready")


def test_a_waiting_client_that_vanishes_kills_nothing(server: Server, http: httpx2.Client, sandbox: str) -> None:
    with (
        httpx2.Client(base_url=server.url, headers={"X-API-Key": server.key}, timeout=0.3) as other,
        pytest.raises(httpx2.ReadTimeout),
    ):
        other.post(f"{sandbox}/commands", json={"command": "sleep 0.8; echo done"})
    until(lambda: http.get(sandbox).json()["status"] == "ready")
    (command,) = server.call(server.deps.store.list_commands(sandbox_id=sandbox.rpartition("/")[2]))
    assert http.get(f"/v1/commands/{command.id}").json()["stdout"] == "done\n"


@pytest.mark.parametrize(
    ("query", "content"),
    [
        ({}, b"one\ntwo\nthree\n"),
        ({"stream": "stdout"}, b"one\nthree\n"),
        ({"stream": "stderr"}, b"two\n"),
        ({"offset": 2}, b"e\ntwo\nthree\n"),
        ({"offset": 2, "limit": 4}, b"e\ntw"),
        ({"offset": 2, "limit": 4, "stream": "stderr"}, b"tw"),
        ({"offset": 99}, b""),
        ({"limit": 1}, b"o"),
    ],
)
def test_raw_output_is_a_window(http: httpx2.Client, sandbox: str, query: dict[str, object], content: bytes) -> None:
    command = run(http, sandbox, command="echo one; echo two >&2; echo three")["id"]
    assert http.get(f"/v1/commands/{command}/output", params=query).content == content


@pytest.mark.parametrize("query", [{"stream": "all "}, {"offset": -1}, {"limit": 0}, {"offset": 2**63}])
def test_a_wrong_window_is_refused(http: httpx2.Client, sandbox: str, query: dict[str, object]) -> None:
    command = run(http, sandbox, command="true")["id"]
    answer = http.get(f"/v1/commands/{command}/output", params=query)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, next(iter(query)))


def test_output_over_the_inline_cap_is_cut_and_told_and_all_of_it_can_be_had(http: httpx2.Client, sandbox: str) -> None:
    size = 5 * 1024 * 1024
    http.put(f"{sandbox}/files/raw?path=big", content=b"x" * size).raise_for_status()
    view = run(http, sandbox, command="cat big; echo err >&2")
    assert (len(str(view["stdout"])), view["stdout_truncated"]) == (1024 * 1024, True)
    assert (view["stderr"], view["stderr_truncated"], view["output_bytes"]) == ("err\n", False, size + 4)
    assert len(http.get(f"/v1/commands/{view['id']}/output?stream=stdout").content) == size


def test_f32_a_killed_command_tells_its_signal(http: httpx2.Client, sandbox: str) -> None:
    command = run(http, sandbox, command="sleep 60", **{"async": True})["id"]
    assert http.post(f"/v1/commands/{command}/signal", json={"signal": 15}).status_code == 200
    until(lambda: http.get(f"/v1/commands/{command}").json()["status"] == "failed")
    view = http.get(f"/v1/commands/{command}").json()
    assert (view["signal"], view["reason"], view["exit_code"]) == (15, "signal", None)
    assert http.post(f"/v1/commands/{command}/signal", json={"signal": 9}).json()["signal"] == 15
    assert http.post(f"/v1/commands/{command}/kill").json()["status"] == "failed"


def test_an_oom_kill_fails_the_sandbox_and_its_commands(server: Server, http: httpx2.Client, sandbox: str) -> None:
    command = run(http, sandbox, command="echo partial; sleep 60", **{"async": True})["id"]
    until(lambda: http.get(f"/v1/commands/{command}").json()["stdout"] == "partial\n")
    server.call(server.provider.die(sandbox.rpartition("/")[2], Cause.OOM))  # type: ignore[arg-type]
    until(lambda: http.get(sandbox).json()["status"] == "failed")
    assert http.get(sandbox).json()["reason"] == "oom"
    view = http.get(f"/v1/commands/{command}").json()
    assert (view["status"], view["reason"], view["stdout"]) == ("failed", "oom", "partial\n")
    answer = http.post(f"{sandbox}/commands", json={"command": "true"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "sandbox_failed")


def test_output_that_is_no_longer_kept_is_told_as_lost(server: Server, http: httpx2.Client, sandbox: str) -> None:
    view = run(http, sandbox, command="echo gone")
    http.delete(sandbox)
    server.provider.forget_command(str(view["id"]))  # type: ignore[arg-type]
    again = http.get(f"/v1/commands/{view['id']}").json()
    assert (again["status"], again["stdout"], again["output_bytes"], again["lost_bytes"]) == ("completed", "", 5, 5)
    assert http.get(f"/v1/commands/{view['id']}/output").status_code == 404
    (_, lost, data), (_, end, _) = follow(http, view["id"], offset=2)
    assert (lost, json.loads(data), end) == ("lost", {"offset": 2, "length": 3}, "end")


def test_200_commands_at_once_over_10_sandboxes(server: Server, http: httpx2.Client) -> None:
    sandboxes = [http.post("/v1/sandboxes", json={}).json()["id"] for _ in range(10)]
    commands = [
        http.post(
            f"/v1/sandboxes/{sandboxes[i % 10]}/commands", json={"command": f"sleep 0.1; echo {i}", "async": True}
        )
        for i in range(200)
    ]
    ids = [answer.json()["id"] for answer in commands]
    until(lambda: not server.call(server.deps.store.busy_sandboxes(sandboxes)))
    assert [http.get(f"/v1/commands/{each}").json()["stdout"] for each in ids] == [f"{i}\n" for i in range(200)]

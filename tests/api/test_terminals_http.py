"""Terminals and commands over WebSockets: bytes both ways, control, offsets, who may, and how they end."""

import json
from contextlib import AbstractAsyncContextManager

import httpx2
import pytest
import ws_client
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from ws_client import Socket

from skerry.api.websocket import MESSAGE_BYTES
from skerry.control.tickets import issue
from skerry.model.account import hash_secret
from skerry.model.ids import CommandId
from skerry.wire.terminals import SUBPROTOCOL, TICKET_PREFIX

from .conftest import Server, new_account
from .test_commands_http import run, until


@pytest.fixture
def sandbox(http: httpx2.Client) -> str:
    return f"/v1/sandboxes/{http.post('/v1/sandboxes', json={}).json()['id']}"


def opened(http: httpx2.Client, sandbox: str, **body: object) -> str:
    """The path of a new terminal."""
    answer = http.post(f"{sandbox}/terminals", json=body)
    assert answer.status_code == 201, answer.text
    assert answer.json()["status"] == "running"
    return answer.headers["location"]


def attached(server: Server, path: str, **query: object) -> AbstractAsyncContextManager[Socket]:
    return ws_client.attached(server.url, path, server.key, **query)  # type: ignore[arg-type]


async def refused(server: Server, path: str, **options: object) -> tuple[int, str]:
    """Status and code of a handshake that does not succeed."""
    with pytest.raises(InvalidStatus) as error:
        async with connect(f"{server.url.replace('http', 'ws', 1)}{path}/ws", **options):  # type: ignore[arg-type]
            pass
    body = error.value.response.body
    return error.value.response.status_code, json.loads(body or b"{}")["error"]["code"]


async def test_bytes_go_both_ways_and_the_end_is_told(server: Server, http: httpx2.Client, sandbox: str) -> None:
    async with attached(server, opened(http, sandbox, argv=["cat"])) as socket:
        await socket.connection.send(b"one \xff\0\n")
        await socket.shows(b"one \xff\0\n")
        await socket.connection.send(b"two")
        await socket.control(eof=True)
        code, _ = await socket.ends()
    assert (socket.shown, code) == (b"one \xff\0\ntwo", 1000)
    start, end = socket.told
    assert start == {"offset": 0}
    assert end["exit"] == {"code": 0, "signal": None, "timed_out": False, "offset": 10, "reason": None, "message": None}


async def test_a_terminal_is_a_shell_with_a_terminals_environment(
    server: Server, http: httpx2.Client, sandbox: str
) -> None:
    path = opened(http, sandbox, cols=132, rows=43, env={"MINE": "1"})  # no bash in the fake: sh
    async with attached(server, path) as socket:
        await socket.connection.send(b"stty size; echo $TERM $MINE $HOME\n")
        await socket.shows(b"43 132\nxterm-256color 1 /workspace\n")
        await socket.control(resize={"cols": 0, "rows": 0})
        until(lambda: http.get(path).json()["cols"] == 80)
        await socket.connection.send(b"stty size; exit 7\n")
        assert (await socket.ends())[0] == 1000
        assert b"24 80\n" in socket.shown
    view = http.get(path).json()
    assert (view["status"], view["exit_code"], view["cols"], view["rows"]) == ("completed", 7, 80, 24)


async def test_two_clients_see_all_and_both_type_and_the_last_size_counts(
    server: Server, http: httpx2.Client, sandbox: str
) -> None:
    path = opened(http, sandbox)
    async with attached(server, path) as one, attached(server, path) as two:
        await one.connection.send(b"echo from-one\n")
        await two.shows(b"from-one\n")
        await two.connection.send(b"echo from-two\n")
        await one.shows(b"from-one\nfrom-two\n")
        await one.control(resize={"cols": 100, "rows": 30})
        until(lambda: http.get(path).json()["cols"] == 100)
        assert http.post(f"{path}/resize", json={"cols": 90, "rows": 20}).json()["rows"] == 20
        await one.connection.send(b"stty size\n")
        await two.shows(b"20 90\n")
        await two.connection.close()
        await one.connection.send(b"echo alone\n")
        await one.shows(b"alone\n")


async def test_a_client_comes_back_by_its_offset(server: Server, http: httpx2.Client, sandbox: str) -> None:
    path = opened(http, sandbox)
    async with attached(server, path) as socket:
        await socket.connection.send(b"echo one\n")
        await socket.shows(b"one\n")
    async with attached(server, path, offset=2) as socket:
        await socket.connection.send(b"echo two\n")
        await socket.shows(b"e\ntwo\n")
        assert (socket.told, socket.shown) == ([{"offset": 2}], b"e\ntwo\n")
    http.delete(path)
    async with attached(server, path) as socket:  # ended: what it showed, and the end
        assert (await socket.ends())[0] == 1000
    assert socket.shown == b"one\ntwo\n"
    assert socket.told[-1]["exit"]["signal"] == 9


async def test_terminals_are_listed_closed_and_make_no_sandbox_active(
    server: Server, http: httpx2.Client, sandbox: str
) -> None:
    one, two = opened(http, sandbox, name="build ✓"), opened(http, sandbox, command="cat")
    run(http, sandbox, argv=["cat"], stdin_stream=True, timeout_seconds=30, **{"async": True})
    listed = http.get(f"{sandbox}/terminals").json()["data"]
    assert [(f"{sandbox}/terminals/{each['id']}", each["name"]) for each in listed] == [(two, None), (one, "build ✓")]
    for _ in range(2):
        assert http.delete(two).status_code == 204
    until(lambda: http.get(two).json()["status"] == "failed")
    assert [each["name"] for each in http.get(f"{sandbox}/terminals").json()["data"]] == ["build ✓"]
    assert len(http.get(f"{sandbox}/terminals?ended=true").json()["data"]) == 2
    assert len(http.get(f"{sandbox}/terminals?ended=true&limit=1").json()["data"]) == 1


def test_f6_an_open_terminal_leaves_a_sandbox_ready(http: httpx2.Client, sandbox: str) -> None:
    opened(http, sandbox)
    assert http.get(sandbox).json()["status"] == "ready"
    run(http, sandbox, argv=["cat"], stdin_stream=True, timeout_seconds=30, **{"async": True})
    assert http.get(sandbox).json()["status"] == "active"


def test_a_terminal_that_cannot_start_is_failed_with_its_reason(http: httpx2.Client, sandbox: str) -> None:
    view = http.post(f"{sandbox}/terminals", json={"argv": ["no-such-program"]}).json()
    assert (view["status"], view["reason"]) == ("failed", "not_started")
    assert "no-such-program" in view["message"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"argv": ["cat"], "command": "cat"}, "body"),
        ({"cols": -1}, "cols"),
        ({"rows": 10_001}, "rows"),
        ({"name": "a\nb"}, "name"),
        ({"working_directory": "relative"}, "working_directory"),
        ({"shell": "bash"}, "shell"),
    ],
)
def test_a_wrong_wish_is_refused_by_name(
    http: httpx2.Client, sandbox: str, body: dict[str, object], field: str
) -> None:
    answer = http.post(f"{sandbox}/terminals", json=body)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)


@pytest.mark.parametrize(
    "text", ["nonsense", "{}", '{"resize":{"cols":1}}', '{"eof":false}', '{"eof":true,"signal":2}']
)
async def test_a_wrong_control_message_ends_the_socket_and_not_the_terminal(
    server: Server, http: httpx2.Client, sandbox: str, text: str
) -> None:
    path = opened(http, sandbox)
    async with attached(server, path) as socket:
        await socket.connection.send(text)
        code, reason = await socket.ends()
    assert code == 1008
    assert reason is not None
    assert "control message" in reason
    assert socket.told[-1]["error"]["code"] == "invalid"
    assert http.get(path).json()["status"] == "running"


async def test_messages_are_bounded(server: Server, http: httpx2.Client, sandbox: str) -> None:
    path = opened(http, sandbox, argv=["cat"])
    async with attached(server, path) as socket:
        await socket.connection.send(b"x" * (MESSAGE_BYTES + 1))
        assert (await socket.ends())[0] == 1009
    async with attached(server, path) as socket:
        # Each part is empty: only their number can end this.
        with pytest.raises(ConnectionClosed):
            await socket.connection.send(b"" for _ in range(100_000))
    assert http.get(path).json()["status"] == "running"


async def test_a_destroyed_sandbox_ends_its_terminals_with_a_code_of_its_own(
    server: Server, http: httpx2.Client, sandbox: str
) -> None:
    async with attached(server, opened(http, sandbox)) as socket:
        await socket.connection.send(b"echo last\n")
        await socket.shows(b"last\n")
        http.delete(sandbox)
        assert (await socket.ends())[0] == 4410
    assert socket.told[-1]["exit"]["reason"] == "sandbox_gone"


@pytest.mark.parametrize("signal", ["TERM", "SIGTERM", "sigterm", "15", 15])
async def test_f32_a_signal_has_a_number_or_a_name(
    server: Server, http: httpx2.Client, sandbox: str, signal: object
) -> None:
    path = opened(http, sandbox)
    async with attached(server, path) as socket:
        await socket.control(signal=signal)
        await socket.ends()
    assert socket.told[-1]["exit"]["signal"] == 15
    command = run(http, sandbox, argv=["sleep", "60"], **{"async": True})["id"]
    http.post(f"/v1/commands/{command}/signal", json={"signal": signal}).raise_for_status()
    until(lambda: http.get(f"/v1/commands/{command}").json()["signal"] == 15)


@pytest.mark.parametrize("signal", [0, 65, "SIGNOPE", "", True, 1.5, None, "9" * 40, []])
def test_a_signal_that_does_not_exist_is_refused(http: httpx2.Client, sandbox: str, signal: object) -> None:
    command = run(http, sandbox, command="true")["id"]
    answer = http.post(f"/v1/commands/{command}/signal", json={"signal": signal})
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "signal")


async def test_without_a_key_401_and_for_another_account_404_before_anything_opens(
    server: Server, http: httpx2.Client, sandbox: str
) -> None:
    terminal = opened(http, sandbox, argv=["cat"])
    command = f"/v1/commands/{terminal.rpartition('/')[2]}"
    _, other = server.call(new_account(server.deps))
    for path in (terminal, command):
        assert await refused(server, path) == (401, "unauthorized")
        wrong = {"Authorization": "Bearer skerry_live_wrong"}
        assert await refused(server, path, additional_headers=wrong) == (401, "unauthorized")
        assert await refused(server, path, additional_headers={"X-API-Key": other}) == (404, "not_found")
    mine = {"X-API-Key": server.key}
    unknown = terminal[:-5] + "zzzzz"
    assert await refused(server, unknown, additional_headers=mine) == (404, "not_found")
    another = f"/v1/sandboxes/{http.post('/v1/sandboxes', json={}).json()['id']}"
    elsewhere = terminal.replace(sandbox, another)
    assert await refused(server, elsewhere, additional_headers=mine) == (404, "not_found")
    for verb, suffix in (("GET", ""), ("DELETE", ""), ("POST", "/ticket"), ("POST", "/resize")):
        body = {"cols": 1, "rows": 1} if suffix == "/resize" else None
        headers = {"Authorization": f"Bearer {other}"}
        assert http.request(verb, terminal + suffix, json=body, headers=headers).status_code == 404
    assert http.get(terminal).json()["status"] == "running"


async def test_a_ticket_opens_its_terminal_once(server: Server, http: httpx2.Client, sandbox: str) -> None:
    path, other = opened(http, sandbox), opened(http, sandbox)
    url = server.url.replace("http", "ws", 1)

    def ticket(of: str) -> list[str]:
        return [SUBPROTOCOL, TICKET_PREFIX + http.post(f"{of}/ticket").json()["ticket"]]

    offered = ticket(path)
    origin = {"Origin": "https://pages.example"}
    async with connect(f"{url}{path}/ws", subprotocols=offered, additional_headers=origin) as connection:  # type: ignore[arg-type]
        assert connection.subprotocol == SUBPROTOCOL  # and never the ticket
        await connection.send(b"echo by-ticket\n")
        await Socket(connection).shows(b"by-ticket\n")
    assert await refused(server, path, subprotocols=offered) == (401, "unauthorized")
    assert await refused(server, path, subprotocols=ticket(other)) == (404, "not_found")
    assert await refused(server, path, subprotocols=[TICKET_PREFIX + "x"]) == (401, "unauthorized")
    assert http.get(path, headers={"Authorization": f"Bearer {ticket(path)[1]}"}).status_code == 401


async def test_a_deleted_key_ends_the_sockets_and_tickets_that_may_be_its_own(
    server: Server, http: httpx2.Client, sandbox: str
) -> None:
    path = opened(http, sandbox)
    stolen = http.post("/v1/keys", json={"name": "stolen"}).json()
    theirs = {"headers": {"Authorization": f"Bearer {stolen['key']}"}}
    tickets = [[TICKET_PREFIX + http.post(f"{path}/ticket", **theirs).json()["ticket"]] for _ in range(2)]
    address = f"{server.url.replace('http', 'ws', 1)}{path}/ws"
    async with (
        connect(address, additional_headers=theirs["headers"], subprotocols=[SUBPROTOCOL]) as by_key,  # type: ignore[list-item]
        connect(address, subprotocols=tickets[0]) as by_ticket,  # type: ignore[arg-type]
    ):
        for connection in (by_key, by_ticket):
            await connection.send(b"echo here\n")
            await Socket(connection).shows(b"here\n")
        assert http.delete(f"/v1/keys/{stolen['id']}").status_code == 204
        for connection in (by_key, by_ticket):
            code, reason = await Socket(connection).ends()
            assert code == 1013
            assert reason is not None and "key" in reason
    assert await refused(server, path, subprotocols=tickets[1]) == (401, "unauthorized")
    assert http.get(path).json()["status"] == "running"


async def test_a_ticket_is_kept_as_a_hash_and_for_half_a_minute(
    server: Server, http: httpx2.Client, sandbox: str
) -> None:
    terminal = opened(http, sandbox).rpartition("/")[2]
    command = server.call(server.deps.store.get_command(CommandId(terminal)))
    issued = server.call(issue(server.deps, command))
    kept = server.call(server.deps.store.take_ticket(hash_secret(issued.secret)))
    assert kept is not None
    assert issued.secret.encode() not in kept.secret_hash
    assert 0 < (kept.expires_at - server.deps.clock.now()).total_seconds() <= 30


async def test_a_commands_socket_tells_its_channels_apart(server: Server, http: httpx2.Client, sandbox: str) -> None:
    command = run(http, sandbox, command="echo out; echo err >&2; cat", stdin_stream=True, **{"async": True})["id"]
    async with attached(server, f"/v1/commands/{command}") as socket:
        await socket.shows(b"\x01out\n\x02err\n")
        await socket.connection.send(b"in")
        await socket.control(eof=True)
        assert (await socket.ends())[0] == 1000
    assert socket.shown == b"\x01out\n\x02err\n\x01in"


def test_stdin_is_sent_while_a_command_runs(http: httpx2.Client, sandbox: str) -> None:
    command = run(http, sandbox, argv=["cat"], stdin_stream=True, **{"async": True})["id"]
    data = bytes(range(256)) * 4096
    path = f"/v1/commands/{command}/stdin"
    assert http.post(path, content=data).json() == {"written_bytes": len(data)}
    assert (
        http.post(path, content=iter([data, b"", b"end"]), params={"eof": 1}).json()["written_bytes"] == len(data) + 3
    )
    until(lambda: http.get(f"/v1/commands/{command}").json()["status"] == "completed")
    assert http.get(f"/v1/commands/{command}/output").content == data + data + b"end"
    answer = http.post(path, content=b"late")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "command_ended")


def test_a_command_that_takes_no_input_refuses_it(http: httpx2.Client, sandbox: str) -> None:
    command = run(http, sandbox, argv=["sleep", "60"], **{"async": True})["id"]
    answer = http.post(f"/v1/commands/{command}/stdin", content=b"x")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "no_input")
    http.post(f"/v1/commands/{command}/kill")


@pytest.mark.parametrize("body", [{"stdin": "x", "async": True}, {}])
def test_streamed_stdin_goes_with_async_alone(http: httpx2.Client, sandbox: str, body: dict[str, object]) -> None:
    answer = http.post(f"{sandbox}/commands", json={"argv": ["cat"], "stdin_stream": True, **body})
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "body")
    assert "stdin_stream" in answer.json()["error"]["message"]


async def test_a_node_that_goes_away_is_waited_for_and_input_meanwhile_is_refused(
    server: Server, http: httpx2.Client, sandbox: str
) -> None:
    path = opened(http, sandbox)
    async with attached(server, path) as socket:
        await socket.connection.send(b"echo one\n")
        await socket.shows(b"one\n")
        server.provider.down = True
        await socket.connection.send(b"echo lost\n")
        assert (await socket.ends())[0] == 1013
        assert socket.told[-1]["error"]["code"] == "unavailable"
    server.provider.down = False
    async with attached(server, path, offset=4) as socket:
        await socket.connection.send(b"echo two\n")
        await socket.shows(b"two\n")

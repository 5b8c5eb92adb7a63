"""Terminals over WebSockets on real sandboxes: what a console does, slow clients, several, and servers that die."""

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx2
import pytest
import ws_client
from acceptance.marks import on_both
from acceptance.servers import Server, eventually
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus
from ws_client import Socket

from skerry import Sandbox

MIB = 1 << 20


@pytest.fixture
def http(server: Server) -> Iterator[httpx2.Client]:
    headers = {"Authorization": f"Bearer {server.key}"}
    with httpx2.Client(base_url=server.url, headers=headers, timeout=60) as client:
        yield client


def opened(http: httpx2.Client, sandbox: Sandbox, **body: object) -> str:
    """The path of a new terminal."""
    answer = http.post(f"/v1/sandboxes/{sandbox.id}/terminals", json=body)
    assert answer.status_code == 201, answer.text
    return answer.headers["location"]


def started(http: httpx2.Client, sandbox: Sandbox, *argv: str, **body: object) -> str:
    """The path of a new command that takes input."""
    body = {"argv": argv, "stdin_stream": True, "async": True, **body}
    answer = http.post(f"/v1/sandboxes/{sandbox.id}/commands", json=body)
    assert answer.status_code == 202, answer.text
    return f"/v1/commands/{answer.json()['id']}"


def attached(server: Server, path: str, **query: object) -> AbstractAsyncContextManager[Socket]:
    return ws_client.attached(server.url, path, server.key, **query)  # pyright: ignore[reportArgumentType]


WATCHER = """
import os, signal, sys
def told(*_):
    size = os.get_terminal_size(0)
    print(f"told {size.columns}x{size.lines}", flush=True)
signal.signal(signal.SIGWINCH, told)
size = os.get_terminal_size(0)
print(f"opened {size.columns}x{size.lines}", flush=True)
for line in sys.stdin:
    os.system(line)
"""


@on_both
async def test_a_terminal_has_the_size_it_was_given_and_hears_of_a_new_one(
    server: Server, http: httpx2.Client, sandbox: Sandbox
) -> None:
    path = opened(http, sandbox, argv=["python3", "-c", WATCHER], cols=132, rows=43)
    async with attached(server, path) as terminal:
        await terminal.shows_next(b"opened 132x43")
        await terminal.types("stty size\n")
        await terminal.shows_next(b"43 132")
        await terminal.control(resize={"cols": 80, "rows": 24})
        await terminal.shows_next(b"told 80x24")
        http.post(f"{path}/resize", json={"cols": 99, "rows": 33}).raise_for_status()
        await terminal.shows_next(b"told 99x33")


@on_both
async def test_a_size_of_nothing_is_80_by_24(server: Server, http: httpx2.Client, sandbox: Sandbox) -> None:
    async with attached(server, opened(http, sandbox, argv=["sh"])) as terminal:
        await terminal.types("stty size\n")
        await terminal.shows_next(b"24 80")
        await terminal.control(resize={"cols": 200, "rows": 50})
        await terminal.types("stty size\n")
        await terminal.shows_next(b"50 200")
        await terminal.control(resize={"cols": 0, "rows": 0})
        await terminal.types("stty size\n")
        await terminal.shows_next(b"24 80")


@on_both
async def test_a_terminal_is_bash_on_one_controlling_terminal(
    server: Server, http: httpx2.Client, sandbox: Sandbox
) -> None:
    """Job control, interrupt and end of file work as at a console; the exit code is the shell's."""
    async with attached(server, opened(http, sandbox)) as terminal:
        await terminal.types("echo $0-$TERM-$PWD-$(id -u)\n")
        await terminal.shows_next(b"bash-xterm-256color-/workspace-0\r\n")
        await terminal.types("tty; test -t 0 && test -t 1 && test -t 2 && echo all-$((1+1))\n")
        await terminal.shows_next(b"/dev/pts/")
        await terminal.shows_next(b"all-2")
        await terminal.types("sh -c 'echo ready-$((3+3)); exec sleep 100'\n")
        await terminal.shows_next(b"ready-6")
        await terminal.types("\x03")
        await terminal.types("echo again-$((2+3))\n")
        await terminal.shows_next(b"again-5")
        await terminal.types("(exit 7)\n\x04")
        assert (await terminal.ends())[0] == 1000
    assert (terminal.exit["code"], terminal.exit["signal"]) == (7, None)


@on_both
async def test_closing_a_terminal_ends_all_that_runs_in_it(
    server: Server, http: httpx2.Client, sandbox: Sandbox
) -> None:
    path = opened(http, sandbox)
    async with attached(server, path) as terminal:
        await terminal.types("setsid sleep 4242 & (trap '' HUP; exec sleep 4243) & echo two-$((1+1))\n")
        await terminal.shows_next(b"two-2")
        running = (
            "ls /proc/*/cmdline | xargs -n1 sh -c 'tr \"\\0\" \" \" < $0 2>/dev/null; echo' | grep -c '^sleep 424'"
        )
        eventually("both run", lambda: sandbox.commands.run(running).stdout.strip() == "2")
        assert http.delete(path).status_code == 204
        assert (await terminal.ends())[0] == 1000
    assert terminal.exit["signal"] == 9
    assert sandbox.commands.run(running).stdout.strip() == "0"


@on_both
async def test_two_clients_on_one_terminal_see_all_and_both_type(
    server: Server, http: httpx2.Client, sandbox: Sandbox
) -> None:
    path = opened(http, sandbox)
    async with attached(server, path) as one, attached(server, path) as two:
        await one.types("echo one-$((1+1))\n")
        await two.shows(b"one-2\r\n")
        await two.types("echo two-$((1+2))\n")
        await one.shows(b"two-3\r\n")
        await two.shows(b"two-3\r\n")
        assert one.shown.startswith(two.shown) or two.shown.startswith(one.shown)
    async with attached(server, path) as three:  # the scrollback is there for whoever comes later
        await three.shows(b"two-3\r\n")


FLOOD_MIB = 160
FLOOD = f"stty -opost; yes 0123456789abcde | head -c {FLOOD_MIB * MIB}; echo flooded-$((1+1)); read x; exit 3"


@pytest.mark.parametrize("runtime", ["crun"], indirect=True)
async def test_a_slow_client_holds_up_nobody_and_is_told_what_it_missed(
    server: Server, http: httpx2.Client, sandbox: Sandbox
) -> None:
    """More is shown than is kept, while one of two clients reads nothing. Memory stays flat."""
    async with attached(server, path := opened(http, sandbox), slow=True) as slow:
        await slow.shows(b"#")
        async with attached(server, path) as quick:
            before = {part: server.memory_of(part) for part in ("api", "node")}
            await quick.types(FLOOD + "\n")
            while b"flooded-2" not in quick.shown[-100:]:
                quick.shown = quick.shown[-100:]
                await quick.next()
            for part, then in before.items():
                assert (server.memory_of(part) - then) / MIB < 40, part
            await quick.types("\n")
            assert (await quick.ends())[0] == 1000
        position = len(slow.shown)
        while not slow.told or "exit" not in slow.told[-1]:
            slow.shown = b""
            before_it = len(slow.told)
            await slow.next()
            position += len(slow.shown)
            for told in slow.told[before_it:]:
                if "lost" in told:
                    assert told["lost"]["offset"] == position
                    position += told["lost"]["length"]
    assert sum(told["lost"]["length"] for told in slow.told if "lost" in told) > 50 * MIB
    assert (slow.exit["code"], slow.exit["offset"]) == (3, position)
    assert position > FLOOD_MIB * MIB


@pytest.mark.parametrize("victim", ["api", "node", "supervisor"])
@on_both
async def test_f34_a_client_comes_back_after_a_kill_9_and_has_missed_nothing(
    server: Server, http: httpx2.Client, sandbox: Sandbox, victim: str
) -> None:
    """A shell that counts goes on meanwhile; the parts that were seen join without gap or overlap."""
    path = opened(http, sandbox, argv=["sh"])
    shown = b""
    async with attached(server, path) as terminal:
        await terminal.types("stty -echo; for i in $(seq 1 300); do echo line-$i; sleep 0.01; done; echo o-$((1+1))\n")
        await terminal.shows(b"line-20\r\n")
        old = server.kill(victim)
        if victim == "supervisor":
            server.start()
        try:
            while b"o-2" not in terminal.shown:
                await terminal.next()
        except ConnectionClosed:
            assert victim != "node", "a node that restarts is waited for"
        shown += terminal.shown
    if victim != "supervisor":
        server.restarted(victim, old)
    async with _patiently(server, path, offset=len(shown)) as terminal:
        await terminal.types("echo back-$((2+2)); exit 9\n")
        assert (await terminal.ends())[0] == 1000
    shown += terminal.shown
    assert terminal.exit["code"] == 9
    assert b"".join(b"line-%d\r\n" % i for i in range(1, 301)) in shown
    assert b"back-4" in shown
    assert not [told for told in terminal.told if "lost" in told]


def _patiently(server: Server, path: str, **query: object) -> AbstractAsyncContextManager[Socket]:
    class Retrying(AbstractAsyncContextManager[Socket]):
        async def __aenter__(self) -> Socket:
            for _ in range(100):
                self._inner = attached(server, path, **query)
                try:
                    return await self._inner.__aenter__()
                except (OSError, InvalidStatus, InvalidMessage):
                    await asyncio.sleep(0.1)
            raise AssertionError("the server does not come back")

        async def __aexit__(self, *error: object) -> None:
            await self._inner.__aexit__(*error)  # pyright: ignore[reportArgumentType]

    return Retrying()


@on_both
async def test_f34_a_destroyed_sandbox_ends_its_terminals_and_says_so(
    server: Server, http: httpx2.Client, sandbox: Sandbox
) -> None:
    async with attached(server, opened(http, sandbox)) as terminal:
        await terminal.types("echo last-$((1+1))\n")
        await terminal.shows(b"last-2")
        await asyncio.to_thread(sandbox.destroy)
        assert (await terminal.ends())[0] == 4410
    assert (terminal.exit["code"], terminal.exit["reason"]) == (None, "sandbox_gone")


PIPED = {"crun": 200 * MIB, "runsc": 40 * MIB}


@on_both
async def test_a_pipe_through_a_socket_is_byte_exact_both_ways_with_flat_memory(
    server: Server, http: httpx2.Client, sandbox: Sandbox, runtime: str
) -> None:
    block, size = os.urandom(MIB), PIPED[runtime]
    command = started(http, sandbox, "cat", keep="unread")
    before = {part: server.memory_of(part) for part in ("api", "node")}
    async with attached(server, command) as socket:

        async def send() -> None:
            for _ in range(size // MIB):
                for at in range(0, MIB, 65_536):
                    await socket.connection.send(block[at : at + 65_536])
            await socket.control(eof=True)

        sending = asyncio.ensure_future(send())
        position = 0
        while True:
            message = await asyncio.wait_for(socket.connection.recv(), 60)
            if isinstance(message, str):
                if '"exit"' in message:
                    break
                assert message == '{"offset": 0}'
                continue
            assert message[0] == 1
            _check(message[1:], position, block)
            position += len(message) - 1
        await sending
    assert position == size
    for part, then in before.items():
        assert (server.memory_of(part) - then) / MIB < 40, part


def _check(data: bytes, position: int, block: bytes) -> None:
    while data:
        at = position % len(block)
        part = data[: len(block) - at]
        assert part == block[at : at + len(part)], f"wrong bytes near {position}"
        position, data = position + len(part), data[len(part) :]


@on_both
def test_a_pipe_by_http_is_byte_exact_both_ways_with_flat_memory(
    server: Server, http: httpx2.Client, sandbox: Sandbox, runtime: str, tmp_path: Path
) -> None:
    block, size = os.urandom(MIB), PIPED[runtime]
    command = started(http, sandbox, "sh", "-c", "cat > copy; echo copied")
    before = {part: server.memory_of(part) for part in ("api", "node")}
    body = (block for _ in range(size // MIB))
    assert http.post(f"{command}/stdin?eof=1", content=body).json() == {"written_bytes": size}
    eventually("it ends", lambda: http.get(command).json()["status"] == "completed", within_s=60)
    for part, then in before.items():
        assert (server.memory_of(part) - then) / MIB < 40, part
    position = 0
    with sandbox.files.read_stream("copy") as chunks:
        for chunk in chunks:
            _check(chunk, position, block)
            position += len(chunk)
    assert position == size


@pytest.mark.parametrize("runtime", ["crun"], indirect=True)
def test_input_waits_for_a_command_that_reads_slowly(server: Server, http: httpx2.Client, sandbox: Sandbox) -> None:
    """The upload goes at the command's pace, in flat memory, and others are not held up."""
    sandbox.commands.run("mkfifo pipe").check()
    command = started(http, sandbox, "sh", "-c", "read go < pipe; cat | wc -c")
    before = server.memory_of("api")
    answers: list[httpx2.Response] = []
    body = (bytes(MIB) for _ in range(50))
    sending = threading.Thread(target=lambda: answers.append(http.post(f"{command}/stdin?eof=1", content=body)))
    sending.start()
    try:
        assert sandbox.commands.run(["echo", "beside"]).stdout == "beside\n"
        sending.join(1)
        assert sending.is_alive()
        assert (server.memory_of("api") - before) / MIB < 20
    finally:
        sandbox.commands.run("echo go > pipe")
        sending.join(30)
    assert answers[0].json() == {"written_bytes": 50 * MIB}
    eventually("it ends", lambda: http.get(command).json()["status"] == "completed")
    assert http.get(command).json()["stdout"].strip() == str(50 * MIB)

"""The node's socket, both ends: who may call, errors, cancellation, back pressure."""

import asyncio
import gc
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from skerry.guest import calls
from skerry.guest.frames import FrameType, encode
from skerry.guest.shapes import Json, error_from, error_to
from skerry.model import errors
from skerry.model.errors import (
    DeadlineExceeded,
    GuestError,
    Invalid,
    ProtocolError,
    Refused,
    SandboxGone,
    SkerryError,
    TooBusy,
    Unavailable,
)
from skerry.node.rpc import Call, Handler, Server
from skerry.providers.node_client import NodeClient


class Ended(Exception):
    """Ends the server's task group from inside."""


class Ops:
    """A few ops, and what became of their calls."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []
        self.produced = 0
        self.taken = 0
        self.blocked = asyncio.Event()

    def table(self) -> dict[str, Handler]:
        return {
            "echo": self.echo,
            "wait": self.wait,
            "fail": self.fail,
            "crash": self.crash,
            "flood": self.flood,
            "sink": self.sink,
            "refuse": self.refuse,
            "stuck": self.stuck,
        }

    async def echo(self, call: Call) -> Json:
        return {"got": call.ask["text"]}

    async def wait(self, call: Call) -> None:
        try:
            await call.event({"waiting": True})
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.append("wait")
            raise

    async def fail(self, call: Call) -> None:
        raise error_from(call.ask["error"])

    async def crash(self, call: Call) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._crash())

    async def _crash(self) -> None:
        raise ZeroDivisionError("a bug")

    async def flood(self, call: Call) -> None:
        while True:
            await call.data(b"x" * 100_000, 2)
            self.produced += 100_000

    async def sink(self, call: Call) -> Json:
        while data := await call.receive():
            self.taken += len(data)
        return {"taken": self.taken}

    async def refuse(self, call: Call) -> None:
        await call.receive()
        raise GuestError("no_space", "full", errno=28)

    async def stuck(self, call: Call) -> None:
        """Reads nothing, ever."""
        try:
            self.blocked.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.append("stuck")
            raise


@asynccontextmanager
async def serving_table(
    path: Path, table: dict[str, Handler], uids: frozenset[int] = frozenset({0})
) -> AsyncIterator[Server]:
    server = Server(path, table, uids, os.getgid())
    try:
        async with asyncio.TaskGroup() as group:
            await server.listen(group)
            try:
                yield server
            finally:
                await server.close()
            raise Ended
    except* Ended:
        pass


def serving(path: Path, ops: Ops, uids: frozenset[int] = frozenset({0})) -> AbstractAsyncContextManager[Server]:
    return serving_table(path, ops.table(), uids)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "n.sock"


@pytest.fixture
async def ops(path: Path) -> AsyncIterator[Ops]:
    ops = Ops()
    async with serving(path, ops):
        yield ops


@pytest.fixture
async def client(path: Path) -> AsyncIterator[NodeClient]:
    client = NodeClient(path)
    yield client
    await client.close()


def open_files() -> int:
    gc.collect()  # what earlier tests left to be closed is no matter of ours
    return len(list(Path("/proc/self/fd").iterdir()))


async def until(condition: object) -> None:
    async with asyncio.timeout(15):
        while not condition():  # type: ignore[operator]  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)


async def test_calls_follow_each_other_on_one_connection(client: NodeClient, ops: Ops) -> None:
    before = open_files()
    for text in ("one", "two \udc80 \U0001f600", "x" * 100_000):
        assert await client.ask("echo", {"text": text}) == {"got": text}
    assert open_files() == before + 2


@pytest.mark.parametrize(
    "error",
    [
        *(
            kind("why", code="special", field="name")
            for kind in (
                errors.Invalid,
                errors.Unauthorized,
                errors.NotFound,
                errors.Conflict,
                errors.LimitExceeded,
                errors.Refused,
                errors.Unavailable,
                errors.ProtocolError,
                errors.DeadlineExceeded,
            )
        ),
        TooBusy("later", retry_after_s=7.5, code="disk_full"),
        SandboxGone("dead", cause="oom"),
        GuestError("not_found", "no such file", errno=2),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_error_arrives_as_it_was_raised(client: NodeClient, ops: Ops, error: SkerryError) -> None:
    with pytest.raises(type(error)) as caught:
        await client.ask("fail", {"error": error_to(error)})
    assert type(caught.value) is type(error)
    assert vars(caught.value) == vars(error)
    assert (await client.ask("echo", {"text": "and on"}))["got"] == "and on"


async def test_every_error_class_of_ours_has_a_way_back() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SkerryError)]
    for kind in kinds:
        made = kind("code", "text") if kind is GuestError else kind("text")
        assert type(error_from(error_to(made))) is kind


async def test_a_bug_in_an_op_is_told_and_the_node_goes_on(client: NodeClient, ops: Ops) -> None:
    with pytest.raises(SkerryError) as caught:
        await client.ask("crash", {})
    assert caught.value.code == "internal" and "ZeroDivisionError" in caught.value.message
    assert (await client.ask("echo", {"text": "on"}))["got"] == "on"


async def test_an_unknown_op_is_invalid(client: NodeClient, ops: Ops) -> None:
    with pytest.raises(Invalid):
        await client.ask("no-such", {})


async def test_closing_a_call_cancels_it(client: NodeClient, ops: Ops) -> None:
    async with await client.open("wait", {}) as call:
        await call.event()
    await until(lambda: ops.cancelled == ["wait"])


async def test_a_deadline_cancels_the_call(client: NodeClient, ops: Ops) -> None:
    with pytest.raises(DeadlineExceeded):
        await client.ask("stuck", {}, deadline_s=0.05)
    await until(lambda: ops.cancelled == ["stuck"])


async def test_a_client_that_does_not_read_stops_the_producer(client: NodeClient, ops: Ops) -> None:
    async with await client.open("flood", {}) as call:
        await until(lambda: ops.produced > 0)
        produced = -1
        while produced != ops.produced:
            produced = ops.produced
            await asyncio.sleep(0.1)
        assert produced < 4_000_000
        got = 0
        while got < 10_000_000:
            piece = await call.next(5)
            assert isinstance(piece, tuple) and piece[0] == 2
            got += len(piece[1])


async def test_a_node_that_does_not_read_stops_the_sender_and_still_sees_it_go(
    client: NodeClient, ops: Ops, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_HANGUP_PROBE_S", 0.05)
    call = await client.open("stuck", {})
    await ops.blocked.wait()
    sent = 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            while True:
                await call.send(b"y" * 100_000)
                sent += 100_000
    assert sent < 5_000_000
    call.close()
    await until(lambda: ops.cancelled == ["stuck"])


async def test_data_goes_up_in_pieces_and_is_whole(client: NodeClient, ops: Ops) -> None:
    async with await client.open("sink", {}) as call:
        for size in (1, 11, 12, 13, 65_536, 131_072, 131_073, 1_000_000):
            await call.send(b"z" * size)
        await call.send_eof()
        assert (await call.result())["taken"] == 1 + 11 + 12 + 13 + 65_536 + 131_072 + 131_073 + 1_000_000


async def test_a_call_that_fails_while_data_is_sent_tells_why(client: NodeClient, ops: Ops) -> None:
    async with await client.open("refuse", {}) as call:
        while not call.answered:
            await call.send(b"w" * 200_000)
            await asyncio.sleep(0)
        with pytest.raises(GuestError) as caught:
            await call.result()
    assert (caught.value.guest_code, caught.value.errno) == ("no_space", 28)
    assert (await client.ask("echo", {"text": "same connection"}))["got"] == "same connection"


async def test_a_node_that_is_not_there_is_unavailable_and_found_again(path: Path, client: NodeClient) -> None:
    with pytest.raises(Unavailable):
        await client.ask("echo", {"text": ""})
    for _ in range(2):
        async with serving(path, Ops()):
            assert (await client.ask("echo", {"text": "here"}))["got"] == "here"
        with pytest.raises(Unavailable):
            await client.ask("echo", {"text": ""})


async def test_a_node_that_goes_away_in_a_call_is_unavailable(path: Path, client: NodeClient) -> None:
    async with serving(path, Ops()):
        call = await client.open("wait", {})
        await call.event()
    with pytest.raises(Unavailable):
        await call.next(5)


async def test_hundreds_of_calls_at_once(client: NodeClient, ops: Ops) -> None:
    told = await asyncio.gather(*(client.ask("echo", {"text": str(number)}) for number in range(900)))
    assert [one["got"] for one in told] == [str(number) for number in range(900)]


async def test_another_user_is_refused_whatever_the_socket_s_mode(path: Path, ops: Ops) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    script = (
        "import os, socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
        "try: print(s.recv(1))\n"
        "except ConnectionResetError: print(b'')"
    )
    # The directories above are the test runner's own: a descriptor of the socket's directory is a way around them.
    os.chmod(path, 0o666)  # noqa: PTH101 - one quick call
    os.chmod(path.parent, 0o711)  # noqa: PTH101
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        argv = [sys.executable, "-c", script, f"/proc/self/fd/{directory}/{path.name}"]
        run = asyncio.to_thread(
            subprocess.run, argv, pass_fds=(directory,), user=65_534, capture_output=True, text=True, timeout=20
        )
        done = await run
    finally:
        os.close(directory)
    assert done.stdout == "b''\n", done.stderr


async def test_nonsense_from_a_client_ends_its_connection_alone(path: Path, ops: Ops, client: NodeClient) -> None:
    for nonsense in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\0" * 12):
        raw = socket.socket(socket.AF_UNIX)
        raw.setblocking(False)
        raw.connect(str(path))
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(raw, nonsense)
        assert await asyncio.wait_for(loop.sock_recv(raw, 100), 5) == b""
        raw.close()
    assert (await client.ask("echo", {"text": "on"}))["got"] == "on"


async def test_a_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    server = Server(tmp_path / ("d" * 100) / "n.sock", {}, frozenset({0}), 0)
    async with asyncio.TaskGroup() as group:
        with pytest.raises(Refused):
            await server.listen(group)


async def test_a_connection_closes_after_a_frame_without_a_payload() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_unix_connection(lambda: calls.CallConnection(calls.scratch()), sock=ours)
    await connection.send(FrameType.EOF)
    connection.close()
    async with asyncio.timeout(5):
        assert await loop.sock_recv(theirs, 64) == encode(FrameType.EOF, 1)
        assert await loop.sock_recv(theirs, 64) == b"", "the socket is closed, not merely about to be"
    theirs.close()


async def test_bytes_are_parsed_alike_however_they_are_cut() -> None:
    told = [
        (FrameType.OPEN, 0, b'{"op":"x"}'),
        (FrameType.DATA, 2, b"abc" * 50),
        (FrameType.EVENT, 0, b"{}"),
        (FrameType.DATA, 1, b"d"),
        (FrameType.CLOSE, 0, b"{}"),
    ]
    whole = b"".join(encode(type, 1, payload, channel) for type, channel, payload in told)
    for step in (1, 5, 12, 13, 64, len(whole)):
        buffer = calls.scratch()
        connection = calls.CallConnection(buffer)
        got: list[tuple[int, int, bytes]] = []
        for at in range(0, len(whole), step):
            part = whole[at : at + step]
            buffer[: len(part)] = part
            connection.buffer_updated(len(part))
            while connection._queue:  # pyright: ignore[reportPrivateUsage]
                piece = await connection.receive()
                assert piece is not None
                if got and piece[0] == FrameType.DATA and got[-1][:2] == piece[:2]:
                    got[-1] = (*piece[:2], got[-1][2] + piece[2])
                else:
                    got.append(piece)
        assert got == told
    with pytest.raises(ProtocolError):
        connection._parse(memoryview(b"\xff" * 12))  # pyright: ignore[reportPrivateUsage]

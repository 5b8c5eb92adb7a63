"""Who is taken for dead: a client that answers nothing, and not one that is slow or has to wait."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.websockets import WebSocket
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from skerry.api.websocket import WebSocketProtocol

PING_S = 0.1
WHILE_S = PING_S * 12  # several pings, and their deadlines
FLOOD, PIECE = 400, 65_536

Serving = Callable[[WebSocket], Awaitable[None]]


@asynccontextmanager
async def served(serve: Serving) -> AsyncIterator[ClientConnection]:
    """A client of a server that calls `serve` with the socket, and pings impatiently."""

    async def app(scope: dict[str, object], receive: object, send: object) -> None:
        socket = WebSocket(scope, receive, send)  # type: ignore[arg-type]
        await socket.accept()
        await serve(socket)

    settings = uvicorn.Config(
        app,  # type: ignore[arg-type]
        port=0,
        lifespan="off",
        log_level="error",
        ws=WebSocketProtocol,
        ws_ping_interval=PING_S,
        ws_ping_timeout=PING_S,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(settings)
    serving = asyncio.ensure_future(server.serve())
    while not server.started:  # noqa: ASYNC110 (uvicorn offers no event)
        await asyncio.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        async with connect(
            f"ws://127.0.0.1:{port}", compression=None, ping_interval=None, max_queue=1, close_timeout=1
        ) as connection:
            yield connection
    finally:
        server.should_exit = True
        await serving


async def _listen(socket: WebSocket) -> None:
    while (await socket.receive())["type"] != "websocket.disconnect":
        pass


async def test_an_idle_client_that_answers_pings_stays() -> None:
    async with served(_listen) as connection:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(connection.recv(), WHILE_S)


async def test_a_client_that_answers_nothing_is_noticed() -> None:
    gone = asyncio.Event()

    async def serve(socket: WebSocket) -> None:
        await _listen(socket)
        gone.set()

    async with served(serve) as connection:
        connection.transport.pause_reading()
        await asyncio.wait_for(gone.wait(), 10)


async def test_a_client_that_does_not_read_is_waited_for() -> None:
    async def serve(socket: WebSocket) -> None:
        listening = asyncio.ensure_future(_listen(socket))
        for _ in range(FLOOD):
            await socket.send_bytes(bytes(PIECE))
        await socket.close()
        await listening

    async with served(serve) as connection:
        await asyncio.sleep(WHILE_S)  # reads nothing: the time that it would have been dead by
        received = 0
        with pytest.raises(ConnectionClosed):
            while True:
                received += len(await asyncio.wait_for(connection.recv(), 10))
    assert (received, connection.close_code) == (FLOOD * PIECE, 1000)


async def test_a_client_whose_input_has_to_wait_is_not_dead() -> None:
    go_on = asyncio.Event()
    received = 0

    async def serve(socket: WebSocket) -> None:
        nonlocal received
        await go_on.wait()
        while (message := await socket.receive())["type"] != "websocket.disconnect":
            received += len(message["bytes"])
            if received == FLOOD * PIECE:
                await socket.send_text("all")

    async def send(connection: ClientConnection) -> None:
        for _ in range(FLOOD):
            await connection.send(bytes(PIECE))

    async with served(serve) as connection:
        sending = asyncio.ensure_future(send(connection))
        await asyncio.sleep(WHILE_S)
        assert not sending.done()
        go_on.set()
        assert await asyncio.wait_for(connection.recv(), 20) == "all"
        await sending

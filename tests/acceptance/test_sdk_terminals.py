"""Terminals and streamed input through both halves of the client."""

import asyncio
import hashlib
import os
import threading
from contextlib import suppress

from acceptance.servers import Server

from skerry import AsyncAttachment, AsyncSkerry, Lost, Output, Sandbox, Skerry, Unavailable


async def typed(attached: AsyncAttachment) -> None:
    """Type a line until the program has read one: what is on its way when a connection breaks may be lost."""
    with suppress(Unavailable):  # it has ended
        while attached.ended is None:
            await attached.send("it\r")
            await asyncio.sleep(0.5)


async def test_a_terminal_of_the_asynchronous_client_is_taken_up_again_after_a_restart(server: Server) -> None:
    async with AsyncSkerry(server.url, server.key) as client, await client.create("python") as sandbox:
        terminal = await sandbox.terminal(["sh", "-c", "echo rea''dy; read x; echo got $x; exit 5"], cols=90, rows=20)
        shown = b""
        async with terminal.attach() as attached, asyncio.TaskGroup() as group:
            async for event in attached.events():
                assert isinstance(event, Output)
                shown += event.data
                if shown == b"ready\r\n":
                    await asyncio.to_thread(lambda: server.restarted("api", server.kill("api")))
                    await terminal.resize(100, 30)
                    group.create_task(typed(attached))
        assert shown.count(b"ready") == 1 and b"got it" in shown
        assert attached.ended is not None and attached.ended.exit_code == 5
        assert (await terminal.refresh()).info.cols == 100
        assert terminal.id in [one.id for one in await sandbox.terminals.list(ended=True)]


def test_input_streamed_from_another_thread_comes_back_whole(client: Skerry, sandbox: Sandbox) -> None:
    data = os.urandom(5_000_000)
    running = sandbox.commands.start(["cat"], stdin_stream=True, keep="unread")
    got = hashlib.sha256()
    with running.attach() as attached:

        def feed() -> None:
            attached.send(data)
            attached.end_input()

        thread = threading.Thread(target=feed)
        thread.start()
        for event in attached.events():
            assert not isinstance(event, Lost)
            got.update(event.data)
        thread.join(30)
    assert got.digest() == hashlib.sha256(data).digest()
    assert client.command(running.id).poll().exit_code == 0

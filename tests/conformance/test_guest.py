"""The suite of the seam `Guest`, on the fake and on a real sbxd; and what only a real one can show."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sbxd_process import Sbxd, running_sbxd

from skerry.guest.byte_stream import StreamBytes
from skerry.guest.sbxd_guest import SbxdGuest
from skerry.model.command import ExecSpec, Lost, Output
from skerry.model.errors import DeadlineExceeded, GuestError, ProtocolError, SkerryError, Unavailable
from skerry.model.files import FileType
from skerry.model.ids import new_command_id
from skerry.seams import ByteStream
from skerry.testing.fake_guest import FakeGuest
from skerry.testing.guest_suite import DEADLINE_S, GuestSuite, Inside, content, follow, pieces, run, start

needs_sbxd = pytest.mark.skipif(os.geteuid() != 0, reason="a sbxd with pid 1 needs root")
ECHO = """
import socket, threading
def echo(peer):
    while data := peer.recv(65536): peer.sendall(data)
    peer.shutdown(socket.SHUT_WR); peer.close()
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True: threading.Thread(target=echo, args=server.accept()[:1]).start()
"""


async def echo(stream: ByteStream) -> None:
    while data := await stream.receive():
        await stream.send(data)
    await stream.send_eof()


class TestFakeGuest(GuestSuite):
    @pytest.fixture
    async def inside(self) -> AsyncIterator[Inside]:
        guest = FakeGuest()
        guest.files.make_directory("/workspace/test", parents=True, mode=0o755)

        async def echo_port() -> int:
            guest.serve(8080, echo)
            return 8080

        yield Inside(guest, "/workspace/test", echo_port)
        await guest.close()


@pytest.fixture
async def sbxd() -> AsyncIterator[Sbxd]:
    async with running_sbxd() as running:
        yield running


@pytest.fixture
async def guest(sbxd: Sbxd) -> AsyncIterator[SbxdGuest]:
    guest = await sbxd.guest()
    yield guest
    await guest.connection.close()


@needs_sbxd
class TestSbxdGuest(GuestSuite):
    @pytest.fixture
    async def inside(self, guest: SbxdGuest, tmp_path: Path) -> AsyncIterator[Inside]:
        async def echo_port() -> int:
            spec = ExecSpec(id=new_command_id(), argv=("python3", "-c", ECHO))
            await guest.exec(spec)
            said = await asyncio.wait_for(anext(guest.attach(spec.id)), DEADLINE_S)  # type: ignore[arg-type]
            assert isinstance(said, Output)
            return int(said.data)

        yield Inside(guest, str(tmp_path), echo_port)
        assert guest.connection.error is None  # no test of the suite breaks the protocol


@needs_sbxd
class TestSbxdAlone:
    """What the fake does not do."""

    async def test_output_outlives_the_connection_and_comes_back_by_offset(self, sbxd: Sbxd) -> None:
        first = await sbxd.guest()
        command_id = await start(first, "echo one; read x; echo two", stdin=True)
        events = first.attach(command_id)
        item = await asyncio.wait_for(anext(events), DEADLINE_S)  # type: ignore[arg-type]
        assert isinstance(item, Output) and item.data == b"one\n"
        await first.connection.close()

        second = await sbxd.bridge()
        assert (second.connection.boot, second.connection.error) == (first.connection.boot, None)
        [known] = await second.commands()
        assert (known.id, known.running, known.acked_bytes) == (command_id, True, 0)
        await second.write_stdin(command_id, b"\n")
        assert (await follow(second, command_id)).stdout == b"one\ntwo\n"

    async def test_acknowledged_output_is_gone_and_told_as_lost(self, guest: SbxdGuest) -> None:
        command_id = await start(guest, "echo 12345; exit 3")
        await follow(guest, command_id)
        events = [event async for event in guest.attach(command_id)]
        assert events[0] == Lost(0, 6)
        assert events[-1].code == 3  # type: ignore[union-attr]

    async def test_a_wrong_secret_is_not_let_in(self, sbxd: Sbxd) -> None:
        first = await sbxd.guest()
        await first.connection.close()
        with pytest.raises((Unavailable, DeadlineExceeded)):
            await sbxd.bridge(secret=bytes(32))
        assert (await run(await sbxd.bridge(), "echo in")).stdout == b"in\n"

    async def test_a_new_connection_ends_the_one_before(self, sbxd: Sbxd) -> None:
        await sbxd.guest()
        first = await sbxd.bridge()
        command_id = await start(first, "sleep 60")
        await sbxd.bridge()
        with pytest.raises(Unavailable):
            await follow(first, command_id)

    async def test_megabytes_of_output_arrive_in_order(self, guest: SbxdGuest) -> None:
        ended = await run(guest, "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); echo $i; done")
        assert ended.stdout == b"".join(b"%d\n" % number for number in range(1, 60_001))

    async def test_a_slow_download_does_not_hold_a_command(self, guest: SbxdGuest, tmp_path: Path) -> None:
        path = f"{tmp_path}/large"
        await guest.write(path, pieces(*[bytes(1 << 20)] * 8))
        async with guest.read(path) as reader:
            chunks = reader.__aiter__()
            await asyncio.wait_for(anext(chunks), DEADLINE_S)  # type: ignore[arg-type]
            assert (await run(guest, "echo quick")).stdout == b"quick\n"
        assert (await run(guest, "echo again")).stdout == b"again\n"

    async def test_a_reader_that_detaches_leaves_the_command_running(self, guest: SbxdGuest) -> None:
        command_id = await start(guest, "echo one; read x; echo two", stdin=True)
        events = guest.attach(command_id)
        await asyncio.wait_for(anext(events), DEADLINE_S)  # type: ignore[arg-type]
        await events.aclose()  # type: ignore[attr-defined]
        await guest.signal(command_id, 18)
        await guest.write_stdin(command_id, b"\n")
        assert (await follow(guest, command_id, offset=4)).stdout == b"two\n"

    async def test_a_second_reader_replaces_the_first(self, guest: SbxdGuest) -> None:
        command_id = await start(guest, "read x; echo done", stdin=True)
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(_failure(guest, command_id))
            await asyncio.sleep(0)
            second = tasks.create_task(follow(guest, command_id))
            error = await asyncio.wait_for(first, DEADLINE_S)
            assert isinstance(error, GuestError) and error.guest_code == "replaced"
            await guest.write_stdin(command_id, b"\n")
            assert (await second).stdout == b"done\n"

    async def test_signals_that_race_with_a_reader_leave_it_its_output(self, sbxd: Sbxd) -> None:
        first = await sbxd.guest()
        commands = [await start(first, "echo one; read x; echo two", stdin=True) for _ in range(10)]
        await first.connection.close()
        second = await sbxd.bridge()
        async with asyncio.TaskGroup() as tasks:
            signals = [tasks.create_task(second.signal(command_id, 18)) for command_id in commands]
            readers = [tasks.create_task(follow(second, command_id)) for command_id in commands]
            await asyncio.gather(*signals)
            for command_id in commands:
                await second.write_stdin(command_id, b"\n")
        assert [reader.result().stdout for reader in readers] == [b"one\ntwo\n"] * 10

    async def test_a_connection_from_inside_reaches_the_handler(self, sbxd: Sbxd) -> None:
        streams: asyncio.Queue[StreamBytes] = asyncio.Queue()
        guest = await sbxd.guest(on_server=streams.put_nowait)
        script = (
            "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/run/skerry/server.sock');"
            "s.sendall(b'ping'); s.shutdown(1); print(s.makefile('rb').read().decode())"
        )
        spec = ExecSpec(id=new_command_id(), argv=("python3", "-c", script))
        await guest.exec(spec)
        stream = await asyncio.wait_for(streams.get(), DEADLINE_S)
        assert await stream.receive() == b"ping"
        assert await stream.receive() == b""
        await stream.send(b"pong")
        await stream.send_eof()
        assert (await follow(guest, spec.id)).stdout == b"pong\n"

    async def test_without_a_handler_a_connection_from_inside_is_refused(self, guest: SbxdGuest) -> None:
        script = (
            "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/run/skerry/server.sock');print(s.recv(10))"
        )
        assert (await run(guest, argv=("python3", "-c", script))).stdout in (b"b''\n", b"")
        assert guest.connection.error is None

    async def test_configuring_shows_in_the_next_command(self, guest: SbxdGuest, tmp_path: Path) -> None:
        path = os.environ["PATH"]
        await guest.configure(hostname="rock", env={"PATH": path, "COLOUR": "grey"}, cwd=str(tmp_path))
        ended = await run(guest, "uname -n; echo $COLOUR; pwd")
        assert ended.stdout.decode() == f"rock\ngrey\n{tmp_path}\n"

    async def test_a_forgotten_command_is_unknown_and_a_running_one_is_busy(self, guest: SbxdGuest) -> None:
        running = await start(guest, "sleep 60")
        with pytest.raises(GuestError) as caught:
            await guest.forget(running)
        assert caught.value.guest_code == "busy"
        ended = await start(guest, "true")
        await follow(guest, ended)
        await guest.forget(ended)
        await guest.forget(ended)
        assert [command.id for command in await guest.commands()] == [running]

    async def test_symlinks_are_told_and_followed_only_when_asked(self, guest: SbxdGuest, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to("file")
        (tmp_path / "file").write_bytes(b"x")
        told = await guest.stat(f"{tmp_path}/link", follow=False)
        assert (told.type, told.target) == (FileType.SYMLINK, "file")
        assert (await guest.stat(f"{tmp_path}/link")).type is FileType.FILE
        await guest.write(f"{tmp_path}/link", pieces(b"through"))
        assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_bytes() == b"through"
        assert await guest.remove(f"{tmp_path}/link") == 1
        assert (tmp_path / "file").exists()

    async def test_what_is_no_file_is_not_opened(self, guest: SbxdGuest, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        for path in (f"{tmp_path}/fifo", "/dev/zero"):
            with pytest.raises(GuestError) as caught:
                await content(guest, path)
            assert caught.value.guest_code == "not_a_file"

    async def test_its_death_ends_everything(self, sbxd: Sbxd) -> None:
        guest = await sbxd.guest()
        command_id = await start(guest, "sleep 60")
        async with asyncio.TaskGroup() as tasks:
            failing = tasks.create_task(_failure(guest, command_id))
            await sbxd.stop()
            assert isinstance(await asyncio.wait_for(failing, DEADLINE_S), Unavailable)
        with pytest.raises(Unavailable):
            await guest.stat("/")

    async def test_it_answers_a_ping_and_never_breaks_the_protocol_when_it_is_busy(self, guest: SbxdGuest) -> None:
        await asyncio.gather(*(run(guest, "head -c 300000 /dev/zero") for _ in range(10)), guest.connection.ping())
        assert not isinstance(guest.connection.error, ProtocolError)
        assert await guest.connection.ping() < DEADLINE_S


async def _failure(guest: SbxdGuest, command_id: str) -> Exception | None:
    try:
        await follow(guest, command_id)  # type: ignore[arg-type]
    except SkerryError as error:
        return error
    return None

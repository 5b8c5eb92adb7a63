"""Any sequence of frames, while every operation waits for its answer: results or our own errors, nothing else."""

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any

from guest_peer import connected
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.guest import frames
from skerry.guest.sbxd_guest import SbxdGuest
from skerry.model.command import ExecSpec
from skerry.model.errors import SkerryError
from skerry.model.ids import CommandId

INFO = {"name": "f", "path": "/f", "type": "file", "size": 3, "mode": 0o644, "uid": 0, "gid": 0, "mtime_ns": 1}
PAYLOADS: list[dict[str, Any]] = [
    {},
    {"event": "started", "pid": 7},
    {"event": "attached", "pid": 7, "from": 0, "running": True},
    {"event": "exited", "code": 0, "signal": None, "timeout": False, "offset": 1, "duration_ms": 1},
    {"event": "stat"} | INFO,
    {"event": "watching"},
    {"event": "change", "kind": "create", "path": "/x"},
    {"event": "connected"},
    {"op": "server"},
    {"bytes": 1, "count": 1, "removed": 1, "commands": []} | INFO,
    {"error": {"code": "not_found", "message": "no"}},
]
payload = st.sampled_from([frames.encode_json(value) for value in PAYLOADS]) | st.binary(max_size=6)
stream = st.integers(0, 14)


def frame(type: int, stream: int, payload: bytes, channel: int) -> bytes:
    return frames.encode_header(type, stream, len(payload), channel) + payload


plausible = st.one_of(
    st.builds(frame, st.sampled_from([2, 7, 8]), stream, payload, st.just(0)),
    st.builds(frame, st.just(3), stream, st.binary(min_size=1, max_size=4), st.integers(0, 2)),
    st.builds(frame, st.just(4), stream, st.just(b""), st.integers(0, 2)),
    st.builds(frames.encode_credit, stream, st.integers(0, 2**32 - 1)),
)
anything = st.builds(frame, st.integers(0, 12), stream, payload, st.integers(0, 3)) | st.binary(max_size=40)


@settings(max_examples=300, deadline=None)
@given(st.lists(plausible | plausible | plausible | anything, max_size=30))
def test_no_sequence_of_frames_breaks_more_than_its_connection(script: list[bytes]) -> None:
    asyncio.run(_play(script))


async def _play(script: list[bytes]) -> None:
    mishaps: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: mishaps.append(context))
    async with connected(on_server=lambda stream: None) as (connection, peer):
        guest = SbxdGuest(connection)
        works = [asyncio.ensure_future(_outcome(work)) for work in _everything(guest)]
        await asyncio.sleep(0)
        with contextlib.suppress(ConnectionError):
            await peer.send_raw(b"".join(script))
        peer.sock.shutdown(1)
        async with asyncio.timeout(20):
            await asyncio.gather(*works)
            await connection.wait_ended()
    assert mishaps == []


def _everything(guest: SbxdGuest) -> list[Awaitable[object]]:
    async def run() -> None:
        await guest.exec(ExecSpec(id=CommandId("a"), shell="x", stdin=True))
        async for _ in guest.attach(CommandId("a")):
            await guest.write_stdin(CommandId("a"), b"x" * 100_000)

    async def read() -> None:
        async with guest.read("/f") as reader:
            async for _ in reader:
                pass

    async def listing() -> None:
        async for _ in guest.list("/"):
            pass

    async def watch() -> None:
        async with guest.watch("/") as changes:
            async for _ in changes:
                pass

    async def port() -> None:
        stream = await guest.open_port(80)
        while await stream.receive():
            await stream.send(b"x")

    async def write() -> None:
        async def chunks() -> Any:
            for _ in range(4):
                yield b"x" * 200_000

        await guest.write("/f", chunks())

    return [run(), read(), listing(), watch(), port(), write(), guest.signal(CommandId("b"), 9)]


async def _outcome(work: Awaitable[object]) -> None:
    with contextlib.suppress(SkerryError):
        await work

"""A connection against a scripted peer: greeting, flow control, liveness, and every kind of hostility."""

import asyncio
import time
import tracemalloc
from collections.abc import Awaitable

import pytest
from guest_peer import DEADLINE_S, SECRET, Peer, connected, pair

from skerry.guest import frames
from skerry.guest.byte_stream import StreamBytes
from skerry.guest.connection import Connection, Timing, connect
from skerry.guest.frames import INITIAL_CREDIT, FrameType
from skerry.guest.sbxd_guest import SbxdGuest
from skerry.model.errors import (
    DeadlineExceeded,
    GuestError,
    Invalid,
    ProtocolError,
    Refused,
    SandboxGone,
    SkerryError,
    Unavailable,
)

QUICK = Timing(greeting_s=0.2, quiet_s=0.05, silent_s=0.2)

# -- greeting --------------------------------------------------------------------------------------------------


async def test_a_first_connection_gives_the_secret_and_knows_the_boot() -> None:
    async with connected() as (connection, _):
        assert (connection.boot, connection.sbxd_version, connection.error) == ("ab" * 16, "0.1.0", None)


async def test_a_later_connection_proves_the_secret_and_never_sends_it() -> None:
    with pair() as (ours, peer):
        greeting = asyncio.ensure_future(connect(ours, secret=SECRET, first=False))
        await peer.hello(secured=True)
        frame = await peer.expect(FrameType.HELLO)
        assert frames.decode_json(frame.payload) == {"protocol": 1, "proof": peer.expected_proof()}
        assert SECRET.hex().encode() not in frame.payload
        await peer.send(FrameType.PONG, 0, b"ok")
        await (await greeting).close()


@pytest.mark.parametrize("first", [True, False])
async def test_an_sbxd_in_the_wrong_state_is_told_nothing(first: bool) -> None:
    with pair() as (ours, peer):
        await peer.hello(secured=first)
        with pytest.raises(ProtocolError):
            await connect(ours, secret=SECRET, first=first)
        assert ours.fileno() == -1 and peer.sock.recv(1) == b""


@pytest.mark.parametrize(
    "wrong",
    [
        {"protocol": 2},
        {"protocol": True},
        {"boot": "AB" * 16},
        {"boot": "ab"},
        {"nonce": "cd" * 31},
        {"nonce": 7},
        {"secured": 0},
        {"sbxd": "\n"},
        {"sbxd": "x" * 1000},
    ],
    ids=str,
)
async def test_a_malformed_greeting_is_refused(wrong: dict[str, object]) -> None:
    with pair() as (ours, peer):
        await peer.hello(**wrong)
        with pytest.raises(ProtocolError):
            await connect(ours, secret=SECRET, first=True)
        assert await peer.ended()


async def test_a_peer_that_does_not_greet_is_given_up() -> None:
    with pair() as (ours, peer):
        with pytest.raises(DeadlineExceeded):
            await connect(ours, secret=SECRET, first=True, timing=Timing(greeting_s=0.1))
        assert await peer.ended()


async def test_a_peer_that_hangs_up_on_the_proof_is_unavailable() -> None:
    with pair() as (ours, peer):
        greeting = asyncio.ensure_future(_failure(connect(ours, secret=SECRET, first=True)))
        await peer.hello()
        await peer.expect(FrameType.HELLO)
        peer.sock.close()
        assert isinstance(await greeting, Unavailable)


@pytest.mark.parametrize("early", [b"\0\0\0\0\x04\0\0\0\x02\0\0\0", b"\x02\0\0\0\x0a\0\0\0\0\0\0\0ok"])
async def test_frames_before_the_greeting_is_over_are_refused(early: bytes) -> None:
    with pair() as (ours, peer):
        await peer.hello()
        await peer.send_raw(early)
        with pytest.raises(ProtocolError):
            await connect(ours, secret=SECRET, first=True)


async def test_a_refused_version_is_told_as_that() -> None:
    with pair() as (ours, peer):
        await peer.send(FrameType.CLOSE, 0, {"error": {"code": "protocol"}})
        with pytest.raises(ProtocolError, match="another version"):
            await connect(ours, secret=SECRET, first=True)


async def test_a_secret_of_the_wrong_length_is_refused() -> None:
    with pair() as (ours, _), pytest.raises(Invalid):
        await connect(ours, secret=b"short", first=True)


# -- streams ---------------------------------------------------------------------------------------------------


async def test_streams_have_odd_rising_ids_and_carry_their_request() -> None:
    async with connected() as (connection, peer):
        for number in (1, 3, 5):
            await connection.open({"op": "x", "n": number})
            assert await peer.expect_json(FrameType.OPEN) == (number, {"op": "x", "n": number})


async def test_data_is_acknowledged_when_it_is_consumed_and_the_reader_wants_more() -> None:
    async with connected() as (connection, peer):
        stream = await connection.open({"op": "x"})
        await peer.expect(FrameType.OPEN)
        await peer.send(FrameType.DATA, 1, b"abc", 1)
        assert await stream.chunk(DEADLINE_S) == (1, b"abc")
        waiting = asyncio.ensure_future(stream.chunk(DEADLINE_S))
        await connection_turn(connection, peer)  # asked for more, but nothing was consumed: nothing is acknowledged
        stream.consumed(3)
        await peer.send(FrameType.DATA, 1, b"d", 2)
        assert await waiting == (2, b"d")
        waiting = asyncio.ensure_future(stream.chunk(DEADLINE_S))
        credit = await peer.expect(FrameType.CREDIT)
        assert frames.decode_credit(credit.payload) == 3
        await peer.send(FrameType.CLOSE, 1, {"bytes": 4})
        assert await waiting is None
        assert await stream.result() == {"bytes": 4}


async def connection_turn(connection: Connection, peer: Peer) -> None:
    """A round trip: what the host had to send before it would have come first."""
    async with asyncio.TaskGroup() as tasks:
        ping = tasks.create_task(connection.ping())
        frame = await peer.expect(FrameType.PING)
        await peer.send(FrameType.PONG, 0, frame.payload)
        await ping


async def test_a_stream_opened_wider_takes_that_much_more_and_not_a_byte_beyond() -> None:
    async with connected() as (connection, peer):
        stream = await connection.open({"op": "x"}, ahead_bytes=1000)
        await peer.expect(FrameType.OPEN)
        assert frames.decode_credit((await peer.expect(FrameType.CREDIT)).payload) == 1000
        await peer.send(FrameType.DATA, 1, bytes(INITIAL_CREDIT))
        await peer.send(FrameType.DATA, 1, bytes(1000))
        await connection_turn(connection, peer)
        assert connection.error is None
        await peer.send(FrameType.DATA, 1, b"x")
        assert isinstance(await asyncio.wait_for(connection.wait_ended(), DEADLINE_S), ProtocolError)
        stream.close()


async def test_a_sender_stops_at_its_credit_and_goes_on_with_more() -> None:
    async with connected() as (connection, peer):
        stream = await connection.open({"op": "x"})
        await peer.expect(FrameType.OPEN)
        sending = asyncio.ensure_future(stream.send(bytes(INITIAL_CREDIT + 10)))
        got = 0
        while got < INITIAL_CREDIT:
            got += len((await peer.expect(FrameType.DATA)).payload)
        assert got == INITIAL_CREDIT and not sending.done()
        await peer.send_raw(frames.encode_credit(1, 10))
        assert len((await peer.expect(FrameType.DATA)).payload) == 10
        await asyncio.wait_for(sending, DEADLINE_S)


async def test_a_stream_without_credit_does_not_hold_another() -> None:
    async with connected() as (connection, peer):
        full, free = await connection.open({"op": "x"}), await connection.open({"op": "x"})
        sending = asyncio.ensure_future(full.send(bytes(INITIAL_CREDIT + 1)))
        await asyncio.wait_for(free.send(b"free"), DEADLINE_S)
        while (frame := await peer.frame()).stream != 3 or frame.type != FrameType.DATA:
            pass
        assert frame.payload == b"free" and not sending.done()
        sending.cancel()


async def test_two_senders_of_one_stream_take_turns() -> None:
    async with connected() as (connection, peer):
        stream = await connection.open({"op": "x"})
        await peer.expect(FrameType.OPEN)
        size = INITIAL_CREDIT + 1
        sending = asyncio.gather(stream.send(b"a" * size), stream.send(b"b" * size))
        got = b""
        while len(got) < 2 * size:
            data = (await peer.expect(FrameType.DATA)).payload
            await peer.send_raw(frames.encode_credit(1, len(data)))
            got += data
        assert got == b"a" * size + b"b" * size
        await sending


async def test_credit_for_many_streams_at_once_does_not_overfill_the_connection() -> None:
    async with connected() as (connection, peer):
        streams = [await connection.open({"op": "x"}) for _ in range(60)]
        size = 2 * INITIAL_CREDIT
        sending = asyncio.gather(*(stream.send(bytes(size)) for stream in streams))
        got = 0
        while got < 60 * INITIAL_CREDIT:  # all of the first credit is used up
            frame = await peer.frame()
            got += len(frame.payload) if frame.type == FrameType.DATA else 0
        await peer.send_raw(b"".join(frames.encode_credit(stream.id, INITIAL_CREDIT) for stream in streams))
        while got < 60 * size:
            got += len((await peer.expect(FrameType.DATA)).payload)
        await sending
        assert connection.error is None


async def test_a_closed_stream_ends_its_waiting_sender_with_the_reason() -> None:
    async with connected() as (connection, peer):
        stream = await connection.open({"op": "write"})
        sending = asyncio.ensure_future(stream.send(bytes(INITIAL_CREDIT * 2)))
        await peer.expect(FrameType.OPEN)
        await peer.send(FrameType.CLOSE, 1, {"error": {"code": "no_space", "message": "disk full", "errno": 28}})
        with pytest.raises(GuestError) as caught:
            await asyncio.wait_for(sending, DEADLINE_S)
        assert (caught.value.guest_code, caught.value.message, caught.value.errno) == ("no_space", "disk full", 28)


async def test_frames_that_cross_a_close_are_ignored() -> None:
    async with connected() as (connection, peer):
        stream = await connection.open({"op": "x"})
        stream.close()
        stream.close()
        for type, payload in ((FrameType.DATA, b"late"), (FrameType.EVENT, b"{}"), (FrameType.CLOSE, b"{}")):
            await peer.send(type, 1, payload)
        await peer.expect(FrameType.OPEN)
        await peer.expect(FrameType.CLOSE)
        await connection_turn(connection, peer)
        assert connection.error is None


async def test_a_reader_gets_what_came_before_the_end_of_the_connection() -> None:
    async with connected() as (connection, peer):
        stream = await connection.open({"op": "x"})
        await peer.send(FrameType.DATA, 1, b"last words", 1)
        peer.sock.close()
        await connection.wait_ended()
        assert await stream.chunk() == (1, b"last words")
        with pytest.raises(Unavailable):
            await stream.chunk()


async def test_an_aborted_connection_ends_all_that_waits_with_the_reason() -> None:
    async with connected() as (connection, _):
        streams = [await connection.open({"op": "x"}) for _ in range(3)]
        waiting = [asyncio.ensure_future(_failure(stream.chunk())) for stream in streams]
        writing = asyncio.ensure_future(_failure(streams[0].send(bytes(INITIAL_CREDIT * 2))))
        asking = asyncio.ensure_future(_failure(connection.ping()))
        await asyncio.sleep(0)
        connection.abort(SandboxGone("It ran out of memory.", cause="oom"))
        errors = await asyncio.gather(*waiting, writing, asking)
        assert [error.cause for error in errors if isinstance(error, SandboxGone)] == ["oom"] * 5
        assert len({id(error) for error in errors}) == 5
        with pytest.raises(SandboxGone):
            await connection.open({"op": "x"})


async def test_a_reader_with_a_deadline_is_told_that_nothing_came() -> None:
    async with connected() as (connection, _):
        stream = await connection.open({"op": "x"})
        with pytest.raises(DeadlineExceeded):
            await stream.chunk(0.01)


async def test_a_cancelled_reader_loses_nothing() -> None:
    async with connected() as (connection, peer):
        stream = await connection.open({"op": "x"})
        waiting = asyncio.ensure_future(stream.chunk())
        await asyncio.sleep(0)
        waiting.cancel()
        await peer.send(FrameType.DATA, 1, b"kept", 1)
        assert await stream.chunk(DEADLINE_S) == (1, b"kept")


# -- liveness --------------------------------------------------------------------------------------------------


async def test_a_ping_of_the_peer_is_answered() -> None:
    async with connected() as (_, peer):
        await peer.send(FrameType.PING, 0, b"hello?")
        assert (await peer.expect(FrameType.PONG)).payload == b"hello?"


async def test_a_silent_peer_is_asked_and_then_given_up() -> None:
    async with connected(timing=QUICK) as (connection, peer):
        await peer.expect(FrameType.PING)
        assert isinstance(await asyncio.wait_for(connection.wait_ended(), DEADLINE_S), Unavailable)


async def test_silence_while_something_waits_is_found_out_sooner() -> None:
    lapses: list[float] = []
    for waits in (True, False):
        async with connected(timing=QUICK) as (connection, peer), asyncio.TaskGroup() as group:
            begun = asyncio.get_running_loop().time()
            if waits:
                group.create_task(_refused(SbxdGuest(connection).stat("/")))
            await asyncio.wait_for(connection.wait_ended(), DEADLINE_S)
            lapses.append(asyncio.get_running_loop().time() - begun)
            del peer
    assert lapses[0] < lapses[1]


async def _refused(asking: Awaitable[object]) -> None:
    with pytest.raises(Unavailable):
        await asking


async def test_a_process_that_was_stopped_itself_looks_before_it_gives_up() -> None:
    async with connected(timing=QUICK) as (connection, peer):
        frame = await peer.expect(FrameType.PING)
        await peer.send(FrameType.PONG, 0, frame.payload)
        time.sleep(3 * (QUICK.quiet_s + QUICK.silent_s))  # noqa: ASYNC251 - this is what is tested
        frame = await peer.expect(FrameType.PING)
        await peer.send(FrameType.PONG, 0, frame.payload)
        assert connection.error is None


async def test_a_peer_that_answers_pings_is_kept() -> None:
    async with connected(timing=QUICK) as (connection, peer):
        for _ in range(6):
            frame = await peer.expect(FrameType.PING)
            await peer.send(FrameType.PONG, 0, frame.payload)
        assert connection.error is None


async def test_a_peer_that_does_not_read_cannot_make_answers_pile_up() -> None:
    async with connected() as (connection, peer):
        ping = frames.encode(FrameType.PING, 0, b"x" * 64) * 2_000
        with pytest.raises((ConnectionError, BrokenPipeError)):
            while True:
                await peer.send_raw(ping)
        assert isinstance(await connection.wait_ended(), Unavailable)


# -- hostility -------------------------------------------------------------------------------------------------


def raw(type: int, stream: int, payload: bytes = b"", channel: int = 0) -> bytes:
    return frames.encode(type, stream, payload, channel)


HOSTILE = {
    "data beyond the credit": raw(3, 1, bytes(200_000), 1) + raw(3, 1, bytes(62_145), 1),
    "data after its end": raw(4, 1, b"", 1) + raw(3, 1, b"x", 1),
    "two ends of one channel": raw(4, 1, b"", 1) * 2,
    "credit without end": frames.encode_credit(1, 0xFFFFFFFF),
    "a flood of events": raw(7, 1, b"{}") * 20,
    "a control": raw(6, 1, b"{}"),
    "a stream that was never opened": raw(3, 3, b"x"),
    "a stream of its own that was never opened": raw(3, 2, b"x"),
    "an open with an odd id": raw(2, 3, b'{"op":"server"}'),
    "an open of an id that is in use": raw(2, 1, b'{"op":"server"}'),
    "an open of an id that was used": raw(2, 4, b'{"op":"server"}') * 2,
    "an open of an older id": raw(2, 4, b'{"op":"server"}') + raw(2, 2, b'{"op":"server"}'),
    "an open that is not JSON": raw(2, 2, b"{"),
    "a second greeting": raw(1, 0, b"{}"),
    "a pong that nobody asked for": raw(10, 0, b"ok"),
    "a refusal after the greeting": raw(8, 0, b'{"error":{"code":"protocol"}}'),
    "an unknown type": b"\0\0\0\0\x63\0\0\0\x01\0\0\0",
    "a length over the limit": b"\x01\0\x04\0\x03\0\0\0\x01\0\0\0",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
async def test_hostile_frames_end_the_connection_and_nothing_else(data: bytes) -> None:
    async with connected() as (connection, peer):
        stream = await connection.open({"op": "x"})
        await peer.send_raw(data)
        assert isinstance(await asyncio.wait_for(connection.wait_ended(), DEADLINE_S), ProtocolError)
        assert isinstance(await _failure(_drain(stream)), ProtocolError)


@pytest.mark.parametrize("payload", [b"{", b"[]", b"[" * 200_000, b'{"error":"x"}', b'{"error":{"code":"../x"}}'])
async def test_a_result_that_makes_no_sense_ends_the_connection(payload: bytes) -> None:
    async with connected() as (connection, peer):
        stream = await connection.open({"op": "x"})
        await peer.send(FrameType.CLOSE, 1, payload)
        with pytest.raises(ProtocolError):
            await stream.result(DEADLINE_S)
        assert isinstance(connection.error, ProtocolError)


async def test_an_error_s_message_is_cut_and_cleaned() -> None:
    async with connected() as (connection, peer):
        stream = await connection.open({"op": "x"})
        error = {"code": "io", "message": "\x1b[31m" + "m" * 100_000, "errno": 1 << 70}
        await peer.send(FrameType.CLOSE, 1, {"error": error})
        with pytest.raises(GuestError) as caught:
            await stream.result(DEADLINE_S)
        assert caught.value.message.startswith("?[31mmm") and len(caught.value.message) == 1024
        assert caught.value.errno is None


async def test_tiny_frames_on_many_streams_are_held_in_little_memory() -> None:
    async with connected() as (connection, peer):
        streams = [await connection.open({"op": "x"}) for _ in range(2)]
        tracemalloc.start()
        try:
            for stream in streams:
                tiny = raw(3, stream.id, b"x", 1) + raw(3, stream.id, b"y", 2)
                for _ in range(20):
                    await peer.send_raw(tiny * 1_000)
            await asyncio.wait_for(_answered(connection, peer), 60)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert held < 2 * 500_000
        assert [await stream.chunk() for stream in streams] == [(1, b"x")] * 2


async def _answered(connection: Connection, peer: Peer) -> None:
    ping = asyncio.ensure_future(connection.ping(60))
    while (frame := await peer.frame()).type != FrameType.PING:
        pass
    await peer.send(FrameType.PONG, 0, frame.payload)
    await ping


async def test_a_flood_leaves_the_event_loop_to_others() -> None:
    async with connected() as (connection, peer):
        await connection.open({"op": "x"})
        loop = asyncio.get_running_loop()
        flood = loop.create_task(peer.send_raw(raw(8, 1, b"{}") + raw(4, 1) * 60_000))
        longest, before = 0.0, loop.time()
        while not flood.done():
            await asyncio.sleep(0)
            longest, before = max(longest, loop.time() - before), loop.time()
        assert longest < 0.5
        assert connection.error is None


# -- streams from inside ---------------------------------------------------------------------------------------


async def test_streams_from_inside_are_refused_without_a_handler() -> None:
    async with connected() as (connection, peer):
        await peer.send(FrameType.OPEN, 2, {"op": "server"})
        stream, answer = await peer.expect_json(FrameType.CLOSE)
        assert (stream, answer["error"]["code"]) == (2, "refused")
        assert connection.error is None


async def test_an_unknown_operation_from_inside_is_answered_as_that() -> None:
    async with connected(on_server=lambda stream: None) as (_, peer):
        await peer.send(FrameType.OPEN, 2, {"op": "exec"})
        assert (await peer.expect_json(FrameType.CLOSE))[1]["error"]["code"] == "unknown_op"


async def test_a_handler_may_refuse() -> None:
    def refuse(stream: StreamBytes) -> None:
        raise Refused("No worker endpoint here.")

    async with connected(on_server=refuse) as (_, peer):
        await peer.send(FrameType.OPEN, 2, {"op": "server"})
        answer = (await peer.expect_json(FrameType.CLOSE))[1]
        assert answer["error"] == {"code": "refused", "message": "No worker endpoint here."}


async def test_a_handler_s_stream_carries_bytes_both_ways() -> None:
    streams: asyncio.Queue[StreamBytes] = asyncio.Queue()
    async with connected(on_server=streams.put_nowait) as (_, peer):
        await peer.send(FrameType.OPEN, 2, {"op": "server"})
        stream = await asyncio.wait_for(streams.get(), DEADLINE_S)
        await peer.send(FrameType.DATA, 2, b"request")
        await peer.send(FrameType.EOF, 2)
        assert (await stream.receive(), await stream.receive()) == (b"request", b"")
        await stream.send(b"answer")
        await stream.send_eof()
        assert (await peer.expect(FrameType.DATA)).payload == b"answer"
        assert (await peer.expect(FrameType.EOF)).stream == 2
        await peer.send(FrameType.CLOSE, 2, {})


async def test_streams_from_inside_are_limited_in_number_and_the_place_of_a_closed_one_is_free_again() -> None:
    streams: list[StreamBytes] = []
    async with connected(on_server=streams.append, max_server_streams=2) as (_, peer):
        for stream_id in (2, 4, 6):
            await peer.send(FrameType.OPEN, stream_id, {"op": "server"})
        assert (await peer.expect_json(FrameType.CLOSE))[0] == 6
        await streams[0].close()
        assert (await peer.expect(FrameType.CLOSE)).stream == 2
        await peer.send(FrameType.OPEN, 8, {"op": "server"})
        await peer.send(FrameType.OPEN, 10, {"op": "server"})
        assert (await peer.expect_json(FrameType.CLOSE))[0] == 10


async def _drain(stream: object) -> None:
    while True:
        if await stream.chunk(DEADLINE_S) is None:  # type: ignore[attr-defined]
            await stream.event(DEADLINE_S)  # type: ignore[attr-defined]


async def _failure(work: Awaitable[object]) -> SkerryError:
    try:
        await work
    except SkerryError as error:
        return error
    raise AssertionError("it did not fail")

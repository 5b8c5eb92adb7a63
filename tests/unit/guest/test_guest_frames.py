"""The frame codec: what goes in comes out however it is cut, and nothing bad gets through."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.guest import frames
from skerry.guest.frames import MAX_PAYLOAD, Decoder, Frame, FrameType
from skerry.model.errors import Invalid, ProtocolError

EXAMPLES = [
    ("020000000a000000000000006f6b", Frame(FrameType.PONG, 0, b"ok")),
    ("05000000030100000700000068690a00ff", Frame(FrameType.DATA, 7, b"hi\n\x00\xff", 1)),
    ("000000000400000007000000", Frame(FrameType.EOF, 7)),
    ("040000000500000009000000" + "00000400", Frame(FrameType.CREDIT, 9, struct.pack("<I", 262_144))),
    ("020000000800000002000000" + "7b7d", Frame(FrameType.CLOSE, 2, b"{}")),
]


def decode(data: bytes, cut: int | None = None) -> list[Frame]:
    decoder = Decoder()
    step = cut or len(data) or 1
    return [frame for at in range(0, len(data), step) for frame in decoder.feed(data[at : at + step])]


@pytest.mark.parametrize(("text", "frame"), EXAMPLES)
def test_examples_are_encoded_and_decoded_to_the_byte(text: str, frame: Frame) -> None:
    assert frames.encode(frame.type, frame.stream, frame.payload, frame.channel).hex() == text
    assert decode(bytes.fromhex(text)) == [frame]


any_frame = st.one_of(
    st.builds(
        Frame,
        st.just(int(FrameType.DATA)),
        st.integers(1, 2**32 - 1),
        st.binary(min_size=1, max_size=20_000),
        st.integers(0, 2),
    ),
    st.builds(Frame, st.just(int(FrameType.EOF)), st.integers(1, 2**32 - 1), st.just(b""), st.integers(0, 2)),
    st.builds(
        Frame,
        st.sampled_from([int(FrameType.OPEN), int(FrameType.CONTROL), int(FrameType.EVENT), int(FrameType.CLOSE)]),
        st.integers(1, 2**32 - 1),
        st.binary(max_size=300),
        st.just(0),
    ),
    st.builds(
        Frame,
        st.sampled_from([int(FrameType.PING), int(FrameType.PONG)]),
        st.just(0),
        st.binary(max_size=64),
        st.just(0),
    ),
)


@given(st.lists(any_frame, max_size=12), st.integers(1, 30_000))
def test_frames_survive_any_cutting(sent: list[Frame], cut: int) -> None:
    data = b"".join(frames.encode(frame.type, frame.stream, frame.payload, frame.channel) for frame in sent)
    assert decode(data, cut) == sent


def test_the_largest_frames_survive_being_fed_in_crumbs_and_at_once() -> None:
    sent = [Frame(FrameType.DATA, 1, bytes([n]) * MAX_PAYLOAD, 2) for n in range(5)]
    data = b"".join(frames.encode(frame.type, frame.stream, frame.payload, frame.channel) for frame in sent)
    for cut in (4_093, 65_536, 262_155, len(data)):
        assert decode(data, cut) == sent


@given(st.binary(max_size=400), st.integers(1, 50))
def test_any_bytes_give_frames_or_a_protocol_error(data: bytes, cut: int) -> None:
    try:
        for frame in decode(data, cut):
            assert len(frame.payload) <= MAX_PAYLOAD
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    "header",
    [
        struct.pack("<IBBHI", 0, 0, 0, 0, 1),  # unknown types
        struct.pack("<IBBHI", 0, 11, 0, 0, 1),
        struct.pack("<IBBHI", MAX_PAYLOAD + 1, 3, 0, 0, 1),  # too long
        struct.pack("<IBBHI", 0xFFFFFFFF, 7, 0, 0, 1),
        struct.pack("<IBBHI", 0, 3, 0, 0, 1),  # DATA without data
        struct.pack("<IBBHI", 1, 4, 0, 0, 1),  # EOF with data
        struct.pack("<IBBHI", 3, 5, 0, 0, 1),  # CREDIT that is no u32
        struct.pack("<IBBHI", 65, 9, 0, 0, 0),  # PING too long
        struct.pack("<IBBHI", 2, 7, 0, 1, 1),  # reserved
        struct.pack("<IBBHI", 2, 3, 3, 0, 1),  # channel over 2
        struct.pack("<IBBHI", 2, 7, 1, 0, 1),  # a channel on what has none
        struct.pack("<IBBHI", 2, 3, 0, 0, 0),  # DATA on the connection itself
        struct.pack("<IBBHI", 2, 1, 0, 0, 1),  # HELLO on a stream
    ],
)
def test_a_bad_header_is_refused_before_its_payload_comes(header: bytes) -> None:
    decoder = Decoder()
    for _ in range(2):
        with pytest.raises(ProtocolError):
            list(decoder.feed(header))
        header = b"x"  # and nothing is believed after it


def test_a_quiet_decoder_gives_its_buffer_back() -> None:
    decoder = Decoder()
    list(decoder.feed(frames.encode(FrameType.DATA, 1, b"x" * MAX_PAYLOAD)))
    list(decoder.feed(frames.encode(FrameType.DATA, 1, b"x" * MAX_PAYLOAD)))
    decoder.trim()
    assert len(decoder.space()) <= 16_384


def test_a_decoder_that_waits_for_more_keeps_what_it_has() -> None:
    whole = frames.encode(FrameType.DATA, 1, b"x" * 100_000)
    decoder = Decoder()
    assert list(decoder.feed(whole[:60_000])) == []
    decoder.trim()
    assert [len(frame.payload) for frame in decoder.feed(whole[60_000:])] == [100_000]


# -- JSON ------------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.text(), st.one_of(st.text(), st.integers(-(2**63), 2**63), st.booleans(), st.none())))
def test_json_comes_back_as_it_went(value: dict[str, Any]) -> None:
    assert frames.decode_json(frames.encode_json(value)) == value


@given(st.binary(max_size=300))
def test_file_names_of_any_bytes_come_back(name: bytes) -> None:
    text = name.decode("utf-8", "surrogateescape")
    payload = frames.encode_json({"name": text})
    assert frames.decode_json(payload)["name"].encode("utf-8", "surrogateescape") == name


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b'{"a":"\xff"}',
        b'{"a":"\xed\xa0\x80"}',
        b'{"a":' + b"9" * 100_000 + b"}",
        b'{"a":' + b"[" * 200_000,
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' * 40_000 + b"1" + b"}" * 40_000,
        b'{"a":' + b"[" * 33 + b"]" * 33 + b"}",
    ],
    ids=lambda payload: str(payload[:12]),
)
def test_what_is_not_a_flat_json_object_is_a_protocol_error(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        frames.decode_json(payload)


def test_many_brackets_that_do_not_nest_are_fine() -> None:
    value = {"list": [{"n": [number]} for number in range(500)], "text": '[{"' * 500}
    assert frames.decode_json(frames.encode_json(value)) == value


def test_what_does_not_fit_into_a_frame_is_refused() -> None:
    with pytest.raises(Invalid, match="has room for"):
        frames.encode_json({"shell": "x" * MAX_PAYLOAD})
    with pytest.raises(Invalid):
        frames.encode(FrameType.DATA, 1, b"x" * (MAX_PAYLOAD + 1))

"""What is said on a command's WebSocket, as the client reads it."""

import pytest

from skerry.model.errors import Invalid, ProtocolError, SandboxGone, Unavailable
from skerry.sdk.attachment import Ended, Reader
from skerry.sdk.results import Lost, Output
from skerry.sdk.sockets import broken


def test_the_position_counts_what_came_and_what_was_lost() -> None:
    reader = Reader(0, channels=False)
    assert reader.take('{"offset": 10}') is None
    assert reader.take(b"abc") == Output("stdout", b"abc", 13)
    assert reader.take('{"lost": {"offset": 13, "length": 7}}') == Lost(13, 7)
    assert reader.take(b"d") == Output("stdout", b"d", 21)
    assert reader.offset == 21


def test_a_commands_bytes_come_by_stream() -> None:
    reader = Reader(0, channels=True)
    assert reader.take(b"\x01out") == Output("stdout", b"out", 3)
    assert reader.take(b"\x02err") == Output("stderr", b"err", 6)


def test_the_end_is_kept() -> None:
    reader = Reader(0, channels=False)
    told = '{"exit": {"code": null, "signal": 9, "timed_out": false, "offset": 0, "reason": "killed", "message": null}}'
    assert reader.take(told) is None
    assert reader.ended == Ended(None, 9, False, "killed", None)
    assert reader.ended.shell_code == 137


@pytest.mark.parametrize("message", ["{", "[]", '{"lost": {}}', '{"offset": "x"}', '{"exit": 1}', b"", b"\x07x"])
def test_nonsense_is_an_error_of_ours(message: str | bytes) -> None:
    with pytest.raises(ProtocolError):
        Reader(0, channels=True).take(message)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (4410, SandboxGone),
        (1008, Invalid),
        (1009, Invalid),
        (1000, ProtocolError),
        (1012, Unavailable),
        (None, Unavailable),
    ],
)
def test_a_close_says_whether_it_may_be_taken_up_again(code: int | None, kind: type[Exception]) -> None:
    assert type(broken(code, {"code": "x", "message": "why"}, "")) is kind

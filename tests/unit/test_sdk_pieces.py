"""The parts of the client that do no I/O."""

import base64
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry import CommandFailed, GuestError, Invalid, NotFound, SkerryError, TooBusy, Unauthorized, Unavailable
from skerry.sdk.errors import error_from
from skerry.sdk.following import Follower
from skerry.sdk.results import Lost, Output, result_from
from skerry.sdk.settings import is_loopback, resolve
from skerry.sdk.sse import Decoder
from skerry.wire.commands import CommandView

ROOT = Path(__file__).resolve().parents[2]

VIEW: dict[str, object] = {
    "id": "cmd_1",
    "sandbox_id": "sbx_1",
    "command": "x",
    "status": "completed",
    "exit_code": 0,
    "working_directory": "/workspace",
    "timeout_seconds": 1,
    "started_at": "2030-01-01T00:00:00Z",
}


def view(**changes: object) -> CommandView:
    return CommandView.model_validate({**VIEW, **changes})


def event(name: str, data: str, offset: int) -> bytes:
    return f"id: {offset}\nevent: {name}\ndata: {data}\n\n".encode()


STREAM = (
    b": a comment\n\n"
    + event("stdout", base64.b64encode(b"\x00one").decode(), 4)
    + event("lost", json.dumps({"offset": 4, "length": 6}), 10)
    + event("stderr", base64.b64encode(b"\xfftwo").decode(), 14)
    + event("end", json.dumps(VIEW), 14)
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_events_are_the_same_in_whatever_pieces_they_arrive(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    follower = Follower(0)
    seen = [e for start, end in pairwise(edges) for e in follower.take(STREAM[start:end])]
    assert seen == [Output("stdout", b"\x00one", 4), Lost(4, 6), Output("stderr", b"\xfftwo", 14)]
    assert (follower.offset, follower.ended().exit_code) == (14, 0)


def test_what_was_lost_is_counted_over_all_connections() -> None:
    follower = Follower(0)
    list(follower.take(b'id: 5\nevent: lost\ndata: {"offset": 0, "length": 5}\n\n'))
    follower.reconnect()
    list(follower.take(b'id: 9\nevent: lost\ndata: {"offset": 6, "length": 3}\n\n'))
    list(follower.take(f"event: end\ndata: {CommandView.model_validate(VIEW).model_dump_json()}\n\n".encode()))
    assert follower.ended().lost_bytes == 8


def test_half_an_event_of_a_broken_connection_is_forgotten() -> None:
    follower = Follower(0)
    assert list(follower.take(STREAM[:40])) == []
    follower.reconnect()
    assert len(list(follower.take(STREAM))) == 3


def test_a_server_that_cannot_go_on_now_is_told_from_one_that_refuses() -> None:
    for code, kind in (("unavailable", Unavailable), ("not_found", SkerryError)):
        with pytest.raises(SkerryError) as caught:
            list(Follower(0).take(b'event: error\ndata: {"code": "%s", "message": "why"}\n\n' % code.encode()))
        assert (type(caught.value), caught.value.code) == (kind, code)


def test_carriage_returns_before_line_feeds_do_not_matter() -> None:
    told = list(Decoder().feed(b"event: a\r\ndata: 1\r\ndata: 2\r\n\r\n"))
    assert [(e.name, e.data) for e in told] == [("a", b"1\n2")]


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "not_found", NotFound),
        (401, "unauthorized", Unauthorized),
        (400, "no_space", GuestError),
        (503, "unavailable", Unavailable),
        (500, "internal", Unavailable),
    ],
)
def test_an_answer_becomes_the_error_it_stands_for(status: int, code: str, kind: type[Exception]) -> None:
    error = error_from(status, json.dumps({"error": {"code": code, "message": "why", "field": "f"}}).encode())
    assert type(error) is kind
    assert (error.code, error.message) == (code, "why")


@pytest.mark.parametrize(("status", "code"), [(429, "too_busy"), (507, "disk_full")])
def test_a_busy_server_says_when_to_come_back(status: int, code: str) -> None:
    error = error_from(status, json.dumps({"error": {"code": code, "message": "m"}}).encode(), "2.5")
    assert isinstance(error, TooBusy)
    assert error.retry_after_s == 2.5


def test_a_stranger_s_answer_is_shown_and_breaks_nothing() -> None:
    error = error_from(502, b"<html>Bad gateway</html>")
    assert isinstance(error, Unavailable)
    assert "Bad gateway" in error.message


def test_exact_bytes_win_over_replaced_text() -> None:
    result = result_from(view(stdout="\ufffd", stdout_base64=base64.b64encode(b"\xff").decode(), output_bytes=1))
    assert (result.stdout_bytes, result.stdout, result.truncated) == (b"\xff", "\ufffd", False)


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"exit_code": 5}, 5, "exit code 5"),
        ({"exit_code": None, "status": "failed", "signal": 9, "reason": "oom"}, 137, "signal 9 (oom)"),
        ({"exit_code": None, "status": "timeout", "signal": 9}, 124, "deadline"),
        ({"exit_code": None, "status": "failed", "reason": "not_started", "message": "no"}, 125, "no"),
        ({"exit_code": None, "status": "failed", "reason": "not_started", "message": "not_found: no x"}, 127, "no x"),
    ],
)
def test_an_ending_is_told_in_words_and_as_a_shell_would(changes: dict[str, object], code: int, words: str) -> None:
    result = result_from(view(**changes))
    assert result.shell_code == code
    with pytest.raises(CommandFailed, match=words.replace("(", r"\(").replace(")", r"\)")):
        result.check()


def test_what_is_given_wins_over_the_environment() -> None:
    environ = {"SKERRY_URL": "http://env:1/", "SKERRY_API_KEY": "env"}
    assert resolve(None, None, environ) == ("http://env:1", "env")
    assert resolve("http://given:2", "given", environ) == ("http://given:2", "given")
    with pytest.raises(Unauthorized, match="SKERRY_API_KEY"):
        resolve("http://given:2", None, {})
    with pytest.raises(Invalid, match="ftp"):
        resolve("ftp://x", "k", {})


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost", "http://a.localhost"])
def test_no_proxy_is_asked_for_this_machine(url: str) -> None:
    assert is_loopback(url)


@pytest.mark.parametrize(
    "url",
    ["http://example.org", "http://127.example.org", "http://127.0.0.1.example.org", "http://10.0.0.1", "http://x"],
)
def test_a_name_that_looks_like_this_machine_is_another(url: str) -> None:
    assert not is_loopback(url)


def test_the_blocking_half_is_what_the_asynchronous_one_generates() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "generate_sync.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_importing_skerry_stays_light() -> None:
    script = "import sys, skerry; print([n for n in ('pydantic', 'httpx2', 'asyncio', 'typer') if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "[]\n"

"""Connections: hello and proof, the bridge, reconnecting, and frames that break the rules."""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from sbxd.client import (
    CLOSE,
    CONTROL,
    CREDIT,
    DATA,
    EOF,
    EVENT,
    HELLO,
    OPEN,
    PING,
    PONG,
    SECRET,
    WINDOW,
    Client,
    Closed,
    Daemon,
    Link,
    proof,
    until,
)


def frame(
    kind: int, stream: int = 0, payload: bytes = b"", channel: int = 0, length: int | None = None, reserved: int = 0
) -> bytes:
    size = len(payload) if length is None else length
    return struct.pack("<IBBHI", size, kind, channel, reserved, stream) + payload


def test_hello_says_who_is_there(daemon: Daemon) -> None:
    client = Client(daemon.stdio)
    hello = client.hello
    assert (hello["protocol"], hello["secured"]) == (1, False)
    assert len(bytes.fromhex(hello["boot"])) == 16 and len(bytes.fromhex(hello["nonce"])) == 32


def test_a_ping_is_answered_with_its_bytes(client: Client) -> None:
    client.send(PING, 0, b"\0" * 64)
    answer = client.receive()
    assert (answer.type, answer.payload) == (PONG, b"\0" * 64)


@pytest.mark.parametrize(
    "first",
    [
        frame(OPEN, 1, b'{"op":"commands"}'),
        frame(PING, 0, b"x"),
        frame(HELLO, 0, b"{}x"),
        frame(HELLO, 0, b"[]"),
        frame(HELLO, 0, b'{"protocol":1}'),
        frame(HELLO, 0, b'{"protocol":1,"secret":"short"}'),
        frame(HELLO, 0, b'{"protocol":1,"secret":"' + b"Z" * 64 + b'"}'),
        frame(HELLO, 0, b'{"protocol":1,"secret":5}'),
        frame(HELLO, 0, b" " * 5000 + b"{}"),
    ],
)
def test_nothing_comes_before_a_right_hello(daemon: Daemon, first: bytes) -> None:
    client = Client(daemon.stdio)
    client.send_raw(first)
    client.expect_closed()


def test_another_protocol_is_told_so(daemon: Daemon) -> None:
    client = Client(daemon.stdio)
    client.send_json(HELLO, 0, {"protocol": 2, "secret": SECRET})
    answer = client.receive()
    assert (answer.type, answer.stream, answer.json["error"]["code"]) == (CLOSE, 0, "protocol")
    client.expect_closed()


def test_a_reconnect_needs_the_secret_to_be_set(daemon: Daemon) -> None:
    Client(daemon.stdio)
    link = Link(daemon.dial())
    link.expect_closed()


def test_the_right_proof_takes_over(daemon: Daemon, client: Client) -> None:
    command = client.exec("a", "sleep 300")
    client.event(command, "started")
    second = daemon.reconnect()
    assert second.hello["boot"] == client.hello["boot"] and second.hello["secured"] is True
    assert second.hello["nonce"] != client.hello["nonce"]
    client.expect_closed()
    assert second.ask("commands").closed["commands"][0]["running"] is True


@pytest.mark.parametrize("wrong", ["secret", "nonce", "empty", "short", "upper", "replay"])
def test_a_wrong_proof_takes_over_nothing(daemon: Daemon, client: Client, wrong: str) -> None:
    intruder = Client(daemon.dial())
    right = proof(intruder.hello, SECRET)
    attempts = {
        "secret": proof(intruder.hello, "00" * 32),
        "nonce": proof({**intruder.hello, "nonce": client.hello["nonce"]}, SECRET),
        "empty": "",
        "short": right[:-1],
        "upper": right.upper(),
        "replay": SECRET,
    }
    intruder.send_json(HELLO, 0, {"protocol": 1, "proof": attempts[wrong], "secret": SECRET})
    intruder.expect_closed()
    assert client.run("a", "echo mine").out == b"mine\n"


def test_the_proof_is_plain_hmac_sha256() -> None:
    hello = {"nonce": "01" * 32, "boot": "02" * 16}
    message = b"sbxd-proof-1" + b"\1" * 32 + b"\2" * 16
    assert proof(hello, SECRET) == hmac.new(b"\x5a" * 32, message, hashlib.sha256).hexdigest()


def test_an_unproven_connection_is_closed_after_a_while(daemon: Daemon, client: Client) -> None:
    idle = Client(daemon.dial())
    idle.expect_closed()
    assert client.run("a", "echo fine").out == b"fine\n"


def test_at_most_four_wait_for_their_proof(daemon: Daemon, client: Client) -> None:
    waiting = [Client(daemon.dial()) for _ in range(4)]
    with pytest.raises((Closed, BrokenPipeError)):
        Client(daemon.dial())
    waiting[0].close()
    until(lambda: can_dial(daemon))


def can_dial(daemon: Daemon) -> bool:
    try:
        Client(daemon.dial()).close()
    except Closed:
        return False
    return True


def test_only_root_may_knock(daemon: Daemon, client: Client) -> None:
    script = (
        "import socket,os; os.setuid(65534); s=socket.socket(socket.AF_UNIX);"
        f"s.connect('\\0{daemon.name}'); print(len(s.recv(100)))"
    )
    result = subprocess.run(["python3", "-c", script], capture_output=True, check=False)
    assert result.stdout.strip() in (b"0", b"") and b"Error" not in result.stderr.replace(b"ConnectionResetError", b"")
    assert client.run("a", "echo fine").out == b"fine\n"


@pytest.fixture
def bridge(daemon: Daemon, client: Client) -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [daemon.binary, "bridge", "--name", daemon.name], stdin=theirs.fileno(), stdout=theirs.fileno()
    )
    theirs.close()
    yield ours
    ours.close()
    assert process.wait(10) == 0


def test_the_bridge_is_a_way_back(client: Client, bridge: socket.socket) -> None:
    content = os.urandom(2_000_000)
    client.close()
    second = Client(bridge)
    second.prove()
    assert second.write_file("/dev/shm/sbxd-bridge-test", content).closed["size"] == 2_000_000
    assert second.ask("read", path="/dev/shm/sbxd-bridge-test").content == content
    assert second.ask("remove", path="/dev/shm/sbxd-bridge-test").closed == {"removed": 1}


def test_the_bridge_gives_no_way_in_without_the_secret(client: Client, bridge: socket.socket) -> None:
    second = Client(bridge)
    second.send_json(HELLO, 0, {"protocol": 1, "proof": "00" * 32})
    second.expect_closed()
    assert client.run("a", "echo mine").out == b"mine\n"


def test_the_bridge_works_over_pipes_and_files(daemon: Daemon, client: Client) -> None:
    process = subprocess.Popen(
        [daemon.binary, "bridge", "--name", daemon.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin and process.stdout
    header = process.stdout.read(12)
    assert header[4] == HELLO
    process.stdin.close()
    assert process.wait(10) == 0
    process.stdout.close()


def test_a_bridge_to_nobody_says_so(daemon: Daemon) -> None:
    result = subprocess.run([daemon.binary, "bridge", "--name", "nobody-listens-here"], capture_output=True)
    assert result.returncode == 1
    assert b"no sbxd answers" in result.stderr


BREAKING = {
    "type 0": frame(0, 1),
    "type 11": frame(11, 1, b"x"),
    "too long": frame(DATA, 1, length=WINDOW + 1),
    "huge": frame(OPEN, 3, length=0xFFFFFFFF),
    "reserved": frame(PING, 0, reserved=1),
    "channel 3": frame(DATA, 1, b"x", channel=3),
    "a channel on CREDIT": frame(CREDIT, 1, b"\1\0\0\0", channel=1),
    "stdout from the host": frame(DATA, 1, b"x", channel=1),
    "PING on a stream": frame(PING, 1),
    "DATA on stream 0": frame(DATA, 0, b"x"),
    "empty DATA": frame(DATA, 1),
    "EOF with bytes": frame(EOF, 1, b"x"),
    "short CREDIT": frame(CREDIT, 1, b"\1"),
    "long PING": frame(PING, 0, b"x" * 65),
    "credit without end": frame(CREDIT, 3, b"\xff\xff\xff\x7f") * 2,
    "an even id": frame(OPEN, 8, b'{"op":"commands"}'),
    "a used id": frame(OPEN, 1, b'{"op":"commands"}'),
    "never opened": frame(DATA, 99, b"x"),
    "never opened by sbxd": frame(CLOSE, 4, b"{}"),
    "EVENT from the host": frame(EVENT, 3, b"{}"),
    "a second hello": frame(HELLO, 0, b'{"protocol":1}'),
    "CLOSE of the connection": frame(CLOSE, 0, b"{}"),
    "no JSON": frame(OPEN, 5, b"{"),
    "JSON and more": frame(OPEN, 5, b"{} {}"),
    "no object": frame(OPEN, 5, b"[1]"),
    "empty JSON": frame(OPEN, 5, b""),
    "bad UTF-8": frame(OPEN, 5, b'{"op":"\xff"}'),
    "a lone high surrogate": frame(OPEN, 5, b'{"op":"\\ud800"}'),
    "a surrogate that is no byte": frame(OPEN, 5, b'{"op":"\\udc7f"}'),
    "deep JSON": frame(OPEN, 5, b"[" * 200000),
    "deep and right JSON": frame(OPEN, 5, b'{"op":' + b"[" * 17 + b"]" * 17 + b"}"),
    "a raw control character": frame(OPEN, 5, b'{"op":"\n"}'),
    "a bad escape": frame(OPEN, 5, b'{"op":"\\x"}'),
    "a number like 01": frame(OPEN, 5, b'{"op":01}'),
    "a trailing comma": frame(OPEN, 5, b'{"op":"x",}'),
    "a bare key": frame(OPEN, 5, b"{op:1}"),
    "CONTROL that is no JSON": frame(CONTROL, 3, b"x"),
    "DATA after EOF": frame(EOF, 3) + frame(DATA, 3, b"x"),
    "EOF twice": frame(EOF, 3) * 2,
    "DATA beyond the credit": frame(DATA, 3, b"x" * WINDOW) * 2,  # the pipe takes a part, never all of it
}


@pytest.mark.parametrize("name", BREAKING)
def test_a_frame_against_the_rules_ends_the_connection_and_nothing_else(
    daemon: Daemon, client: Client, name: str
) -> None:
    assert client.ask("commands").closed == {"commands": []}  # stream 1, over
    stream = client.exec("a", "sleep 300", stdin=True)  # stream 3, open
    client.event(stream, "started")
    client.send_raw(BREAKING[name])
    client.expect_closed()
    second = daemon.reconnect()
    assert second.ask("commands").closed["commands"][0]["running"] is True


def test_frames_for_a_stream_that_is_over_are_ignored(client: Client) -> None:
    client.ask("commands")
    for late in (
        frame(DATA, 1, b"x"),
        frame(EOF, 1),
        frame(CREDIT, 1, b"\1\0\0\0"),
        frame(CONTROL, 1, b"{}"),
        frame(CLOSE, 1, b"{}"),
    ):
        client.send_raw(late)
    assert client.run("a", "echo fine").out == b"fine\n"


def test_an_unknown_op_is_answered(client: Client) -> None:
    assert client.ask("teleport").code == "unknown_op"
    assert client.ask("").code == "unknown_op"
    stream = client.new_id()
    client.send(OPEN, stream, b'{"future":[1,2.5e3,{"x":null}],"op":"commands"}')
    assert client.finish(stream).closed == {"commands": []}


def test_json_numbers_strings_and_doubled_keys(client: Client) -> None:
    stream = client.new_id()
    client.send(OPEN, stream, b' { "op" : "x" , "op":"\\u0073tat","path":"\\/etc","follow":true } ')
    assert client.finish(stream).closed["path"] == "/etc"
    for number in (b"-1", b"1e2", b"99999999999999999999", b"-9223372036854775809", b"9223372036854775808", b"-0.5"):
        stream = client.new_id()
        client.send(OPEN, stream, b'{"op":"read","path":"/etc/passwd","offset":' + number + b"}")
        assert client.finish(stream).code == "invalid", number


def test_frames_may_come_byte_by_byte_or_many_at_once(client: Client) -> None:
    one = frame(OPEN, 1, b'{"op":"commands"}')
    for i in range(len(one)):
        client.send_raw(one[i : i + 1])
    assert client.finish(1).closed == {"commands": []}
    client.send_raw(b"".join(frame(OPEN, i, b'{"op":"commands"}') for i in range(3, 1003, 2)))
    for i in range(3, 1003, 2):
        assert client.finish(i).closed == {"commands": []}


def test_too_many_streams_are_refused(client: Client, tmp_path: Path) -> None:
    streams = [client.open("read", path="/dev/null/x") for _ in range(3)]
    assert all(client.finish(s).code == "not_a_directory" for s in streams)
    held = [client.open("write", path=f"{tmp_path}/{i}") for i in range(1024)]
    assert client.ask("commands").code == "limit"
    for stream in held:
        client.send_json(CLOSE, stream, {})
    assert client.ask("commands").closed == {"commands": []}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["server.sock", "stderr"]


def test_the_host_going_away_disturbs_nothing(daemon: Daemon, client: Client) -> None:
    stream = client.exec("a", "sleep 0.3; exit 3")
    client.event(stream, "started")
    client.close()
    second = daemon.reconnect()
    assert second.ask("attach", id="a", **{"from": 0}).exit["code"] == 3


def test_version_and_usage(daemon: Daemon) -> None:
    version = subprocess.run([daemon.binary, "--version"], capture_output=True, text=True, check=True).stdout
    assert version.startswith("sbxd 0.")
    assert subprocess.run([daemon.binary, "dance"], capture_output=True).returncode == 2

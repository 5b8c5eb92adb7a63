"""A small, independent speaker of the sbxd protocol, for the tests of the real binary.

It never imports the server's codec: the two must agree through PROTOCOL.md and the golden frames alone.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import select
import signal
import socket
import struct
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HELLO, OPEN, DATA, EOF, CREDIT, CONTROL, EVENT, CLOSE, PING, PONG = range(1, 11)
WINDOW = 262144
SECRET = "5a" * 32
PATIENCE_S = 15.0

Json = dict[str, Any]


@dataclass
class Frame:
    type: int
    channel: int
    stream: int
    payload: bytes

    @property
    def json(self) -> Json:
        return json.loads(self.payload)


class Closed(Exception):
    """The peer closed the connection."""


class Link:
    """One connection: frames out, frames in, in the order they come."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer = bytearray()
        self.next_id = 1

    def send_raw(self, data: bytes) -> None:
        self.sock.sendall(data)

    def send(self, kind: int, stream: int = 0, payload: bytes = b"", channel: int = 0) -> None:
        self.send_raw(struct.pack("<IBBHI", len(payload), kind, channel, 0, stream) + payload)

    def send_json(self, kind: int, stream: int, value: Json) -> None:
        self.send(kind, stream, json.dumps(value).encode())

    def receive(self, patience_s: float = PATIENCE_S) -> Frame:
        deadline = time.monotonic() + patience_s
        while True:
            if len(self.buffer) >= 12:
                length, kind, channel, reserved, stream = struct.unpack_from("<IBBHI", self.buffer)
                assert reserved == 0 and length <= WINDOW
                if len(self.buffer) >= 12 + length:
                    payload = bytes(self.buffer[12 : 12 + length])
                    del self.buffer[: 12 + length]
                    return Frame(kind, channel, stream, payload)
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.sock], [], [], left)[0]:
                raise TimeoutError("sbxd said nothing")
            try:
                data = self.sock.recv(1 << 20)
            except ConnectionResetError:
                data = b""
            if not data:
                raise Closed
            self.buffer += data

    def expect_closed(self) -> None:
        try:
            while True:
                self.receive()
        except Closed:
            return

    def new_id(self) -> int:
        stream, self.next_id = self.next_id, self.next_id + 2
        return stream

    def open(self, op: str, **members: Any) -> int:
        stream = self.new_id()
        self.send_json(OPEN, stream, {"op": op, **members})
        return stream

    def close(self) -> None:
        self.sock.close()


@dataclass
class Result:
    """All that one stream said until its CLOSE."""

    events: list[Json] = field(default_factory=list)
    channels: dict[int, bytearray] = field(default_factory=dict)
    closed: Json = field(default_factory=dict)

    def event(self, name: str) -> Json:
        return next(e for e in self.events if e["event"] == name)

    @property
    def out(self) -> bytes:
        return bytes(self.channels.get(1, b""))

    @property
    def err(self) -> bytes:
        return bytes(self.channels.get(2, b""))

    @property
    def content(self) -> bytes:
        return bytes(self.channels.get(0, b""))

    @property
    def exit(self) -> Json:
        return self.event("exited")

    @property
    def code(self) -> str:
        return self.closed["error"]["code"]


class Client(Link):
    """A proven connection that hands each stream's frames to whoever waits for that stream."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.hello = self.receive().json
        self.waiting: list[Frame] = []

    def greet(self, **members: Any) -> None:
        self.send_json(HELLO, 0, {"protocol": 1, **members})
        answer = self.receive()
        assert (answer.type, answer.payload) == (PONG, b"ok"), answer

    def prove(self, secret: str = SECRET) -> None:
        self.greet(proof=proof(self.hello, secret))

    def next(self, stream: int, patience_s: float = PATIENCE_S) -> Frame:
        for i, frame in enumerate(self.waiting):
            if frame.stream == stream:
                return self.waiting.pop(i)
        deadline = time.monotonic() + patience_s
        while (frame := self.receive(deadline - time.monotonic())).stream != stream:
            self.waiting.append(frame)
        return frame

    def credit(self, stream: int, amount: int) -> None:
        self.send(CREDIT, stream, struct.pack("<I", amount))

    def finish(self, stream: int, patience_s: float = PATIENCE_S) -> Result:
        result = Result()
        while True:
            frame = self.next(stream, patience_s)
            if frame.type == EVENT:
                result.events.append(frame.json)
            elif frame.type == DATA:
                result.channels.setdefault(frame.channel, bytearray()).extend(frame.payload)
                self.credit(stream, len(frame.payload))
            elif frame.type == CLOSE:
                result.closed = frame.json
                return result

    def ask(self, op: str, **members: Any) -> Result:
        return self.finish(self.open(op, **members))

    def exec(self, command_id: str, shell: str | None = None, **members: Any) -> int:
        members = {"cwd": "/", **members}
        return self.open("exec", id=command_id, **({"shell": shell} if shell is not None else {}), **members)

    def run(self, command_id: str, shell: str | None = None, **members: Any) -> Result:
        return self.finish(self.exec(command_id, shell, **members))

    def event(self, stream: int, name: str) -> Json:
        frame = self.next(stream)
        assert frame.type == EVENT and frame.json["event"] == name, frame
        return frame.json

    def read_until(self, stream: int, wanted: bytes) -> bytes:
        """Output up to and with `wanted`, acknowledged."""
        got = b""
        while wanted not in got:
            frame = self.next(stream)
            if frame.type == DATA:
                got += frame.payload
                self.credit(stream, len(frame.payload))
            else:
                assert frame.type != CLOSE, (got, frame)
        return got

    def write_file(self, path: str, content: bytes, **members: Any) -> Result:
        return self.upload("write", content, path=path, **members)

    def upload(self, op: str, content: bytes, **members: Any) -> Result:
        """An op that takes DATA and then EOF."""
        stream = self.open(op, **members)
        allowed = WINDOW
        for start in range(0, len(content), WINDOW):
            piece = content[start : start + WINDOW]
            while allowed < len(piece):
                frame = self.next(stream)
                if frame.type == CLOSE:
                    return Result(closed=frame.json)
                if frame.type == CREDIT:
                    allowed += struct.unpack("<I", frame.payload)[0]
                else:
                    assert frame.type == EVENT, frame
            self.send(DATA, stream, piece)
            allowed -= len(piece)
        self.send(EOF, stream)
        return self.finish(stream)


def proof(hello: Json, secret: str) -> str:
    message = b"sbxd-proof-1" + bytes.fromhex(hello["nonce"]) + bytes.fromhex(hello["boot"])
    return hmac.new(bytes.fromhex(secret), message, hashlib.sha256).hexdigest()


class Daemon:
    """A running sbxd outside a container, with a socket name and a server socket of its own."""

    def __init__(self, binary: Path, directory: Path) -> None:
        self.binary = binary
        self.name = f"sbxd-test-{os.getpid()}-{os.urandom(6).hex()}"
        self.server_path = directory / "server.sock"
        ours, theirs = socket.socketpair()
        self.stderr_path = directory / "stderr"
        with self.stderr_path.open("wb") as stderr:
            self.process = subprocess.Popen(
                [binary, "init", "--name", self.name, "--server", str(self.server_path)],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=stderr,
            )
        theirs.close()
        self.stdio = ours
        self.sockets = [ours]

    def first_client(self) -> Client:
        client = Client(self.stdio)
        client.greet(secret=SECRET)
        return client

    def dial(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        self.sockets.append(sock)
        sock.connect("\0" + self.name)
        return sock

    def reconnect(self) -> Client:
        client = Client(self.dial())
        client.prove()
        return client

    def keepers(self) -> list[int]:
        return children_of(self.process.pid)

    def stop(self) -> None:
        for sock in self.sockets:
            sock.close()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(10)


def stat_fields(pid: int | str) -> list[str]:
    """The fields of /proc/pid/stat from the state on; empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().decode(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def process_table() -> dict[int, int]:
    """Every process and its parent, at one look."""
    pids = [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()]
    return {pid: int(f[1]) for pid in pids if (f := stat_fields(pid))}


def children_of(parent: int) -> list[int]:
    return [pid for pid, its_parent in process_table().items() if its_parent == parent]


def descendants_of(roots: list[int]) -> list[int]:
    table, found, level = process_table(), [], set(roots)
    while level:
        level = {pid for pid, parent in table.items() if parent in level}
        found += level
    return found


def is_alive(pid: int) -> bool:
    fields = stat_fields(pid)
    return bool(fields) and fields[0] not in "ZX"


def until(condition: Any, patience_s: float = PATIENCE_S) -> None:
    """Waits until `condition()` holds; fails after `patience_s`."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.005)

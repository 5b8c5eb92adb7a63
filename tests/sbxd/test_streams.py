"""Terminals, ports and the socket that leads from inside to the host."""

from __future__ import annotations

import os
import socket
import threading

import pytest
from sbxd.client import CLOSE, CONTROL, DATA, EOF, OPEN, WINDOW, Client, Daemon, until


def test_a_terminal_has_the_size_it_was_given(client: Client) -> None:
    result = client.run("a", "stty size; tty; test -t 0 -a -t 1 -a -t 2 && echo all", tty={"cols": 132, "rows": 43})
    lines = result.out.split(b"\r\n")
    assert (lines[0], lines[2]) == (b"43 132", b"all")
    assert result.err == b""


def test_a_terminal_of_no_size_is_80_by_24(client: Client) -> None:
    assert client.run("a", "stty size", tty={"cols": 0, "rows": 0}).out == b"24 80\r\n"
    assert client.run("b", "stty size", tty={}).out == b"24 80\r\n"


def test_a_resize_is_seen_and_signalled(client: Client) -> None:
    script = "trap 'stty size; echo winch' WINCH; echo ready; while :; do sleep 0.02; done"
    stream = client.exec("a", script, tty={"cols": 132, "rows": 43})
    client.read_until(stream, b"ready\r\n")
    client.send_json(CONTROL, stream, {"resize": {"cols": 80, "rows": 24}})
    assert b"24 80" in client.read_until(stream, b"winch")
    client.send_json(CONTROL, stream, {"kill": True})
    assert client.finish(stream).exit["signal"] == 9


def test_a_terminal_takes_input_and_the_interrupt_key(client: Client) -> None:
    stream = client.exec("a", "stty -echo; echo ready; read x; echo got $x; sleep 300", tty={})
    client.read_until(stream, b"ready\r\n")
    client.send(DATA, stream, b"hello\n")
    client.read_until(stream, b"got hello\r\n")
    client.send(DATA, stream, b"\x03")
    assert client.finish(stream).exit["signal"] == 2


def test_the_end_of_input_on_a_terminal_is_its_end_of_file_key(client: Client) -> None:
    stream = client.exec("a", "stty -echo; echo ready; cat; echo over", tty={})
    client.read_until(stream, b"ready\r\n")
    client.send(DATA, stream, b"line\n")
    client.send(EOF, stream)
    assert client.finish(stream).out == b"line\r\nover\r\n"


def test_all_output_of_a_terminal_comes_before_its_end(client: Client) -> None:
    result = client.run("a", "seq 20000", tty={})
    assert result.out == "".join(f"{i}\r\n" for i in range(1, 20001)).encode()


def test_a_background_process_on_a_terminal_does_not_hold_the_end(client: Client) -> None:
    assert client.run("a", "trap '' HUP; sleep 300 & echo out", tty={}).exit["code"] == 0


def test_a_terminal_belongs_to_its_user(client: Client) -> None:
    assert client.run("a", "stat -c %u $(tty)", tty={}, user="nobody").out == b"65534\r\n"


class Server:
    """A listener on loopback, of either family, that hands out its connections."""

    def __init__(self, family: int = socket.AF_INET) -> None:
        self.socket = socket.socket(family)
        self.socket.bind(("127.0.0.1" if family == socket.AF_INET else "::1", 0))
        self.socket.listen()
        self.port = self.socket.getsockname()[1]

    def accept(self) -> socket.socket:
        self.socket.settimeout(10)
        connection = self.socket.accept()[0]
        connection.settimeout(10)
        return connection

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def test_a_port_carries_bytes_both_ways_and_both_ends(client: Client) -> None:
    with Server() as server:
        stream = client.open("port", port=server.port)
        with server.accept() as peer:
            client.event(stream, "connected")
            client.send(DATA, stream, b"question\0\xff")
            assert peer.recv(100) == b"question\0\xff"
            client.send(EOF, stream)
            assert peer.recv(100) == b""
            peer.sendall(b"answer")
            peer.shutdown(socket.SHUT_WR)
            frames = [client.next(stream) for _ in range(3)]
    assert [(f.type, f.payload) for f in frames] == [(DATA, b"answer"), (EOF, b""), (CLOSE, b"{}")]


def test_a_port_on_ipv6_only(client: Client) -> None:
    try:
        server = Server(socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    with server:
        stream = client.open("port", port=server.port)
        server.accept().close()
        client.event(stream, "connected")
        assert client.next(stream).type == EOF


def test_a_port_nobody_listens_on(client: Client) -> None:
    with Server() as server:
        port = server.port
    assert client.ask("port", port=port).code == "refused"
    for bad in (0, 65536, -1, "80", None):
        assert client.ask("port", port=bad).code == "invalid"


def test_a_port_under_load_keeps_to_its_credit(client: Client) -> None:
    with Server() as server:
        stream = client.open("port", port=server.port)
        peer = server.accept()
        content = os.urandom(5_000_000)

        def send() -> None:
            peer.sendall(content)
            peer.close()

        sender = threading.Thread(target=send)
        sender.start()
        client.event(stream, "connected")
        got = b""
        while len(got) < WINDOW:
            got += client.next(stream).payload
        assert len(got) == WINDOW
        assert client.run("a", "echo fine").out == b"fine\n"
        client.credit(stream, WINDOW)
        client.send(EOF, stream)
        while True:
            frame = client.next(stream)
            if frame.type == CLOSE:
                break
            got += frame.payload
            if frame.type == DATA:
                client.credit(stream, len(frame.payload))
        sender.join()
    assert got == content


def test_a_slow_reader_inside_holds_back_the_credit(client: Client) -> None:
    with Server() as server:
        stream = client.open("port", port=server.port)
        with server.accept() as peer:
            client.event(stream, "connected")
            sent, allowed = 0, WINDOW
            while allowed and sent < 20_000_000:
                client.send(DATA, stream, b"x" * min(allowed, 65536))
                sent += min(allowed, 65536)
                allowed -= min(allowed, 65536)
                client.send(9, 0, b"p")
                while (frame := client.receive()).type != 10:
                    assert frame.type == 5
                    allowed += int.from_bytes(frame.payload, "little")
            assert sent < 20_000_000, "sbxd took more than any buffer holds"
            client.send(EOF, stream)
            got = 0
            while chunk := peer.recv(1 << 20):
                got += len(chunk)
            assert got == sent


def test_a_connection_that_breaks_inside_is_told(client: Client) -> None:
    with Server() as server:
        stream = client.open("port", port=server.port)
        peer = server.accept()
        client.event(stream, "connected")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.close()
        assert client.finish(stream).code == "io"


def test_the_host_closing_a_port_closes_the_connection(client: Client) -> None:
    with Server() as server:
        stream = client.open("port", port=server.port)
        with server.accept() as peer:
            client.event(stream, "connected")
            client.send_json(CLOSE, stream, {})
            assert peer.recv(10) == b""


def dial_server(daemon: Daemon) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(daemon.server_path))
    sock.settimeout(10)
    return sock


def test_a_stream_from_inside(daemon: Daemon, client: Client) -> None:
    with dial_server(daemon) as one, dial_server(daemon) as two:
        opened = [client.receive(), client.receive()]
        assert [(f.type, f.stream, f.json) for f in opened] == [
            (OPEN, 2, {"op": "server"}),
            (OPEN, 4, {"op": "server"}),
        ]
        one.sendall(b"from one")
        assert client.next(2).payload == b"from one"
        client.send(DATA, 4, b"to two")
        assert two.recv(100) == b"to two"
        client.send_json(CLOSE, 4, {"error": {"code": "refused", "message": "no"}})
        assert two.recv(100) == b""
        one.shutdown(socket.SHUT_WR)
        assert client.next(2).type == EOF
        client.send(DATA, 2, b"bye")
        client.send(EOF, 2)
        assert one.recv(100) == b"bye"
        assert client.next(2).type == CLOSE


def test_any_user_inside_may_dial_the_server(daemon: Daemon, client: Client) -> None:
    assert daemon.server_path.stat().st_mode & 0o777 == 0o666


def test_without_a_host_the_server_socket_hangs_up(daemon: Daemon, client: Client) -> None:
    client.close()

    def hung_up() -> bool:
        with dial_server(daemon) as sock:
            return sock.recv(1) == b""

    until(hung_up)
    second = daemon.reconnect()
    with dial_server(daemon) as sock:
        stream = second.receive().stream
        assert stream % 2 == 0
        second.send(DATA, stream, b"x")
        assert sock.recv(1) == b"x"


def test_streams_from_inside_are_bounded(daemon: Daemon, client: Client) -> None:
    held = [dial_server(daemon) for _ in range(256)]
    with dial_server(daemon) as one_more:
        assert one_more.recv(1) == b""
    for sock in held:
        sock.close()
    assert client.run("a", "echo fine").out == b"fine\n"

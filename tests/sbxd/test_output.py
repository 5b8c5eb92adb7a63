"""Output that waits: credit, detaching, attaching by offset, and a lost connection."""

from __future__ import annotations

from pathlib import Path

from sbxd.client import CLOSE, DATA, WINDOW, Client, Daemon, until

RING = 262144


def read_uncredited(client: Client, stream: int, amount: int) -> bytes:
    got = b""
    while len(got) < amount:
        frame = client.next(stream)
        if frame.type == DATA:
            got += frame.payload
    return got


def offset_of(client: Client, command_id: str) -> int:
    return next(c["offset"] for c in client.ask("commands").closed["commands"] if c["id"] == command_id)


def test_a_writer_blocks_when_the_host_does_not_acknowledge(client: Client) -> None:
    stream = client.exec("a", "yes | head -c 1000000; echo end >&2")
    assert len(read_uncredited(client, stream, WINDOW)) == WINDOW
    assert client.ask("commands").closed["commands"][0]["running"] is True
    client.credit(stream, WINDOW)
    result = client.finish(stream)
    assert len(result.out) == 1000000 - WINDOW
    assert result.err == b"end\n"


def test_a_stalled_stream_stalls_no_other(client: Client) -> None:
    stalled = client.exec("a", "yes")
    read_uncredited(client, stalled, WINDOW)
    for i in range(20):
        assert client.run(f"b{i}", "echo fine").out == b"fine\n"


def test_exited_waits_for_the_acknowledgement(client: Client) -> None:
    stream = client.exec("a", "echo hi")
    client.event(stream, "started")
    assert client.next(stream).payload == b"hi\n"
    until(lambda: client.ask("commands").closed["commands"][0]["running"] is False)
    client.credit(stream, 2)
    assert client.ask("commands").closed["commands"][0]["acked"] == 2
    assert not [f for f in client.waiting if f.stream == stream]
    client.credit(stream, 1)
    assert client.finish(stream).exit["offset"] == 3


def test_a_detached_command_fills_its_ring_and_then_blocks(client: Client) -> None:
    stream = client.exec("a", "yes 1234567 | head -c 1000000; echo done >&2")
    client.event(stream, "started")
    client.send_json(CLOSE, stream, {})
    until(lambda: offset_of(client, "a") == RING)
    attached = client.open("attach", id="a", **{"from": 0})
    assert client.event(attached, "attached")["from"] == 0
    result = client.finish(attached)
    assert result.out == (b"1234567\n" * 125001)[:1000000]
    assert result.err == b"done\n"
    assert result.exit["code"] == 0


def test_attach_continues_at_the_offset_that_was_reached(client: Client) -> None:
    stream = client.exec("a", "seq 1000; sleep 300")
    total = sum(len(str(i)) + 1 for i in range(1, 1001))
    first = read_uncredited(client, stream, total)
    client.credit(stream, 100)
    again = client.open("attach", id="a", **{"from": 250})
    assert client.next(stream).json["error"]["code"] == "replaced"
    event = client.event(again, "attached")
    assert (event["from"], event["running"]) == (250, True)
    assert read_uncredited(client, again, total - 250) == first[250:]


def test_a_lost_range_is_told_exactly(client: Client) -> None:
    stream = client.exec("a", "seq 1000; sleep 300")
    data = client.read_until(stream, b"\n1000\n")
    again = client.open("attach", id="a", **{"from": 10})
    assert client.event(again, "attached")["from"] == len(data)


def test_attach_to_what_is_not_there(client: Client) -> None:
    client.run("a", "echo x")
    assert client.ask("attach", id="b", **{"from": 0}).code == "not_found"
    assert client.ask("attach", id="a", **{"from": 3}).code == "invalid"
    assert client.ask("attach", id="a", **{"from": -1}).code == "invalid"


def test_an_ended_command_tells_its_end_to_whoever_attaches(client: Client) -> None:
    client.run("a", "echo x; exit 9")
    for _ in range(2):
        result = client.ask("attach", id="a", **{"from": 2})
        assert result.event("attached")["running"] is False
        assert (result.exit["code"], result.exit["offset"]) == (9, 2)


def test_a_lost_connection_loses_no_byte_and_no_exit_code(daemon: Daemon, client: Client) -> None:
    stream = client.exec("a", "seq 100000; echo err >&2; exit 6")
    first = read_uncredited(client, stream, 1000)[:1000]
    client.close()
    second = daemon.reconnect()
    result = second.finish(second.open("attach", id="a", **{"from": 1000}))
    assert first + result.out == "".join(f"{i}\n" for i in range(1, 100001)).encode()
    assert (result.err, result.exit["code"]) == (b"err\n", 6)


def test_alternating_channels_fill_the_ring_and_come_back_in_order(client: Client) -> None:
    script = "import os\nfor i in range(100000): os.write(1 + i % 2, b'%d' % (i % 10))"
    stream = client.exec("a", argv=["python3", "-c", script])
    client.event(stream, "started")
    client.send_json(CLOSE, stream, {})
    until(lambda: offset_of(client, "a") == 100000)
    result = client.finish(client.open("attach", id="a", **{"from": 0}), 60)
    assert result.out == b"02468" * 10000
    assert result.err == b"13579" * 10000


def test_stdin_goes_on_after_a_new_attach(daemon: Daemon, client: Client) -> None:
    stream = client.exec("a", "cat", stdin=True)
    client.send(DATA, stream, b"one\n")
    client.read_until(stream, b"one\n")
    client.close()
    second = daemon.reconnect()
    again = second.open("attach", id="a", **{"from": 4})
    second.send(DATA, again, b"two\n")
    second.send(4, again)
    assert second.finish(again).out == b"two\n"


def test_a_credit_for_more_than_was_sent_breaks_the_connection_only(daemon: Daemon, client: Client) -> None:
    stream = client.exec("a", "echo hi; sleep 0.5; exit 2")
    client.read_until(stream, b"hi\n")
    client.credit(stream, 1)
    client.expect_closed()
    second = daemon.reconnect()
    assert second.ask("attach", id="a", **{"from": 3}).exit["code"] == 2


def test_fifty_megabytes_pass_in_flat_memory(daemon: Daemon, client: Client) -> None:
    stream = client.exec("a", "head -c 50000000 /dev/zero")
    total, peak = 0, 0
    while True:
        frame = client.next(stream)
        if frame.type == DATA:
            total += len(frame.payload)
            client.credit(stream, len(frame.payload))
            if total % 10 == 0:
                peak = max(peak, resident_kb(daemon))
        elif frame.type == CLOSE:
            break
    assert total == 50000000
    assert peak < 4096 or "asan" in daemon.binary.name


def resident_kb(daemon: Daemon) -> int:
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def test_memory_is_given_back_when_idle(daemon: Daemon, client: Client) -> None:
    if "asan" in daemon.binary.name:
        return  # the sanitizer keeps what is freed
    for i in range(20):
        client.run(f"c{i}", "seq 100000")
    until(lambda: resident_kb(daemon) < 700)

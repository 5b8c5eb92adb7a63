"""What runs inside and what listens, and the small op that sets mode and times."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from sbxd.client import Client, Json, until


def lines(client: Client, op: str) -> list[Json]:
    result = client.ask(op)
    found = [json.loads(line) for line in result.content.splitlines()]
    assert result.closed == {"count": len(found)}
    return found


def one(client: Client, **wanted: Any) -> Json:
    [found] = [p for p in lines(client, "processes") if all(p.get(key) == value for key, value in wanted.items())]
    return found


def test_a_process_is_told_with_its_command_and_its_arguments(client: Client) -> None:
    client.event(client.exec("job", argv=["sleep", "61.5", "0"], cwd="/"), "started")
    found = one(client, command="job")
    assert found["argv"] == ["sleep", "61.5", "0"] and found["name"] == "sleep"
    assert found["uid"] == 0 and found["state"] in ("S", "R") and found["rss_bytes"] > 0
    assert 0 <= found["age_ms"] < 60_000 and found["cpu_ms"] < 60_000


def test_descendants_belong_to_their_command_even_when_orphaned(client: Client) -> None:
    stream = client.exec("parent", "setsid sh -c 'sleep 62 & exit' & sleep 63")
    client.event(stream, "started")
    until(lambda: any(p["argv"][:2] == ["sleep", "62"] for p in lines(client, "processes")))
    until(lambda: one(client, argv=["sleep", "62"]).get("command") == "parent")
    assert one(client, argv=["sleep", "63"])["command"] == "parent"


def test_sbxds_own_processes_are_not_listed(client: Client, daemon: Any) -> None:
    client.event(client.exec("job", "sleep 61"), "started")
    ours = {daemon.process.pid, *daemon.keepers()}
    assert not {p["pid"] for p in lines(client, "processes")} & ours


def test_odd_names_and_arguments_are_told_as_they_are_and_bounded(client: Client, tmp_path: Path) -> None:
    program = tmp_path / "a) S 1 (b"
    program.write_bytes(Path("/bin/sleep").read_bytes())
    program.chmod(0o755)
    client.event(client.exec("odd", argv=[str(program), "64"]), "started")
    assert one(client, command="odd")["name"] == "a) S 1 (b"
    client.event(client.exec("long", argv=["sh", "-c", "sleep 65; :", "x" * 100_000]), "started")
    found = [
        p for p in lines(client, "processes") if p.get("command") == "long" and p["name"] in ("sh", "dash", "bash")
    ]
    assert sum(len(argument) for argument in found[0]["argv"]) < 5000


def test_cpu_time_and_age_grow(client: Client) -> None:
    client.event(client.exec("busy", "while :; do :; done"), "started")
    until(lambda: one(client, command="busy")["cpu_ms"] > 50)
    first = one(client, command="busy")["age_ms"]
    until(lambda: one(client, command="busy")["age_ms"] > first)


def test_listening_ports_are_told_with_their_process(client: Client) -> None:
    script = (
        "import socket,time; a=socket.create_server(('127.0.0.1',0));"
        "b=socket.create_server(('::1',0),family=socket.AF_INET6);"
        "c=socket.create_connection(a.getsockname());"
        "print(a.getsockname()[1], b.getsockname()[1], flush=True); time.sleep(60)"
    )
    stream = client.exec("server", argv=["python3", "-c", script])
    v4, v6 = map(int, client.read_until(stream, b"\n").split())
    pid = one(client, command="server")["pid"]
    ports = {(p["port"], p["family"]): p for p in lines(client, "ports")}
    assert ports[v4, "ipv4"] == {
        "port": v4, "address": "127.0.0.1", "family": "ipv4", "uid": 0, "pid": pid, "command": "server",
    }  # fmt: skip
    assert (ports[v6, "ipv6"]["address"], ports[v6, "ipv6"]["pid"]) == ("::1", pid)


def test_what_only_connects_does_not_listen(client: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one_end:
        ports = {p["port"] for p in lines(client, "ports")}
        assert server.getsockname()[1] in ports and one_end.getsockname()[1] not in ports


# -- setattr ---------------------------------------------------------------------------------------------------


def test_touching_makes_an_empty_file_and_then_only_its_time(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "new/file"
    info = client.ask("setattr", path=str(path), create=True, now=True).closed
    assert (info["size"], info["mode"], info["type"]) == (0, 0o644, "file")
    path.write_bytes(b"kept")
    os.utime(path, ns=(7, 7))
    info = client.ask("setattr", path=str(path), create=True, now=True).closed
    assert path.read_bytes() == b"kept" and abs(info["mtime_ns"] - time.time_ns()) < 60_000_000_000


def test_mode_and_time_are_set_apart(client: Client, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    os.utime(tmp_path / "f", ns=(5, 5))
    assert client.ask("setattr", path=str(tmp_path / "f"), mode=0o4711).closed["mtime_ns"] == 5
    for at_ns in (-1, 0, 1, -1_000_000_001, 1_700_000_000_123_456_789):
        info = client.ask("setattr", path=str(tmp_path / "f"), mtime_ns=at_ns).closed
        assert (info["mtime_ns"], info["mode"]) == (at_ns, 0o4711)
    assert (tmp_path / "f").stat().st_atime_ns == 5


def test_setattr_without_create_makes_nothing(client: Client, tmp_path: Path) -> None:
    assert client.ask("setattr", path=str(tmp_path / "none"), now=True).code == "not_found"
    assert not (tmp_path / "none").exists()


def test_a_fifo_is_touched_without_being_opened(client: Client, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert client.ask("setattr", path=str(tmp_path / "fifo"), create=True, now=True).closed["type"] == "fifo"


def test_bad_members_are_invalid(client: Client, tmp_path: Path) -> None:
    for members in ({"mode": 0o10000}, {"now": True, "mtime_ns": 1}, {"now": 1}, {"mtime_ns": "x"}):
        assert client.ask("setattr", path=str(tmp_path), **members).code == "invalid"

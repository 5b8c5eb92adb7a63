"""Files: streamed reads, atomic writes, listings, and everything odd that a tree can hold."""

from __future__ import annotations

import errno
import json
import os
import socket
import tempfile
import threading
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from sbxd.client import CLOSE, CREDIT, DATA, EOF, EVENT, WINDOW, Client, Daemon, Json, until

ODD_NAMES = [
    "🏝 emoji".encode(),
    b"new\nline",
    b"quote\"'\\",
    b"100%41",
    b"-rf",
    b"--",
    b"x" * 255,
    unicodedata.normalize("NFC", "é").encode(),
    unicodedata.normalize("NFD", "é").encode(),
    b"\xff\xfe invalid \x80",
    b"\xed\xb2\x80 cesu",
    b"\x01\x7f control",
    b" ",
]


def text(name: bytes) -> str:
    return os.fsdecode(name)


def names(directory: Path) -> list[str]:
    return sorted(p.name for p in directory.iterdir())


def listing(client: Client, path: str) -> list[dict[str, object]]:
    result = client.ask("list", path=path)
    entries = [json.loads(line) for line in result.content.splitlines()]
    assert result.closed == {"count": len(entries)}
    return entries


def test_a_file_comes_back_as_it_was_written(client: Client, tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    path = str(tmp_path / "deep" / "er" / "file")
    info = client.write_file(path, content).closed
    assert (info["size"], info["mode"], info["type"], info["path"], info["name"]) == (
        3000000,
        0o644,
        "file",
        path,
        "file",
    )
    result = client.ask("read", path=path)
    assert result.content == content
    assert result.event("stat")["size"] == result.closed["bytes"] == 3000000


def test_an_empty_file(client: Client, tmp_path: Path) -> None:
    assert client.write_file(str(tmp_path / "e"), b"").closed["size"] == 0
    result = client.ask("read", path=str(tmp_path / "e"))
    assert (result.content, result.closed) == (b"", {"bytes": 0})


@pytest.mark.parametrize(
    ("members", "wanted"),
    [
        ({"offset": 3}, b"3456789"),
        ({"offset": 3, "length": 4}, b"3456"),
        ({"length": 0}, b""),
        ({"offset": 50}, b""),
        ({"offset": 8, "length": 50}, b"89"),
    ],
)
def test_a_part_of_a_file(client: Client, tmp_path: Path, members: dict[str, int], wanted: bytes) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    result = client.ask("read", path=str(tmp_path / "f"), **members)
    assert (result.content, result.closed) == (wanted, {"bytes": len(wanted)})


def test_odd_names_go_both_ways(client: Client, tmp_path: Path) -> None:
    for name in ODD_NAMES:
        path = text(bytes(tmp_path) + b"/" + name)
        assert client.write_file(path, name).closed["name"] == text(name)
        assert client.ask("read", path=path).content == name
    assert sorted(os.fsencode(n) for n in names(tmp_path)) == sorted({*ODD_NAMES, b"stderr", b"server.sock"})
    assert sorted(str(e["name"]) for e in listing(client, str(tmp_path))) == names(tmp_path)
    for name in ODD_NAMES:
        assert client.ask("remove", path=text(bytes(tmp_path) + b"/" + name)).closed == {"removed": 1}


def test_an_overwrite_keeps_mode_and_owner_and_replaces_at_once(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    os.chown(path, 1234, 1235)
    path.chmod(0o4751)
    with path.open("rb") as before:
        stream = client.open("write", path=str(path))
        client.send(DATA, stream, b"new content")
        assert client.ask("stat", path=str(path)).closed["size"] == 3
        client.send(EOF, stream)
        info = client.finish(stream).closed
        assert before.read() == b"old"
    assert (info["mode"], info["uid"], info["gid"]) == (0o4751, 1234, 1235)
    assert path.read_bytes() == b"new content"


def test_a_given_mode_is_set_whatever_the_umask(client: Client, tmp_path: Path) -> None:
    assert client.write_file(str(tmp_path / "f"), b"", mode=0o666).closed["mode"] == 0o666
    assert client.ask("mkdir", path=str(tmp_path / "d"), mode=0o1777).closed["mode"] == 0o1777


def test_an_aborted_write_leaves_nothing(daemon: Daemon, client: Client, tmp_path: Path) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    (directory / "f").write_bytes(b"old")
    stream = client.open("write", path=str(directory / "f"))
    client.send(DATA, stream, b"half")
    client.ask("stat", path="/")
    assert len(names(directory)) == 2
    client.send_json(CLOSE, stream, {})
    until(lambda: names(directory) == ["f"])
    second = client.open("write", path=str(directory / "g"))
    client.send(DATA, second, b"half")
    client.close()
    until(lambda: names(directory) == ["f"])
    assert (directory / "f").read_bytes() == b"old"


def test_a_directory_that_moves_or_vanishes_during_a_write(client: Client, tmp_path: Path) -> None:
    for act in ("move", "remove"):
        directory = tmp_path / act
        directory.mkdir()
        stream = client.open("write", path=str(directory / "f"))
        client.send(DATA, stream, b"x")
        client.ask("stat", path="/")
        directory.rename(tmp_path / "moved")
        if act == "move":
            client.send(EOF, stream)
            assert client.finish(stream).code == "not_found"
            assert names(tmp_path / "moved") == ["f"]
            (tmp_path / "moved" / "f").unlink()
        else:
            (tmp_path / "moved" / names(tmp_path / "moved")[0]).unlink()
            (tmp_path / "moved").rmdir()
            client.send(EOF, stream)
            assert client.finish(stream).code == "not_found"
            continue
        (tmp_path / "moved").rmdir()


@pytest.fixture
def here(tmp_path: Path) -> Path:
    path = tmp_path / "here"
    path.mkdir()
    return path


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A directory on another file system than `here`."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="sbxd-move-") as directory:
        yield Path(directory)


@pytest.mark.parametrize("size", [0, 5, 20_000_000])
def test_a_file_moves_to_another_file_system_whole(client: Client, here: Path, elsewhere: Path, size: int) -> None:
    source, target, content = here / "f", elsewhere / "g", os.urandom(size)
    source.write_bytes(content)
    os.chown(source, 1234, 1235)
    source.chmod(0o4751)
    os.utime(source, ns=(1_000_000_007, 2_000_000_009))
    target.write_bytes(b"replaced")
    info = client.ask("move", **{"from": str(source), "to": str(target)}).closed
    assert (info["path"], info["mode"], info["uid"], info["gid"]) == (str(target), 0o4751, 1234, 1235)
    assert (info["size"], info["mtime_ns"]) == (size, 2_000_000_009)
    assert target.read_bytes() == content
    assert (names(here), names(elsewhere)) == ([], ["g"])


def test_a_symlink_moves_to_another_file_system_as_a_symlink(client: Client, here: Path, elsewhere: Path) -> None:
    (here / "l").symlink_to("no/where")
    client.ask("move", **{"from": str(here / "l"), "to": str(elsewhere / "m")})
    assert (elsewhere / "m").readlink() == Path("no/where")
    assert (names(here), names(elsewhere)) == ([], ["m"])


@pytest.mark.parametrize(
    ("source", "target", "members", "code"),
    [
        ("dir", "new", {}, "cross_device"),
        ("fifo", "new", {}, "cross_device"),
        ("f", "dir", {}, "is_a_directory"),
        ("f", "old", {"overwrite": False}, "exists"),
        ("f", "none/new", {}, "not_found"),
        ("f/", "new", {}, "not_a_directory"),
        ("none", "new", {}, "not_found"),
    ],
)
def test_a_move_to_another_file_system_that_cannot_be_changes_nothing(
    client: Client, here: Path, elsewhere: Path, source: str, target: str, members: Json, code: str
) -> None:
    for place in (here, elsewhere):
        (place / "dir").mkdir()
        (place / "f").write_bytes(b"f")
        (place / "old").write_bytes(b"old")
        os.mkfifo(place / "fifo")
    before = names(here), names(elsewhere)
    paths = {"from": f"{here}/{source}", "to": f"{elsewhere}/{target}"}
    assert client.ask("move", **paths, **members).code == code
    assert (names(here), names(elsewhere)) == before
    assert (elsewhere / "old").read_bytes() == b"old"


def test_a_file_that_is_written_to_while_it_moves_stays(client: Client, here: Path, elsewhere: Path) -> None:
    source = here / "f"
    with source.open("wb") as file:
        file.truncate(3 << 30)  # seconds, for what is all holes
        stream = client.open("move", **{"from": str(source), "to": str(elsewhere / "g")})
        until(lambda: names(elsewhere))
        file.write(b"late")
        file.flush()
        os.ftruncate(file.fileno(), 1)
        assert client.finish(stream).code == "busy"
    assert (names(here), names(elsewhere)) == (["f"], [])


def test_a_move_that_is_given_up_leaves_nothing(client: Client, here: Path, elsewhere: Path) -> None:
    with (here / "f").open("wb") as file:
        file.truncate(3 << 30)
    stream = client.open("move", **{"from": f"{here}/f", "to": f"{elsewhere}/g"})
    until(lambda: names(elsewhere))
    client.send_json(CLOSE, stream, {})
    until(lambda: not names(elsewhere))
    assert names(here) == ["f"]


def test_create_only_never_replaces(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "f"
    stream = client.open("write", path=str(path), create_only=True)
    client.send(DATA, stream, b"mine")
    client.ask("stat", path="/")
    path.write_bytes(b"theirs")
    client.send(EOF, stream)
    assert client.finish(stream).code == "exists"
    assert client.write_file(str(path), b"x", create_only=True).code == "exists"
    assert path.read_bytes() == b"theirs"
    assert names(tmp_path) == ["f", "server.sock", "stderr"]


def test_a_symlink_is_followed_to_what_it_names(client: Client, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "l1").symlink_to("l2")
    (tmp_path / "l2").symlink_to(tmp_path / "d" / "target")
    client.write_file(str(tmp_path / "l1"), b"through")
    assert (tmp_path / "d" / "target").read_bytes() == b"through"
    assert (tmp_path / "l1").is_symlink() and (tmp_path / "l2").is_symlink()
    (tmp_path / "loop").symlink_to("loop")
    assert client.write_file(str(tmp_path / "loop"), b"").code == "loop"
    assert client.ask("read", path=str(tmp_path / "loop")).code == "loop"
    assert client.ask("stat", path=str(tmp_path / "l1"), follow=False).closed["target"] == "l2"
    assert client.ask("stat", path=str(tmp_path / "l1")).closed["type"] == "file"


@pytest.fixture
def specials(tmp_path: Path) -> dict[str, str]:
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "socket"))
    return {"fifo": str(tmp_path / "fifo"), "socket": str(tmp_path / "socket"), "char": "/dev/zero"}


@pytest.mark.parametrize("kind", ["fifo", "socket", "char"])
def test_what_is_no_file_is_refused_without_waiting(client: Client, specials: dict[str, str], kind: str) -> None:
    path = specials[kind]
    assert client.ask("read", path=path).code == "not_a_file"
    assert client.write_file(path, b"x").code == "not_a_file"
    assert client.ask("stat", path=path).closed["type"] == kind


@pytest.mark.parametrize(
    ("op", "members", "code"),
    [
        ("read", {"path": "/no/such"}, "not_found"),
        ("read", {"path": "/etc"}, "is_a_directory"),
        ("read", {"path": "/etc/passwd/x"}, "not_a_directory"),
        ("read", {"path": "/" + "x" * 256}, "name_too_long"),
        ("read", {"path": "/x" * 3000}, "name_too_long"),
        ("read", {"path": "relative"}, "invalid"),
        ("read", {"path": ""}, "invalid"),
        ("read", {"path": "/a\0b"}, "invalid"),
        ("read", {"path": 7}, "invalid"),
        ("read", {}, "invalid"),
        ("read", {"path": "/etc/passwd", "offset": -1}, "invalid"),
        ("read", {"path": "/etc/passwd", "length": -2}, "invalid"),
        ("read", {"path": "/etc/passwd", "length": 1e3}, "invalid"),
        ("write", {"path": "/etc"}, "is_a_directory"),
        ("write", {"path": "/"}, "is_a_directory"),
        ("write", {"path": "/etc/passwd/x"}, "not_a_directory"),
        ("write", {"path": "/no/such/x", "parents": False}, "not_found"),
        ("write", {"path": "/proc/nope"}, "not_found"),
        ("write", {"path": "/x", "mode": 0o10000}, "invalid"),
        ("write", {"path": "/x", "parents": 1}, "invalid"),
        ("list", {"path": "/no/such"}, "not_found"),
        ("list", {"path": "/etc/passwd"}, "not_a_directory"),
        ("stat", {"path": "/no/such"}, "not_found"),
        ("stat", {"path": "/", "follow": "no"}, "invalid"),
        ("mkdir", {"path": "/etc", "parents": False}, "exists"),
        ("mkdir", {"path": "/etc/passwd"}, "exists"),
        ("mkdir", {"path": "/etc/passwd/x"}, "not_a_directory"),
        ("mkdir", {"path": "/no/such/x", "parents": False}, "not_found"),
        ("mkdir", {"path": "/x", "mode": -1}, "invalid"),
        ("move", {"from": "/no/such", "to": "/no/other"}, "not_found"),
        ("move", {"from": "/x"}, "invalid"),
        ("remove", {"path": "/no/such"}, "not_found"),
        ("remove", {"path": "/"}, "busy"),
        ("remove", {"path": "/etc/."}, "busy"),
        ("remove", {"path": "/etc"}, "not_empty"),
        ("remove", {"path": "/proc/version"}, "permission"),
        ("watch", {"path": "/no/such"}, "not_found"),
        ("watch", {"path": "/", "recursive": 0}, "invalid"),
    ],
)
def test_what_cannot_be_done_says_why(client: Client, op: str, members: dict[str, object], code: str) -> None:
    assert client.ask(op, **members).code == code


def test_a_full_disk_is_told_and_leaves_nothing(client: Client, tmp_path: Path) -> None:
    import subprocess

    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", small]).returncode:
        pytest.skip("mounting is not possible here")
    try:
        result = client.write_file(str(small / "f"), b"x" * 3_000_000)
        assert (result.code, result.closed["error"]["errno"]) == ("no_space", errno.ENOSPC)
        assert names(small) == []
        (tmp_path / "f").write_bytes(b"x" * 3_000_000)
        assert client.ask("move", **{"from": str(tmp_path / "f"), "to": str(small / "f")}).code == "no_space"
        assert (names(small), (tmp_path / "f").stat().st_size) == ([], 3_000_000)
    finally:
        subprocess.run(["umount", small], check=True)


def test_move_replaces_only_when_allowed(client: Client, tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("a")
    b.write_text("b")
    both = {"from": str(a), "to": str(b)}
    assert client.ask("move", **both, overwrite=False).code == "exists"
    assert client.ask("move", **both).closed["path"] == str(b)
    assert not a.exists() and b.read_text() == "a"


def test_remove_takes_a_link_and_not_what_it_names(client: Client, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep" / "f").write_text("x")
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "keep")
    (tmp_path / "top").symlink_to(tmp_path / "keep")
    assert client.ask("remove", path=str(tmp_path / "top"), recursive=True).closed == {"removed": 1}
    assert client.ask("remove", path=str(tmp_path / "tree") + "/", recursive=True).closed == {"removed": 2}
    assert (tmp_path / "keep" / "f").exists()


def test_a_tree_a_thousand_levels_deep_is_removed(client: Client, tmp_path: Path) -> None:
    top = os.open(tmp_path, os.O_RDONLY)
    os.mkdir("deep", dir_fd=top)
    at = os.open("deep", os.O_RDONLY, dir_fd=top)
    for _ in range(1500):
        os.mkdir("directory", dir_fd=at)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=at))
        below = os.open("directory", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    os.close(top)
    assert client.ask("remove", path=str(tmp_path / "deep"), recursive=True).closed == {"removed": 3001}
    assert not (tmp_path / "deep").exists()


def test_a_wide_tree_is_listed_and_removed_while_others_are_served(client: Client, tmp_path: Path) -> None:
    for d in range(20):
        (tmp_path / "wide" / f"d{d}").mkdir(parents=True)
        for i in range(150):
            (tmp_path / "wide" / f"d{d}" / f"{i}").touch()
    stream = client.open("list", path=str(tmp_path / "wide" / "d3"))
    removal = client.open("remove", path=str(tmp_path / "wide"), recursive=True)
    client.send(9, 0, b"ping")
    while (frame := client.receive()).type != 10:
        client.waiting.append(frame)
    assert client.finish(removal).closed == {"removed": 20 * 150 + 21}
    assert client.finish(stream).closed["count"] <= 150


def test_a_large_listing_waits_for_credit(client: Client, tmp_path: Path) -> None:
    for i in range(3000):
        (tmp_path / f"{'n' * 100}{i}").touch()
    assert len(listing(client, str(tmp_path))) == 3002


def test_times_that_do_not_fit_are_clamped(client: Client, tmp_path: Path) -> None:
    (tmp_path / "far").touch()
    os.system(f"touch -d '2400-01-01' {tmp_path}/far 2>/dev/null")
    assert client.ask("stat", path=str(tmp_path / "far")).closed["mtime_ns"] > 0


def test_a_stalled_read_stalls_no_other(client: Client, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 1_000_000)
    stalled = client.open("read", path=str(tmp_path / "big"))
    assert client.ask("read", path=str(tmp_path / "big")).closed == {"bytes": 1000000}
    got = sum(len(f.payload) for f in client.waiting if f.stream == stalled and f.type == DATA)
    assert got <= WINDOW
    client.credit(stalled, 1_000_000)
    assert client.finish(stalled).closed == {"bytes": 1000000}


def test_writes_are_credited(client: Client, tmp_path: Path) -> None:
    stream = client.open("write", path=str(tmp_path / "f"))
    assert credited(client, stream) == WINDOW  # at its opening already: a write may be that much ahead
    for amount in (WINDOW, 100_000):
        client.send(DATA, stream, b"x" * amount)
        assert credited(client, stream) == amount


def credited(client: Client, stream: int) -> int:
    frame = client.next(stream)
    assert frame.type == CREDIT, frame
    return int.from_bytes(frame.payload, "little")


def changes(client: Client, stream: int, until_path: str) -> list[tuple[str, str]]:
    seen: list[tuple[str, str]] = []
    while not seen or seen[-1][1] != until_path:
        frame = client.next(stream)
        assert frame.type == EVENT, frame
        seen.append((frame.json["kind"], frame.json["path"]))
    return seen


def test_a_watch_tells_what_changes(client: Client, tmp_path: Path) -> None:
    d = tmp_path / "d"
    d.mkdir()
    stream = client.open("watch", path=str(d))
    client.event(stream, "watching")
    (d / "a").write_text("x")
    (d / "a").rename(d / "b")
    (d / "b").unlink()
    (d / "end").touch()
    seen = [c for c in changes(client, stream, str(d / "end")) if c[1] != str(d / "end")]
    a, b = str(d / "a"), str(d / "b")
    assert [c for i, c in enumerate(seen) if c not in seen[:i]] == [
        ("create", a), ("modify", a), ("move_from", a), ("move_to", b), ("remove", b)
    ]  # fmt: skip


def test_a_recursive_watch_sees_directories_that_come_later(client: Client, tmp_path: Path) -> None:
    d = tmp_path / "d"
    (d / "old" / "older").mkdir(parents=True)
    stream = client.open("watch", path=str(d), recursive=True)
    client.event(stream, "watching")
    (d / "old" / "older" / "f").touch()
    assert ("create", str(d / "old" / "older" / "f")) in changes(client, stream, str(d / "old" / "older" / "f"))
    (d / "new" / "newer").mkdir(parents=True)
    (d / "new" / "newer" / "f").touch()
    changes(client, stream, str(d / "new" / "newer" / "f"))
    (d / "new").rename(d / "renamed")
    changes(client, stream, str(d / "renamed"))
    client.ask("stat", path="/")
    (d / "renamed" / "newer" / "g").touch()
    assert all("/new/" not in path for _, path in changes(client, stream, str(d / "renamed" / "newer" / "g")))


def test_a_watch_overflow_is_told(client: Client, tmp_path: Path) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 40000:
        pytest.skip("the queue of this host is too long to fill in a test")
    d = tmp_path / "d"
    d.mkdir()
    stream = client.open("watch", path=str(d))
    client.event(stream, "watching")
    # Nothing is read meanwhile: sbxd's own queue fills first, then the kernel's.
    done = threading.Event()

    def churn() -> None:
        for i in range(limit):
            (d / f"f{i % 7}").touch()
            (d / f"f{i % 7}").unlink()
        done.set()

    churn()
    kinds = set()
    while "overflow" not in kinds:
        kinds.add(client.next(stream, 60).json["kind"])
    assert done.is_set()

"""Trees as tar streams: packing and unpacking, hostile archives and hostile trees included."""

from __future__ import annotations

import io
import json
import os
import random
import socket
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
from sbxd.client import CLOSE, DATA, Client, Json, Result, children_of, until

DAY_NS = 86_400_000_000_000


def entry(name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"", **more: Any) -> bytes:
    """One entry of a tar stream, made by Python's own writer."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(data)
    for key, value in more.items():
        setattr(info, key, value)
    raw = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return raw + data + bytes(-len(data) % 512)


END = bytes(1024)


def unpack(client: Client, path: Path, *entries: bytes, **members: Any) -> Result:
    return client.upload("unpack", b"".join(entries) + END, path=str(path), **members)


def pack(client: Client, path: Path, **members: Any) -> Result:
    return client.ask("pack", path=str(path), **members)


def opened(result: Result) -> tarfile.TarFile:
    return tarfile.open(fileobj=io.BytesIO(result.content), mode="r|", errorlevel=2)


def reasons(closed: Json) -> dict[str, str]:
    return {each["path"]: each["reason"] for each in closed["skipped"]}


def names_below(path: Path) -> set[str]:
    return {str(p.relative_to(path)) for p in path.rglob("*")}


# -- packing ---------------------------------------------------------------------------------------------------


def make_tree(root: Path) -> None:
    (root / "empty").mkdir(parents=True)
    (root / "deep/er").mkdir(parents=True, mode=0o700)
    (root / "deep/er/file").write_bytes(b"content\n")
    (root / "run").write_bytes(b"#!/bin/sh\n")
    (root / "run").chmod(0o755)
    (root / "set").write_bytes(b"x")
    (root / "set").chmod(0o4755)
    (root / "link").symlink_to("deep/er/file")
    (root / "away").symlink_to("/etc/passwd")
    os.link(root / "run", root / "twin")
    (root / ("n" * 200)).write_bytes(b"long")
    os.utime(root / "deep/er/file", ns=(0, 1_234_567_890_123_456_789))
    os.utime(root / "deep", ns=(0, 3 * DAY_NS + 5))


def test_a_tree_goes_down_and_up_with_modes_links_times_and_empty_directories(client: Client, tmp_path: Path) -> None:
    make_tree(tmp_path / "a")
    packed = pack(client, tmp_path / "a")
    assert packed.events == [{"event": "packing"}]
    assert packed.closed["skipped"] == [] and packed.closed["skipped_count"] == 0
    assert packed.closed["bytes"] == 8 + 10 + 1 + 4
    unpacked = client.upload("unpack", packed.content, path=str(tmp_path / "new/b"))
    assert unpacked.closed["skipped"] == []
    b = tmp_path / "new/b"
    assert names_below(b) == names_below(tmp_path / "a")
    assert (b / "deep/er/file").read_bytes() == b"content\n"
    assert (b / "deep/er/file").stat().st_mtime_ns == 1_234_567_890_123_456_789
    assert (b / "deep").stat().st_mtime_ns == 3 * DAY_NS + 5
    assert (b / "run").stat().st_ino == (b / "twin").stat().st_ino
    assert (b / "run").stat().st_mode & 0o7777 == 0o755
    assert (b / "deep/er").stat().st_mode & 0o7777 == (tmp_path / "a/deep/er").stat().st_mode & 0o7777
    assert (b / "link").readlink() == Path("deep/er/file") and (b / "away").readlink() == Path("/etc/passwd")


def test_set_user_id_is_packed_and_dropped_when_unpacked(client: Client, tmp_path: Path) -> None:
    make_tree(tmp_path / "a")
    packed = pack(client, tmp_path / "a")
    with opened(packed) as archive:
        assert {m.name: m.mode for m in archive}["set"] == 0o4755
    client.upload("unpack", packed.content, path=str(tmp_path / "b"))
    assert (tmp_path / "b/set").stat().st_mode & 0o7777 == 0o755


def test_gnu_tar_reads_what_is_packed(client: Client, tmp_path: Path) -> None:
    make_tree(tmp_path / "a")
    (tmp_path / "a/bad\udcff").write_bytes(b"name")
    (tmp_path / "a" / ("long\udcfe" * 50)).write_bytes(b"long and bad")
    os.utime(tmp_path / "a/run", ns=(0, -1_500_000_000))
    packed = pack(client, tmp_path / "a")
    (tmp_path / "b").mkdir()
    subprocess.run(["tar", "-xf", "-", "-C", tmp_path / "b"], input=packed.content, check=True)
    assert names_below(tmp_path / "b") == names_below(tmp_path / "a")
    for name in ("run", "deep", "deep/er/file"):
        assert (tmp_path / "b" / name).stat().st_mtime_ns == (tmp_path / "a" / name).stat().st_mtime_ns
    again = client.upload("unpack", packed.content, path=str(tmp_path / "c"))
    assert again.closed["skipped"] == [] and names_below(tmp_path / "c") == names_below(tmp_path / "a")
    assert (tmp_path / "c/run").stat().st_mtime_ns == -1_500_000_000


def test_what_tar_cannot_carry_is_left_out_and_named_in_the_last_entry(client: Client, tmp_path: Path) -> None:
    root = tmp_path / "a"
    root.mkdir()
    os.mkfifo(root / "fifo")
    os.mknod(root / "null", 0o20666, os.makedev(1, 3))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
        packed = pack(client, root)
    wanted = {"fifo": "it is a FIFO", "null": "it is a device", "socket": "it is a socket"}
    assert reasons(packed.closed) == wanted
    with opened(packed) as archive:
        [last] = archive.getmembers()
        assert (last.name, last.isdir()) == (".", True)
        told = json.loads(last.pax_headers["SKERRY.skipped"])
    assert reasons(told) == wanted and told["skipped_count"] == 3


def test_a_terabyte_of_hole_is_left_out_by_the_size_limit(client: Client, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with (tmp_path / "a/huge").open("wb") as huge:
        huge.truncate(1 << 40)
    (tmp_path / "a/small").write_bytes(b"x")
    packed = pack(client, tmp_path / "a", max_bytes=1 << 30)
    assert list(reasons(packed.closed)) == ["huge"] and packed.closed["bytes"] == 1
    assert len(packed.content) < 10_000


def test_thousands_of_names_of_one_file_hold_it_once(client: Client, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/0").write_bytes(bytes(1 << 20))
    for number in range(1, 2000):
        os.link(tmp_path / "a/0", tmp_path / f"a/{number}")
    packed = pack(client, tmp_path / "a")
    assert packed.closed["bytes"] == 1 << 20
    assert len(packed.content) < 5 << 20


def test_more_entries_than_allowed_end_the_packing_with_limit(client: Client, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    for number in range(20):
        (tmp_path / f"tree/{number}").write_bytes(b"")
    packed = pack(client, tmp_path / "tree", max_entries=10)
    assert packed.code == "limit"
    assert not packed.content.endswith(END)


def test_a_tree_that_is_too_deep_is_left_out_below(client: Client, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    at = os.open(tmp_path / "tree", os.O_RDONLY)
    for _ in range(600):
        os.mkdir("d", dir_fd=at)
        at, above = os.open("d", os.O_RDONLY, dir_fd=at), at
        os.close(above)
    os.close(at)
    packed = pack(client, tmp_path / "tree")
    assert list(reasons(packed.closed).values()) == ["it is too deep"]
    assert packed.closed["count"] == 257
    subprocess.run(["rm", "-rf", tmp_path / "tree"], check=True)


def test_other_file_systems_are_left_out(client: Client) -> None:
    packed = pack(client, Path("/dev"), max_entries=1_000_000, max_bytes=0)
    assert reasons(packed.closed).get("pts") == "it is another file system"


def test_what_is_no_directory_is_told_before_any_byte(client: Client, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    assert pack(client, tmp_path / "none").code == "not_found"
    assert pack(client, tmp_path / "file").code == "not_a_directory"
    assert client.ask("pack", path="relative").code == "invalid"
    assert unpack(client, tmp_path / "file").code == "not_a_directory"


def test_a_reader_that_leaves_ends_the_worker(client: Client, tmp_path: Path, daemon: Any) -> None:
    (tmp_path / "big").write_bytes(bytes(20 << 20))
    before = set(children_of(daemon.process.pid))
    stream = client.open("pack", path=str(tmp_path))
    until(lambda: set(children_of(daemon.process.pid)) - before)
    client.send_json(CLOSE, stream, {})
    until(lambda: not set(children_of(daemon.process.pid)) - before)


def test_a_killed_worker_is_told_as_io(client: Client, tmp_path: Path, daemon: Any) -> None:
    (tmp_path / "big").write_bytes(bytes(20 << 20))
    before = set(children_of(daemon.process.pid))
    stream = client.open("pack", path=str(tmp_path))
    until(lambda: set(children_of(daemon.process.pid)) - before)
    [worker] = set(children_of(daemon.process.pid)) - before
    os.kill(worker, 9)
    assert client.finish(stream).code == "io"


def test_a_slow_reader_keeps_nobody_else_waiting(client: Client, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(20 << 20))
    stream = client.open("pack", path=str(tmp_path))
    assert client.run("quick", "echo quick").out == b"quick\n"
    assert client.finish(stream).closed["bytes"] == 20 << 20


def test_a_tree_that_is_swapped_for_links_meanwhile_gives_nothing_from_outside(client: Client, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_bytes(b"SECRET")
    tree = tmp_path / "tree"
    for number in range(50):
        (tree / f"{number}").mkdir(parents=True)
        (tree / f"{number}/key").write_bytes(b"public")
    swapping = subprocess.Popen(
        ["python3", "-c", SWAPPER, str(tree), str(secret)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(20):
            assert b"SECRET" not in pack(client, tree).content
    finally:
        swapping.kill()
        swapping.communicate()


SWAPPER = """
import os, sys
tree, secret = sys.argv[1:]
while True:
    for number in range(50):
        path = f"{tree}/{number}"
        os.rename(path, tree + "/aside"); os.symlink(secret, path)
        os.unlink(path); os.rename(tree + "/aside", path)
"""


# -- unpacking -------------------------------------------------------------------------------------------------


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "into"


HOSTILE = {
    "absolute": (entry("/etc/evil", data=b"x"), "its name is absolute"),
    "parent": (entry("../evil", data=b"x"), "its name leads out by .."),
    "inner-parent": (entry("a/../../evil", data=b"x"), "its name leads out by .."),
    "device": (entry("zero", tarfile.CHRTYPE, devmajor=1, devminor=5), "it is a device"),
    "disk": (entry("disk", tarfile.BLKTYPE, devmajor=8), "it is a device"),
    "fifo": (entry("fifo", tarfile.FIFOTYPE), "it is a FIFO"),
    "hard-link-out": (entry("h", tarfile.LNKTYPE, linkname="../outside"), "not in the archive's directory"),
    "hard-link-absolute": (entry("h", tarfile.LNKTYPE, linkname="/etc/passwd"), "not in the archive's directory"),
    "hard-link-nowhere": (entry("h", tarfile.LNKTYPE, linkname="none"), "is no file that is there"),
    "unknown": (entry("v", b"V"), "of an unknown type"),
    "old-sparse": (entry("s", b"S", b"data"), "stored with holes"),
    "new-sparse": (entry("s", data=b"d", pax_headers={"GNU.sparse.realsize": str(1 << 40)}), "stored with holes"),
    "nul": (entry("x", data=b"d", pax_headers={"path": "a\0b"}), "no file can have such a name"),
    "long-part": (entry("n" * 256, data=b"d"), "its name is too long"),
    "long-path": (entry("d/" * 3000 + "f", data=b"d"), "no file can have such a name"),
    "deep": (entry("d/" * 300 + "f", data=b"d"), "it is too deep"),
    "empty-link": (entry("l", tarfile.SYMTYPE, linkname=""), "it leads nowhere"),
    "no-name": (entry("./", b"0", b""), None),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_entry_is_refused_with_a_reason_and_the_rest_is_unpacked(
    client: Client, tmp_path: Path, into: Path, kind: str
) -> None:
    (tmp_path / "outside").write_bytes(b"kept")
    hostile, why = HOSTILE[kind]
    closed = unpack(client, into, entry("before", data=b"1"), hostile, entry("after", data=b"2")).closed
    if why is None:
        assert closed["skipped"] == []
    else:
        [skipped] = closed["skipped"]
        assert why in skipped["reason"]
    assert names_below(into) - {"d", "a"} >= {"before", "after"}
    assert {p for p in names_below(into) if "/" not in p} <= {"before", "after", "a", "d"}
    assert names_below(tmp_path) & {"evil"} == set() and not Path("/etc/evil").exists()
    assert (tmp_path / "outside").stat().st_nlink == 1


def test_no_entry_goes_through_a_link_that_an_earlier_one_made(client: Client, tmp_path: Path, into: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"kept")
    closed = unpack(
        client,
        into,
        entry("out", tarfile.SYMTYPE, linkname=str(outside)),
        entry("out/new", data=b"x"),
        entry("out/file", data=b"x"),
        entry("out/dir", tarfile.DIRTYPE),
        entry("out", tarfile.DIRTYPE, mode=0o777),
        entry("hard", tarfile.LNKTYPE, linkname="out/file"),
        entry("direct", tarfile.SYMTYPE, linkname="../outside/file"),
        entry("direct", data=b"replaced"),
    ).closed
    assert set(reasons(closed)) == {"out/new", "out/file", "out/dir/", "out/", "hard"}
    assert names_below(outside) == {"file"} and (outside / "file").read_bytes() == b"kept"
    assert (outside / "file").stat().st_nlink == 1
    assert (into / "direct").read_bytes() == b"replaced" and not (into / "direct").is_symlink()


def test_a_link_that_was_there_before_is_not_followed_either(client: Client, tmp_path: Path, into: Path) -> None:
    (tmp_path / "outside").mkdir()
    into.mkdir()
    (into / "sub").symlink_to(tmp_path / "outside")
    assert set(reasons(unpack(client, into, entry("sub/file", data=b"x")).closed)) == {"sub/file"}
    assert names_below(tmp_path / "outside") == set()


def test_the_destination_itself_may_be_a_link(client: Client, tmp_path: Path, into: Path) -> None:
    (tmp_path / "real").mkdir()
    into.symlink_to(tmp_path / "real")
    assert unpack(client, into, entry("file", data=b"x")).closed["count"] == 1
    assert (tmp_path / "real/file").read_bytes() == b"x"


def test_a_file_replaces_a_file_whole_and_never_a_directory(client: Client, into: Path) -> None:
    (into / "dir").mkdir(parents=True)
    (into / "file").write_bytes(b"old")
    entries = [entry("file", data=b"new"), entry("dir", data=b"x"), entry("file", tarfile.DIRTYPE)]
    with (into / "file").open("rb") as old:
        closed = unpack(client, into, *entries).closed
        assert old.read() == b"old" and (into / "file").read_bytes() == b"new"
    assert set(reasons(closed)) == {"dir", "file/"}


def test_a_hard_link_to_itself_leaves_nothing_behind(client: Client, into: Path) -> None:
    result = unpack(client, into, entry("f", data=b"x"), entry("f", tarfile.LNKTYPE, linkname="f"))
    assert result.closed["skipped"] == []
    assert names_below(into) == {"f"}


def test_owners_are_root(client: Client, into: Path) -> None:
    unpack(client, into, entry("f", data=b"x", uid=1234, gid=1234), entry("d", tarfile.DIRTYPE, uid=1234))
    assert ((into / "f").stat().st_uid, (into / "f").stat().st_gid, (into / "d").stat().st_uid) == (0, 0, 0)


@pytest.mark.parametrize("cut", [0, 100, 512, 700, 1024, 1500, 2035])
def test_a_stream_that_ends_early_keeps_only_what_is_complete(client: Client, into: Path, cut: int) -> None:
    whole = entry("first", data=b"1" * 500) + entry("second", data=b"2" * 500)
    result = client.upload("unpack", whole[:cut], path=str(into))
    assert result.code == "invalid" and "ends early" in result.closed["error"]["message"]
    assert names_below(into) == ({"first"} if cut >= 1024 else set())
    assert f"{1 if cut >= 1024 else 0} entries" in result.closed["error"]["message"]


def test_an_upload_that_is_given_up_leaves_no_broken_file(client: Client, into: Path, daemon: Any) -> None:
    before = set(children_of(daemon.process.pid))
    stream = client.open("unpack", path=str(into))
    client.send(DATA, stream, (entry("first", data=b"1") + entry("second", data=b"2" * 5000))[:3000])
    until(lambda: any(name.startswith(".sbxd-") for name in names_below(into)) if into.exists() else False)
    client.send_json(CLOSE, stream, {})
    until(lambda: not set(children_of(daemon.process.pid)) - before)
    assert names_below(into) == {"first"}


@pytest.mark.parametrize("content", [b"\x1f\x8b\x08" + bytes(600), b"no tar at all" * 100, b"\xff" * 2048])
def test_what_is_no_tar_is_invalid(client: Client, into: Path, content: bytes) -> None:
    result = client.upload("unpack", content, path=str(into))
    assert result.code == "invalid" and "no tar archive" in result.closed["error"]["message"]


def test_a_million_entries_are_bounded(client: Client, into: Path) -> None:
    million = entry("same") * 1_000_000
    result = client.upload("unpack", million, path=str(into), max_entries=2000)
    assert result.code == "limit" and "2000 entries" in result.closed["error"]["message"]
    assert names_below(into) == {"same"}


def test_directories_that_names_imply_count_too(client: Client, into: Path) -> None:
    entries = [entry(f"{number}/" + "d/" * 90 + "f") for number in range(5)]
    assert unpack(client, into, *entries, max_entries=200).code == "limit"


def test_a_terabyte_in_a_header_is_bounded(client: Client, into: Path) -> None:
    result = unpack(client, into, entry("huge", size=1 << 40) + bytes(5000), max_bytes=1 << 30)
    assert result.code == "limit"
    assert names_below(into) == set()


def with_size(header: bytes, size: int) -> bytes:
    """The header with another size, in base 256 as GNU writes large ones, and the sum that fits."""
    block = bytearray(header[:512])
    block[124:136] = b"\x80" + size.to_bytes(11, "big")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize("kind", [b"g", b"x", b"L", b"0", b"V"])
@pytest.mark.parametrize("size", [2**63 - 1, 2**63 - 511, 2**63 - 512])
def test_a_size_near_the_largest_number_is_refused_or_cut_off(
    client: Client, into: Path, daemon: Any, kind: bytes, size: int
) -> None:
    result = unpack(client, into, with_size(entry("x", kind), size), b"y" * 4096)
    assert result.closed["error"]["code"] in ("invalid", "limit")
    assert names_below(into) == set()


def test_extended_headers_are_bounded(client: Client, into: Path) -> None:
    assert unpack(client, into, entry("x", tarfile.XHDTYPE, size=2 << 20)[:512] + bytes(4 << 20)).code == "invalid"
    assert unpack(client, into, entry("x", tarfile.XHDTYPE, b"99 path=x\n")).code == "invalid"


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_each_format_of_pythons_writer_is_read(client: Client, tmp_path: Path, into: Path, format: int) -> None:
    make_tree(tmp_path / "a")
    if format == tarfile.USTAR_FORMAT:
        (tmp_path / "a" / ("n" * 200)).unlink()
        (tmp_path / "a" / ("d" * 100)).mkdir()
        (tmp_path / "a" / ("d" * 100) / ("f" * 90)).write_bytes(b"prefix")
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=format) as archive:
        archive.add(tmp_path / "a", ".")
    assert client.upload("unpack", stream.getvalue(), path=str(into)).closed["skipped"] == []
    assert names_below(into) == names_below(tmp_path / "a")


def test_gnu_tars_own_output_is_read(client: Client, tmp_path: Path, into: Path) -> None:
    make_tree(tmp_path / "a")
    made = subprocess.run(["tar", "-C", tmp_path / "a", "-cf", "-", "."], check=True, capture_output=True).stdout
    assert client.upload("unpack", made, path=str(into)).closed["skipped"] == []
    assert names_below(into) == names_below(tmp_path / "a")


def test_gnu_tars_sparse_files_are_refused_and_the_rest_is_unpacked(client: Client, tmp_path: Path, into: Path) -> None:
    (tmp_path / "a").mkdir()
    with (tmp_path / "a/holes").open("wb") as holes:
        for number in range(40):
            holes.seek(number * (1 << 20))
            holes.write(b"data")
        holes.truncate(1 << 40)
    (tmp_path / "a/plain").write_bytes(b"x")
    for format in ("gnu", "posix"):
        command = ["tar", "-C", tmp_path / "a", "--sparse", f"--format={format}", "-cf", "-", "holes", "plain"]
        made = subprocess.run(command, check=True, capture_output=True).stdout
        result = client.upload("unpack", made, path=str(into / format))
        assert "stored with holes" in result.closed["skipped"][0]["reason"]
        assert names_below(into / format) == {"plain"}


def test_large_files_and_many_small_ones_arrive(client: Client, into: Path) -> None:
    large = os.urandom(3 << 20)
    entries = [entry("large", data=large), *(entry(f"d{n % 7}/{n}", data=b"%d" % n) for n in range(500))]
    closed = unpack(client, into, *entries).closed
    assert (closed["count"], closed["skipped"]) == (501, [])
    assert (into / "large").read_bytes() == large
    assert all((into / f"d{n % 7}/{n}").read_bytes() == b"%d" % n for n in range(500))


def test_many_skipped_entries_are_counted_and_the_first_named(client: Client, into: Path) -> None:
    closed = unpack(client, into, *(entry(f"/{n}") for n in range(500))).closed
    assert closed["skipped_count"] == 500 and len(closed["skipped"]) == 100
    closed = unpack(client, into, *(entry("/" + "\udcff" * 3000) for n in range(500))).closed
    assert closed["skipped_count"] == 500 and 0 < len(closed["skipped"]) < 100


def test_a_git_work_tree_goes_up_and_comes_down_clean(client: Client, tmp_path: Path, into: Path) -> None:
    work = tmp_path / "work"
    make_tree(work)
    (work / "away").unlink()

    def git(*arguments: str, at: Path = work) -> str:
        names = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "safe.directory=*"]
        return subprocess.run(["git", *names, *arguments], cwd=at, check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "x")
    packed = pack(client, work)
    client.upload("unpack", packed.content, path=str(into))
    # Without refreshing the index: what git compares is what it has recorded.
    assert git("status", "--porcelain", at=into) == ""
    assert git("diff-index", "HEAD", at=into) == "" or git("status", "--porcelain", at=into) == ""


def test_random_damage_never_breaks_sbxd_or_leaves_the_directory(client: Client, tmp_path: Path, into: Path) -> None:
    make_tree(tmp_path / "a")
    whole = pack(client, tmp_path / "a").content
    outside = names_below(tmp_path / "a")
    chance = random.Random(5)
    end = time.monotonic() + 5
    rounds = 0
    while time.monotonic() < end and rounds < 300:
        damaged = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            at = chance.randrange(len(damaged))
            damaged[at] = chance.randrange(256)
            block = at - at % 512
            if chance.random() < 0.7:  # with the right sum, so that the damage is read
                damaged[block + 148 : block + 156] = b" " * 8
                damaged[block + 148 : block + 155] = b"%06o\0" % sum(damaged[block : block + 512])
        client.upload("unpack", bytes(damaged), path=str(into), max_bytes=1 << 20)
        rounds += 1
    assert rounds > 20
    assert names_below(tmp_path / "a") == outside
    assert {p.name for p in tmp_path.iterdir()} <= {"a", "into", "stderr", "server.sock"}
    assert not any(".sbxd-" in name for name in names_below(into))

"""Packing and unpacking on this machine: what goes in comes out, and no archive writes where it must not."""

import errno
import io
import os
import socket
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry import Invalid, LimitExceeded, ProtocolError
from skerry.sdk import tar
from skerry.sdk.packing import Packer
from skerry.sdk.transfers import Transfer
from skerry.sdk.unpacking import MAX_BYTES, MAX_ENTRIES, Unpacker
from skerry.sdk.walking import matches

END = bytes(1024)


def entry(name: str | bytes, kind: bytes = tarfile.REGTYPE, data: bytes = b"", **more: Any) -> bytes:
    info = tarfile.TarInfo(os.fsdecode(name))
    info.type, info.size = kind, len(data)
    for key, value in more.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape") + data + bytes(-len(data) % 512)


def extended(records: dict[str, str]) -> bytes:
    """An extended header with no entry behind it."""
    return entry("x", pax_headers=records)[:-512]


def unpack(content: bytes, root: Path, *, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> Transfer:
    unpacker = Unpacker(root, max_entries=max_entries, max_bytes=max_bytes)
    try:
        unpacker.feed(content)
        return unpacker.finish()
    finally:
        unpacker.close()


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """Beside the target. Nothing may appear or change in it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    yield outside
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("mine", "mine")]
    assert {path.name for path in tmp_path.iterdir()} <= {"outside", "in", "up"}


def test_hostile_entries_are_left_out_with_a_reason_each(tmp_path: Path, outside: Path) -> None:
    refused = [
        entry("/etc/evil", data=b"x"),
        entry("../outside/evil", data=b"x"),
        entry("a/../../outside/evil", data=b"x"),
        entry("out", tarfile.SYMTYPE, linkname="/etc"),
        entry("up", tarfile.SYMTYPE, linkname="../outside"),
        entry("round", tarfile.SYMTYPE, linkname="self/self/../../outside"),
        entry("hard1", tarfile.LNKTYPE, linkname="/etc/passwd"),
        entry("hard2", tarfile.LNKTYPE, linkname="../outside/mine"),
        entry("hard3", tarfile.LNKTYPE, linkname="self/fine"),
        entry("hard4", tarfile.LNKTYPE, linkname="dir"),
        entry("hard5", tarfile.LNKTYPE, linkname="none"),
        entry("self/evil", data=b"x"),
        entry("fine/below", data=b"x"),
        entry("dir", data=b"x"),
        entry("zero", tarfile.CHRTYPE, devmajor=1, devminor=5),
        entry("disk", tarfile.BLKTYPE, devmajor=8),
        entry("pipe", tarfile.FIFOTYPE),
        entry("holes", data=b"d", pax_headers={"GNU.sparse.realsize": str(1 << 40)}),
        entry("strange", b"Z", data=b"d"),
        entry("n" * 300, data=b"x"),
        entry("/".join("d" * 300), data=b"x"),
    ]
    good = [
        entry("self", tarfile.SYMTYPE, linkname="."),
        entry("dir", tarfile.DIRTYPE),
        entry("fine", data=b"fine", mode=0o6777),
        entry("dir/back", tarfile.SYMTYPE, linkname="../fine"),
        entry("hard", tarfile.LNKTYPE, linkname="fine"),
    ]
    told = unpack(b"".join(good + refused) + END, tmp_path / "in")
    assert (told.count, told.skipped_count, len(told.skipped)) == (5, len(refused), len(refused))
    assert all(one.reason for one in told.skipped)
    assert {str(p.relative_to(tmp_path / "in")) for p in (tmp_path / "in").rglob("*")} >= {
        "self",
        "dir",
        "fine",
        "hard",
    }
    assert (tmp_path / "in/fine").stat().st_mode & 0o7777 == 0o755
    assert (tmp_path / "in/dir/back").read_text() == (tmp_path / "in/hard").read_text() == "fine"
    assert not list((tmp_path / "in").rglob(".skerry-*"))


def test_what_was_there_is_never_written_through(tmp_path: Path, outside: Path) -> None:
    root = tmp_path / "in"
    root.mkdir()
    (root / "dir").symlink_to(outside)
    (root / "file").symlink_to(outside / "mine")
    os.link(outside / "mine", root / "hard")
    told = unpack(entry("dir/mine", data=b"x") + entry("file", data=b"f") + entry("hard", data=b"h") + END, root)
    assert [one.path for one in told.skipped] == ["dir/mine"]
    assert not (root / "file").is_symlink() and (root / "file").read_text() == "f"
    assert (root / "hard").read_text() == "h"


def _loops(path: Path) -> bool:
    try:
        path.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


LINKS = st.lists(st.sampled_from(["..", ".", "a", "b", "l", ""]), min_size=1, max_size=5).map("/".join)
PLACES = st.lists(st.sampled_from(["a", "b", "l"]), min_size=1, max_size=3).map("/".join)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(PLACES, LINKS), min_size=1, max_size=8))
def test_no_set_of_symlinks_leads_out(tmp_path_factory: pytest.TempPathFactory, links: list[tuple[str, str]]) -> None:
    root = tmp_path_factory.mktemp("x") / "deep" / "in"
    unpack(b"".join(entry(name, tarfile.SYMTYPE, linkname=link) for name, link in links) + END, root)
    for path in root.rglob("*"):
        if path.is_symlink() and not _loops(path):  # realpath answers anything for a loop
            led = os.path.realpath(path)
            assert led == str(root) or led.startswith(f"{root}/"), (links, path, led)


def test_an_archive_is_bounded(tmp_path: Path, outside: Path) -> None:
    with pytest.raises(LimitExceeded, match="max_entries"):
        unpack(entry("/refused") * 1001 + END, tmp_path / "in", max_entries=1000)
    with pytest.raises(LimitExceeded, match="max_bytes"):
        unpack(entry("ok", data=b"12345") + entry("more", data=b"678") + END, tmp_path / "in", max_bytes=7)
    with pytest.raises(LimitExceeded, match="max_bytes"):
        unpack(entry("huge", size=1 << 50) + bytes(10_000), tmp_path / "in")
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["ok"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no tar" * 1000,
        entry("half", data=b"x" * 5000)[:2000],
        entry("no end", data=b"x"),
        bytes(148) + b"zzzzzzz" + b"1" * 357,
        entry("x", pax_headers={"a": "b"}).replace(b" a=b\n", b" a=b ", 1),
        entry("x", pax_headers={"size": "-5"}),
        entry("x", pax_headers={"mtime": "nan"}),
        entry("x", pax_headers={"comment": "y" * (2 << 20)}),
        b"".join(extended({f"k{number}": "y" * 1_000_000}) for number in range(8)) + entry("x") + END,
        extended({"a": "b"}).replace(b"6 a=b", b"0 a=b") + entry("x") + END,
    ],
    ids=range(11),
)
def test_what_is_no_whole_archive_is_told_and_leaves_no_half_file(
    content: bytes, tmp_path: Path, outside: Path
) -> None:
    with pytest.raises(ProtocolError):
        unpack(content, tmp_path / "in")
    assert {path.name for path in (tmp_path / "in").iterdir()} <= {"no end"}


def test_an_extended_header_of_many_records_is_read_in_time_that_grows_with_it_alone(tmp_path: Path) -> None:
    def seconds(count: int) -> float:
        content = extended({f"{number:06}": "" for number in range(count)}) + entry("x") + END
        begun = time.process_time()
        unpack(content, tmp_path / "in")
        return time.process_time() - begun

    seconds(100)
    assert seconds(64_000) < 16 * 3 * max(seconds(4_000), 0.005)


@pytest.mark.parametrize("count", ["1e999", "-5", '"many"', "9" * 5000, "null"])
def test_a_nonsensical_word_about_what_was_left_out_is_no_error(count: str, tmp_path: Path) -> None:
    told = f'{{"skipped":[{{"path":"p","reason":"r"}}],"skipped_count":{count}}}'
    root = entry("./", tarfile.DIRTYPE, pax_headers={"SKERRY.skipped": told})
    assert unpack(root + END, tmp_path / "in").skipped_count == 1


@given(st.binary(max_size=3000), st.integers(0, 3000))
@settings(max_examples=200, deadline=None)
def test_nonsense_raises_nothing_but_our_errors(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int
) -> None:
    good = bytearray(entry("a/b", data=b"x" * 700, pax_headers={"mtime": "1.5"}) + END)
    good[at : at + len(noise)] = noise
    with suppress(ProtocolError, LimitExceeded):
        unpack(bytes(good), tmp_path_factory.mktemp("noise") / "in", max_bytes=10_000)


TREE = entry("d", tarfile.DIRTYPE, mtime=5.25) + entry("d/" + "long" * 50, data=b"x" * 1300) + entry("e", data=b"")


@given(st.lists(st.integers(0, len(TREE + END)), max_size=6))
@settings(max_examples=50, deadline=None)
def test_an_archive_is_the_same_in_whatever_pieces_it_arrives(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    root = tmp_path_factory.mktemp("cut")
    unpacker = Unpacker(root, max_entries=10, max_bytes=10_000)
    edges = [0, *sorted(cuts), len(TREE + END)]
    for start, end in pairwise(edges):
        unpacker.feed((TREE + END)[start:end])
    told = unpacker.finish()
    unpacker.close()
    assert (told.count, told.size_bytes) == (3, 1300)
    assert (root / "d" / ("long" * 50)).read_bytes() == b"x" * 1300
    assert (root / "d").stat().st_mtime == 5.25


NAMES = st.binary(min_size=1, max_size=200).filter(lambda name: not set(name) & {0, 47} and name not in (b".", b".."))


@given(NAMES, NAMES, st.integers(-(2**62), 2**62), st.integers(0, 2**62), st.integers(0, 0o777))
def test_a_header_says_what_it_was_given(name: bytes, link: bytes, mtime_ns: int, size: int, mode: int) -> None:
    given_ = tar.Entry(name, size=size, mode=mode, mtime_ns=mtime_ns, link=link)
    seen: list[tar.Entry] = []

    class Seen:
        def begin(self, entry: tar.Entry) -> None:
            seen.append(entry)

        def content(self, data: bytes) -> None: ...
        def end(self) -> None: ...

    tar.Decoder(Seen()).feed(tar.header(given_))
    [read] = seen
    assert (read.name, read.link, read.size, read.mode, read.mtime_ns) == (name, link, size, mode, mtime_ns)
    info = tarfile.TarFile(fileobj=io.BytesIO(tar.header(given_) + END), errorlevel=0, encoding="utf-8").next()
    assert info is not None and (info.size, info.mode) == (size, mode)


def test_what_is_packed_here_other_programs_read(tmp_path: Path) -> None:
    up = tmp_path / "up"
    (up / "deep" / ("long" * 30)).mkdir(parents=True)
    (up / "deep" / ("long" * 30) / "f").write_bytes(b"x" * 700_000)
    (up / "exe").write_text("x")
    (up / "exe").chmod(0o4751)
    (up / "link").symlink_to("nowhere/" + "far" * 50)
    os.mkfifo(up / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(up / "sock"))
    os.utime(up / "exe", ns=(1, 1_234_567_890_123_456_789))
    packer = Packer(up)
    archive = b"".join(packer)
    assert {one.path: one.reason for one in packer.tally.skipped} == {"fifo": "it is a FIFO", "sock": "it is a socket"}
    assert packer.size() == packer.tally.size_bytes == 700_001
    (tmp_path / "in").mkdir()
    subprocess.run(["tar", "-xpf", "-", "-C", tmp_path / "in"], input=archive, check=True)
    about = (tmp_path / "in/exe").stat()
    assert (about.st_mode & 0o7777, about.st_mtime_ns) == (0o751, 1_234_567_890_123_456_789)
    assert (tmp_path / "in/link").readlink() == (up / "link").readlink()
    assert (tmp_path / "in/deep" / ("long" * 30) / "f").stat().st_size == 700_000


def test_what_is_excluded_is_not_looked_at(tmp_path: Path) -> None:
    for name in ("a.pyc", "src/b.pyc", "src/c.py", "build/out/x", "src/out/y", ".git/z"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("x")

    def packed(exclude: Any) -> set[str]:
        with tarfile.open(fileobj=io.BytesIO(b"".join(Packer(tmp_path, exclude)))) as archive:
            return {info.name for info in archive if info.isreg()}

    assert packed(["*.pyc", ".git/", "build/out"]) == {"src/c.py", "src/out/y"}
    assert packed(lambda path: path.startswith("src")) == {"a.pyc", "build/out/x", ".git/z"}
    with pytest.raises(Invalid):
        Packer(tmp_path, "*.pyc")


def test_a_file_that_shrinks_while_it_is_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "shrinks").write_bytes(b"x" * 2_000_000)
    packer = Packer(tmp_path)
    pieces = iter(packer)
    content = next(pieces)
    os.truncate(tmp_path / "shrinks", 1000)
    content += b"".join(pieces)
    assert "zeros" in packer.tally.skipped[0].reason
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        assert archive.getmember("shrinks").size == 2_000_000


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("*.py", "a/b.py", True),
        ("*.py", "b.txt", False),
        ("a/*.py", "a/b.py", True),
        ("a/*.py", "a/c/b.py", False),
        ("**/b.py", "b.py", True),
        ("a/**/b.py", "a/x/y/b.py", True),
        ("a/**", "a/x/y", True),
        ("a/b", "a", False),
    ],
)
def test_a_pattern_fits_names_or_paths(pattern: str, path: str, fits: bool) -> None:
    assert matches(pattern, "/w", f"/w/{path}") is fits

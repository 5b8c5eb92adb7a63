"""Single files and directories. A part of `GuestSuite`."""

import asyncio
import hashlib
from collections.abc import AsyncIterator

import pytest

from skerry.model.errors import GuestError, Invalid
from skerry.model.files import ChangeKind, FileType
from skerry.testing.guest_suite.inside import DEADLINE_S, Inside, code_of, collect, content, pieces


class FileTests:
    """See `GuestSuite`."""

    async def test_a_file_is_written_with_its_parents_and_read_back(self, inside: Inside) -> None:
        path = f"{inside.root}/a/b/file"
        info = await inside.guest.write(path, pieces(b"hello ", b"", b"world"), mode=0o640)
        assert (info.name, info.path, info.type) == ("file", path, FileType.FILE)
        assert (info.size_bytes, info.mode) == (11, 0o640)
        assert await content(inside.guest, path) == b"hello world"

    async def test_a_range_of_a_file_is_read(self, inside: Inside) -> None:
        path = f"{inside.root}/range"
        await inside.guest.write(path, pieces(b"0123456789"))
        assert await content(inside.guest, path, 3, 4) == b"3456"
        assert await content(inside.guest, path, 8, 100) == b"89"
        assert await content(inside.guest, path, 100) == b""
        assert await content(inside.guest, path, 0, 0) == b""

    async def test_an_open_file_tells_what_it_is(self, inside: Inside) -> None:
        path = f"{inside.root}/told"
        written = await inside.guest.write(path, pieces(b"12345"))
        async with inside.guest.read(path) as reader:
            assert reader.info == written

    async def test_megabytes_arrive_as_they_were_sent(self, inside: Inside) -> None:
        block = bytes(range(256)) * 1024
        path = f"{inside.root}/large"
        await inside.guest.write(path, pieces(*[block] * 20, b"end"))
        got = await content(inside.guest, path)
        assert hashlib.sha256(got).digest() == hashlib.sha256(block * 20 + b"end").digest()

    async def test_an_empty_file_is_a_file(self, inside: Inside) -> None:
        info = await inside.guest.write(f"{inside.root}/empty", pieces())
        assert (info.size_bytes, info.type) == (0, FileType.FILE)
        assert await content(inside.guest, f"{inside.root}/empty") == b""

    async def test_a_write_that_cannot_be_is_refused_while_its_source_is_silent(self, inside: Inside) -> None:
        await inside.guest.write(f"{inside.root}/file", pieces(b"x"))

        async def silent() -> AsyncIterator[bytes]:
            yield b"new"
            await asyncio.Event().wait()

        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(GuestError) as caught:
                await inside.guest.write(f"{inside.root}/file/below", silent())
        assert caught.value.guest_code == "not_a_directory"

    async def test_a_write_that_breaks_off_leaves_the_old_file_and_nothing_else(self, inside: Inside) -> None:
        path = f"{inside.root}/kept"
        await inside.guest.write(path, pieces(b"old"))

        async def broken() -> AsyncIterator[bytes]:
            yield b"new"
            raise ConnectionResetError("the client went away")

        with pytest.raises(ConnectionResetError):
            await inside.guest.write(path, broken())
        assert await content(inside.guest, path) == b"old"
        # The next answer may overtake the clearing up, a few answers later it is done.
        async with asyncio.timeout(DEADLINE_S):
            while await collect(inside.guest, inside.root) != ["kept"]:
                pass

    async def test_create_only_never_replaces(self, inside: Inside) -> None:
        path = f"{inside.root}/once"
        await inside.guest.write(path, pieces(b"1"), create_only=True)
        with pytest.raises(GuestError) as caught:
            await inside.guest.write(path, pieces(b"2"), create_only=True)
        assert code_of(caught) == "exists"
        assert await content(inside.guest, path) == b"1"

    async def test_replacing_a_file_keeps_its_mode(self, inside: Inside) -> None:
        path = f"{inside.root}/mode"
        await inside.guest.write(path, pieces(b"1"), mode=0o600)
        assert (await inside.guest.write(path, pieces(b"2"))).mode == 0o600

    async def test_what_is_not_there_is_not_found(self, inside: Inside) -> None:
        path = f"{inside.root}/none"
        for attempt in (
            content(inside.guest, path),
            inside.guest.stat(path),
            inside.guest.remove(path),
            inside.guest.move(path, path + "2"),
            collect(inside.guest, path),
        ):
            with pytest.raises(GuestError) as caught:
                await attempt
            assert code_of(caught) == "not_found"

    async def test_a_directory_is_no_file(self, inside: Inside) -> None:
        for attempt in (content(inside.guest, inside.root), inside.guest.write(inside.root, pieces(b"x"))):
            with pytest.raises(GuestError) as caught:
                await attempt
            assert code_of(caught) in ("is_a_directory", "not_a_file")

    async def test_odd_names_come_back_as_they_are(self, inside: Inside) -> None:
        names = {"😀 emoji", "new\nline", "quote\"'\\", "-dash", "%41", "é", "e\u0301", "n" * 255, "bad\udcff\udc80"}
        for name in names:
            info = await inside.guest.write(f"{inside.root}/{name}", pieces(b"x"))
            assert info.name == name
        assert set(await collect(inside.guest, inside.root)) == names

    async def test_a_name_that_is_too_long_is_told_as_that(self, inside: Inside) -> None:
        with pytest.raises(GuestError) as caught:
            await inside.guest.write(f"{inside.root}/{'n' * 256}", pieces(b"x"))
        assert code_of(caught) == "name_too_long"

    async def test_thousands_of_entries_are_listed(self, inside: Inside) -> None:
        count, at_once = 1500, 500  # sbxd has at most 1024 streams
        for start in range(0, count, at_once):
            numbers = range(start, start + at_once)
            await asyncio.gather(*(inside.guest.write(f"{inside.root}/{number:04}", pieces(b"")) for number in numbers))
        assert sorted(await collect(inside.guest, inside.root)) == [f"{number:04}" for number in range(count)]

    async def test_directories_are_made_with_and_without_parents(self, inside: Inside) -> None:
        info = await inside.guest.mkdir(f"{inside.root}/a/b", mode=0o700)
        assert (info.type, info.mode) == (FileType.DIR, 0o700)
        assert (await inside.guest.mkdir(f"{inside.root}/a/b")).type is FileType.DIR
        with pytest.raises(GuestError) as caught:
            await inside.guest.mkdir(f"{inside.root}/a/b", parents=False)
        assert code_of(caught) == "exists"
        with pytest.raises(GuestError) as caught:
            await inside.guest.mkdir(f"{inside.root}/x/y", parents=False)
        assert code_of(caught) == "not_found"

    async def test_a_file_moves_and_is_overwritten_only_when_that_is_asked_for(self, inside: Inside) -> None:
        first, second = f"{inside.root}/1", f"{inside.root}/2"
        await inside.guest.write(first, pieces(b"1"))
        await inside.guest.write(second, pieces(b"2"))
        with pytest.raises(GuestError) as caught:
            await inside.guest.move(first, second, overwrite=False)
        assert code_of(caught) == "exists"
        assert (await inside.guest.move(first, second)).path == second
        assert await content(inside.guest, second) == b"1"
        assert await collect(inside.guest, inside.root) == ["2"]

    async def test_a_tree_is_removed_only_recursively(self, inside: Inside) -> None:
        await inside.guest.write(f"{inside.root}/tree/a/b", pieces(b"x"))
        with pytest.raises(GuestError) as caught:
            await inside.guest.remove(f"{inside.root}/tree")
        assert code_of(caught) == "not_empty"
        assert await inside.guest.remove(f"{inside.root}/tree", recursive=True) == 3
        assert await collect(inside.guest, inside.root) == []

    async def test_a_watch_tells_what_changes(self, inside: Inside) -> None:
        async with asyncio.timeout(DEADLINE_S), inside.guest.watch(inside.root) as changes:
            await inside.guest.mkdir(f"{inside.root}/made")
            await inside.guest.remove(f"{inside.root}/made")
            seen: list[tuple[ChangeKind, str]] = []
            async for change in changes:
                seen.append((change.kind, change.path))
                if change.kind is ChangeKind.REMOVE:
                    break
        assert (ChangeKind.CREATE, f"{inside.root}/made") in seen
        assert (ChangeKind.REMOVE, f"{inside.root}/made") in seen

    async def test_paths_have_to_be_absolute_and_without_nul(self, inside: Inside) -> None:
        for path in ("relative", "", "/nul\0", "/high\ud800surrogate"):
            with pytest.raises(Invalid):
                await inside.guest.stat(path)

"""Trees, as tar streams. A part of `GuestSuite`."""

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator

import pytest

from skerry.model.errors import GuestError, Invalid
from skerry.model.files import ArchiveLimits, FileType
from skerry.testing.guest_suite.inside import (
    DEADLINE_S,
    LIMITS,
    Inside,
    code_of,
    collect,
    content,
    packed,
    pieces,
    tar,
)


class TreeTests:
    """See `GuestSuite`."""

    async def test_a_tree_goes_up_and_comes_down(self, inside: Inside) -> None:
        up = tar(("a", None), ("a/empty", None), ("a/file", b"x" * 700_000), ("implied/dir/run", b"#!"), mode=0o750)
        told = await inside.guest.unpack(f"{inside.root}/new/tree", pieces(up[:1000], up[1000:]), LIMITS)
        assert (told.count, told.size_bytes, told.skipped, told.skipped_count) == (4, 700_002, (), 0)
        assert await content(inside.guest, f"{inside.root}/new/tree/a/file") == b"x" * 700_000
        assert (await inside.guest.stat(f"{inside.root}/new/tree/implied/dir/run")).mode == 0o750
        down, told = await packed(inside.guest, f"{inside.root}/new/tree")
        assert (told.count, told.size_bytes, told.skipped_count) == (7, 700_002, 0)
        with tarfile.open(fileobj=io.BytesIO(down)) as archive:
            found = {info.name: info for info in archive}
        assert set(found) == {"a", "a/empty", "a/file", "implied", "implied/dir", "implied/dir/run", "."}
        assert found["a/file"].size == 700_000 and found["a/empty"].isdir()

    async def test_times_are_kept(self, inside: Inside) -> None:
        up = tar(("d", None), ("d/f", b"x"), mtime=1_500_000_000.5)
        await inside.guest.unpack(inside.root, pieces(up), LIMITS)
        assert (await inside.guest.stat(f"{inside.root}/d/f")).mtime_ns == 1_500_000_000_500_000_000
        assert (await inside.guest.stat(f"{inside.root}/d")).mtime_ns == 1_500_000_000_500_000_000

    async def test_entries_that_lead_out_are_skipped_with_a_reason_and_the_rest_is_there(self, inside: Inside) -> None:
        up = tar(("before", b"1"), ("/etc/evil", b"x"), ("../evil", b"x"), ("a/../../evil", b"x"), ("after", b"2"))
        told = await inside.guest.unpack(f"{inside.root}/into", pieces(up), LIMITS)
        assert [each.path for each in told.skipped] == ["/etc/evil", "../evil", "a/../../evil"]
        assert all(each.reason for each in told.skipped) and (told.count, told.skipped_count) == (2, 3)
        assert sorted(await collect(inside.guest, f"{inside.root}/into")) == ["after", "before"]
        assert await collect(inside.guest, inside.root) == ["into"]

    async def test_devices_and_fifos_are_never_made(self, inside: Inside) -> None:
        for kind in (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE):
            told = await inside.guest.unpack(inside.root, pieces(tar(("x", b""), type=kind)), LIMITS)
            assert (told.count, told.skipped_count) == (0, 1)
        assert await collect(inside.guest, inside.root) == []

    async def test_an_archive_that_ends_early_is_told_and_keeps_what_was_complete(self, inside: Inside) -> None:
        up = tar(("first", b"1" * 500), ("second", b"2" * 500))
        with pytest.raises(GuestError) as caught:
            await inside.guest.unpack(inside.root, pieces(up[:1800]), LIMITS)
        assert code_of(caught) == "invalid"
        assert await collect(inside.guest, inside.root) == ["first"]

    async def test_what_is_no_archive_is_told(self, inside: Inside) -> None:
        with pytest.raises(GuestError) as caught:
            await inside.guest.unpack(inside.root, pieces(b"no tar" * 500), LIMITS)
        assert code_of(caught) == "invalid"

    async def test_an_upload_of_a_tree_that_breaks_off_goes_through(self, inside: Inside) -> None:
        async def broken() -> AsyncIterator[bytes]:
            yield tar(("file", b"x" * 5000))[:2000]
            raise ConnectionResetError("the client went away")

        with pytest.raises(ConnectionResetError):
            await inside.guest.unpack(inside.root, broken(), LIMITS)
        async with asyncio.timeout(DEADLINE_S):
            while await collect(inside.guest, inside.root):
                pass

    async def test_more_than_the_limits_ends_with_limit(self, inside: Inside) -> None:
        up = tar(*((str(number), b"12345") for number in range(10)))
        for limits in (ArchiveLimits(5, 1000), ArchiveLimits(1000, 7)):
            with pytest.raises(GuestError) as caught:
                await inside.guest.unpack(f"{inside.root}/into", pieces(up), limits)
            assert code_of(caught) == "limit"
        await inside.guest.unpack(f"{inside.root}/all", pieces(up), LIMITS)
        with pytest.raises(GuestError) as caught:
            await packed(inside.guest, f"{inside.root}/all", ArchiveLimits(5, 1000))
        assert code_of(caught) == "limit"
        _, told = await packed(inside.guest, f"{inside.root}/all", ArchiveLimits(1000, 7))
        assert (told.size_bytes, told.skipped_count) == (5, 9)

    async def test_only_a_directory_is_packed(self, inside: Inside) -> None:
        await inside.guest.write(f"{inside.root}/file", pieces(b"x"))
        for name, code in (("none", "not_found"), ("file", "not_a_directory")):
            with pytest.raises(GuestError) as caught:
                await packed(inside.guest, f"{inside.root}/{name}")
            assert code_of(caught) == code
        with pytest.raises(GuestError) as caught:
            await inside.guest.unpack(f"{inside.root}/file", pieces(tar(("x", b""))), LIMITS)
        assert code_of(caught) == "not_a_directory"

    async def test_touching_makes_a_file_once_and_then_its_time(self, inside: Inside) -> None:
        path = f"{inside.root}/new/file"
        made = await inside.guest.set_attributes(path, now=True, create=True)
        assert (made.size_bytes, made.type) == (0, FileType.FILE)
        await inside.guest.write(path, pieces(b"kept"))
        told = await inside.guest.set_attributes(path, mtime_ns=1_234_567_890_123_456_789, create=True)
        assert (told.mtime_ns, told.size_bytes) == (1_234_567_890_123_456_789, 4)
        told = await inside.guest.set_attributes(path, mode=0o600)
        assert (told.mtime_ns, told.mode) == (1_234_567_890_123_456_789, 0o600)
        with pytest.raises(GuestError):
            await inside.guest.set_attributes(f"{inside.root}/none", now=True)
        with pytest.raises(Invalid):
            await inside.guest.set_attributes(path, now=True, mtime_ns=1)

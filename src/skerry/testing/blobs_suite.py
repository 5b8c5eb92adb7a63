"""What every object store does, as tests. Subclass `BlobsSuite` and give it a `blobs` fixture; it holds nothing yet."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from skerry.model.errors import Invalid, NotFound
from skerry.seams.blobs import Blobs

HOSTILE_KEYS = (
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    "..",
    "../a",
    "a/../b",
    "a/./b",
    ".hidden",
    "a/.hidden",
    "-option",
    "a b",
    "a\nb",
    "a\0b",
    "a\\b",
    "ä",
    "a?b",
    "a%2e",
    "x" * 129,
    "/".join("abcdefghi"),
)


async def names(blobs: Blobs, prefix: str) -> set[str]:
    return {blob.key async for blob in blobs.list(prefix)}


class BlobsSuite:
    async def test_what_is_put_is_got(self, blobs: Blobs) -> None:
        data = bytes(range(256)) * 100
        assert await blobs.put("v/packs/p1", data)
        assert await blobs.get("v/packs/p1") == data

    async def test_an_object_may_be_empty(self, blobs: Blobs) -> None:
        await blobs.put("v/empty", b"")
        assert await blobs.get("v/empty") == b""

    async def test_an_object_of_sixteen_megabytes_is_one_object(self, blobs: Blobs) -> None:
        data = b"0123456789abcdef" * (1 << 20)
        await blobs.put("v/packs/large", data, create_only=True)
        assert await blobs.get("v/packs/large") == data
        assert [blob.size_bytes async for blob in blobs.list("v/packs/")] == [len(data)]

    async def test_a_put_replaces_what_is_there(self, blobs: Blobs) -> None:
        await blobs.put("v/a", b"one and more")
        assert await blobs.put("v/a", b"two")
        assert await blobs.get("v/a") == b"two"

    async def test_a_create_only_put_writes_nothing_over(self, blobs: Blobs) -> None:
        assert await blobs.put("v/a", b"one", create_only=True)
        assert not await blobs.put("v/a", b"two", create_only=True)
        assert await blobs.get("v/a") == b"one"

    async def test_of_many_that_create_one_object_one_does(self, blobs: Blobs) -> None:
        created = await asyncio.gather(*(blobs.put("v/a", b"%d" % i, create_only=True) for i in range(8)))
        assert created.count(True) == 1
        assert await blobs.get("v/a") == b"%d" % created.index(True)

    async def test_a_part_is_got_by_start_and_length(self, blobs: Blobs) -> None:
        await blobs.put("v/a", b"0123456789")
        assert await blobs.get("v/a", 3, 4) == b"3456"
        assert await blobs.get("v/a", 3) == b"3456789"
        assert await blobs.get("v/a", 8, 100) == b"89"

    async def test_what_is_not_there_is_not_found(self, blobs: Blobs) -> None:
        await blobs.put("v/a/b", b"1")
        for key in ("v/none", "v/a", "v/a/b/c"):
            with pytest.raises(NotFound):
                await blobs.get(key)
            with pytest.raises(NotFound):
                await blobs.get(key, 1, 2)

    async def test_a_delete_removes_and_may_be_repeated(self, blobs: Blobs) -> None:
        await blobs.put("v/a", b"1")
        await blobs.delete("v/a")
        await blobs.delete("v/a")
        with pytest.raises(NotFound):
            await blobs.get("v/a")
        assert await blobs.put("v/a", b"2", create_only=True)

    async def test_a_listing_has_all_below_a_whole_name(self, blobs: Blobs) -> None:
        for key in ("v1/packs/a", "v1/packs/b", "v1/archives/c", "v11/packs/d"):
            await blobs.put(key, b"1")
        assert await names(blobs, "v1/packs/") == {"v1/packs/a", "v1/packs/b"}
        assert await names(blobs, "v1/") == {"v1/packs/a", "v1/packs/b", "v1/archives/c"}
        assert await names(blobs, "v1") == await names(blobs, "v1/")
        assert await names(blobs, "v2/") == set()
        assert await names(blobs, "") == {"v1/packs/a", "v1/packs/b", "v1/archives/c", "v11/packs/d"}

    async def test_a_listing_has_more_than_a_page(self, blobs: Blobs) -> None:
        keys = [f"v/packs/{i}" for i in range(1100)]
        for start in range(0, len(keys), 50):
            await asyncio.gather(*(blobs.put(key, b"1") for key in keys[start : start + 50]))
        assert await names(blobs, "v/packs/") == set(keys)

    async def test_a_listing_tells_size_and_time(self, blobs: Blobs) -> None:
        await blobs.put("v/a", b"12345")
        (blob,) = [blob async for blob in blobs.list("v/")]
        assert (blob.key, blob.size_bytes) == ("v/a", 5)
        assert abs(blob.modified_at - datetime.now(UTC)) < timedelta(minutes=1)

    @pytest.mark.parametrize("key", HOSTILE_KEYS)
    async def test_a_key_that_is_none_is_refused(self, blobs: Blobs, key: str) -> None:
        for call in (blobs.put(key, b"1"), blobs.get(key), blobs.delete(key)):
            with pytest.raises(Invalid):
                await call
        if key not in ("", "a/", "/"):
            with pytest.raises(Invalid):
                await names(blobs, key)

"""Every object store keeps the same contract. A new one is one class here."""
# ruff: noqa: PTH208 - names, not paths

import os
from pathlib import Path
from uuid import uuid4

import pytest
from conformance.weed_process import ACCESS_KEY, BUCKET, SECRET_KEY, Weed

from skerry.blobs.store import open_blobs
from skerry.model.errors import Invalid, Unavailable
from skerry.seams.blobs import Blobs
from skerry.testing.blobs_suite import BlobsSuite
from skerry.testing.memory_blobs import MemoryBlobs


def s3_blobs(server: Weed, prefix: str, secret: str = SECRET_KEY) -> Blobs:
    return open_blobs(f"s3://{BUCKET}/{prefix}", server.endpoint, "us-east-1", ACCESS_KEY, secret)


class TestMemory(BlobsSuite):
    @pytest.fixture
    def blobs(self) -> Blobs:
        return MemoryBlobs()


class TestFiles(BlobsSuite):
    @pytest.fixture
    def blobs(self, tmp_path: Path) -> Blobs:
        return open_blobs(f"file://{tmp_path}/new/store", "", "", "", "")

    async def test_the_directory_is_its_owners_alone(self, tmp_path: Path, blobs: Blobs) -> None:
        await blobs.put("v/a", b"1")
        assert (tmp_path / "new/store").stat().st_mode & 0o777 == 0o700
        assert (tmp_path / "new/store/v/a").stat().st_mode & 0o777 == 0o600

    async def test_nothing_is_left_beside_the_objects(self, tmp_path: Path, blobs: Blobs) -> None:
        await blobs.put("v/a", b"1")
        await blobs.put("v/a", b"2", create_only=True)
        assert os.listdir(tmp_path / "new/store/.unfinished") == []

    @pytest.mark.parametrize("place", ["nothing", "a file"])
    async def test_a_directory_that_went_away_has_lost_nothing_and_is_unavailable(
        self, tmp_path: Path, blobs: Blobs, place: str
    ) -> None:
        await blobs.put("v/a", b"1")
        store, aside = tmp_path / "new/store", tmp_path / "new/aside"
        store.rename(aside)
        if place == "a file":
            store.touch()
        with pytest.raises(Unavailable, match="cannot be read"):
            await blobs.get("v/a")

    async def test_a_directory_that_cannot_be_made_is_unavailable(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(Unavailable, match="cannot be written"):
            await open_blobs(f"file://{tmp_path}/file/store", "", "", "", "").put("v/a", b"1")


class TestS3(BlobsSuite):
    @pytest.fixture
    def blobs(self, s3: Weed) -> Blobs:
        return s3_blobs(s3, f"some/{uuid4().hex}")

    async def test_a_wrong_key_is_told_without_telling_keys(self, s3: Weed) -> None:
        blobs = s3_blobs(s3, "some", "a-wrong-secret-key")
        with pytest.raises(Unavailable) as caught:
            await blobs.put("v/a", b"1")
        assert ACCESS_KEY not in caught.value.message and "a-wrong-secret-key" not in caught.value.message

    async def test_a_server_that_is_not_there_is_unavailable(self) -> None:
        blobs = open_blobs(f"s3://{BUCKET}/some", "http://127.0.0.1:9", "us-east-1", ACCESS_KEY, SECRET_KEY)
        with pytest.raises(Unavailable) as caught:
            await blobs.get("v/a")
        assert ACCESS_KEY not in caught.value.message and SECRET_KEY not in caught.value.message


@pytest.mark.parametrize("place", ["", "none", "file://host/dir", "file:dir", "s3:///x", "http://x/y", "s3:bucket"])
def test_a_place_of_no_known_kind_is_refused(place: str) -> None:
    with pytest.raises(Invalid):
        open_blobs(place, "", "", "", "")

"""Batches become tar streams that any reader reads."""

import io
import tarfile

import pytest

from skerry.config import Config
from skerry.control import trees
from skerry.control.deps import Deps
from skerry.control.trees import NewFile
from skerry.testing.clock import ManualClock
from skerry.testing.fake_guest import FakeGuest
from skerry.testing.fake_provider import FakeProvider
from skerry.testing.memory_store import MemoryStore

FILES = [
    NewFile("b/second", b"2" * 513, 0o755),
    NewFile("a", b"", 0o600),
    NewFile("b/first", b"1" * 512),
    NewFile("long/" * 30 + "name", b"long"),
    NewFile("schön", b"utf-8"),
    NewFile("n" * 100, b"as long as a plain name may be"),
    NewFile("a", b"the last of equal names counts", 0o640),
]


@pytest.mark.parametrize("format_reader", ["r:", "r|"])
async def test_a_batch_is_a_tar_stream(format_reader: str) -> None:
    stream = b"".join([piece async for piece in trees._archive(FILES, 1_700_000_000)])  # pyright: ignore[reportPrivateUsage]
    assert len(stream) % 512 == 0
    with tarfile.open(fileobj=io.BytesIO(stream), mode=format_reader, errorlevel=2) as archive:  # pyright: ignore
        found = {info.name: (info.mode, info.mtime, archive.extractfile(info).read()) for info in archive}  # pyright: ignore
    assert found == {file.path: (file.mode, 1_700_000_000, file.content) for file in FILES}


async def test_a_batch_arrives_as_it_was_given() -> None:
    guest = FakeGuest()
    deps = Deps(MemoryStore(), FakeProvider(), ManualClock(), Config())
    told = await trees.write_batch(deps, guest, "there", FILES)
    assert (told.count, told.skipped) == (len(FILES), ())
    assert guest.files.nodes["/workspace/there/a"].data == b"the last of equal names counts"
    assert guest.files.nodes["/workspace/there/b/second"].mode == 0o755

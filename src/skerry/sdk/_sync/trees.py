"""Whole directories between this machine and a sandbox, as tar streams in flat memory. Behind `sandbox.files`."""

import os
from collections.abc import Iterator

from skerry.sdk._sync.http import Http
from skerry.sdk.asides import directly
from skerry.sdk.packing import Contents, Exclude, Packer, pack_many
from skerry.sdk.requests import answer_of
from skerry.sdk.transfers import MAX_TOLD, Progress, Skipped, Transfer
from skerry.sdk.unpacking import Unpacker
from skerry.wire.trees import Unpacked

TRANSFER_S = 3600.0
TAR = "application/x-tar"
Path = str | os.PathLike[str]


class Trees:
    """The tar routes of one sandbox; `base` is the address of its files."""

    def __init__(self, http: Http, base: str) -> None:
        self._http = http
        self._url = f"{base}/tar"

    def upload(self, local: Path, remote: str, exclude: Exclude, progress: Progress | None) -> Transfer:
        packer = Packer(local, exclude)
        total = None if progress is None else directly(packer.size)
        begun = [packer]

        def content() -> Iterator[bytes]:
            begun.append(Packer(local, exclude))  # anew where the call is made again
            return _pieces(begun[-1], progress, total)

        answer = self._http.put(self._url, params={"path": remote}, content=content, kind=TAR, timeout_s=TRANSFER_S)
        told, here = answer_of(Unpacked, answer), begun[-1].tally
        skipped = (*here.skipped, *(Skipped(one.path, one.reason) for one in told.skipped))[:MAX_TOLD]
        return Transfer(told.count, told.size_bytes, skipped, here.skipped_count + told.skipped_count)

    def download(
        self, remote: str, local: Path, progress: Progress | None, *, max_entries: int, max_bytes: int
    ) -> Transfer:
        with self._http.stream(self._url, params={"path": remote}) as chunks:
            unpacker = directly(Unpacker, local, max_entries=max_entries, max_bytes=max_bytes)
            try:
                for chunk in chunks:
                    directly(unpacker.feed, chunk)
                    if progress is not None:
                        progress(unpacker.tally.size_bytes, None)
                return directly(unpacker.finish)
            finally:
                unpacker.close()

    def write(self, files: Contents, mode: str) -> Unpacked:
        base, archive = pack_many(files, mode)
        answer = self._http.put(self._url, params={"path": base}, content=archive, kind=TAR, timeout_s=TRANSFER_S)
        return answer_of(Unpacked, answer)


def _pieces(packer: Packer, progress: Progress | None, total: int | None) -> Iterator[bytes]:
    pieces = iter(packer)
    while (piece := directly(next, pieces, None)) is not None:
        yield piece
        if progress is not None:
            progress(packer.tally.size_bytes, total)

"""The history of what sandboxes use: one small file of fixed size a sandbox, which outlives this process.

A file is two rings of 64-byte slots: one sample each 10 s for an hour, then one each 2 min for a day. A sample's time
says in which slot it lies, so there is no position to keep, a write that a power cut tore is one lost sample, and a
slot that was skipped is told by the old time in it. Blocking; decides nothing.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from skerry.model.ids import SandboxId, is_id
from skerry.model.metrics import Sample

_SLOT = struct.Struct("<8Q")
_UNKNOWN = 2**64 - 1
_SUFFIX = ".samples"


@dataclass(frozen=True, slots=True)
class Ring:
    """Where a ring lies in the file, how many slots it has, and how many seconds one stands for."""

    first_slot: int
    slots: int
    every_s: int

    def offset(self, at_ms: int) -> int:
        return (self.first_slot + at_ms // (self.every_s * 1000) % self.slots) * _SLOT.size

    @property
    def span_ms(self) -> int:
        return self.slots * self.every_s * 1000


FINE = Ring(0, 360, 10)
COARSE = Ring(360, 720, 120)
FILE_BYTES = (FINE.slots + COARSE.slots) * _SLOT.size


class SampleRings:
    """The files of one node, in a directory of their own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def add(self, sandbox_id: SandboxId, sample: Sample) -> None:
        """Write a sample. Twice in the same 10 s: the later one stands.

        Raises:
            OSError: The disk is full.
        """
        at_ms = int(sample.at.timestamp() * 1000)
        slot = _SLOT.pack(*_numbers(at_ms, sample))
        fd = os.open(self._path(sandbox_id), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(fd, slot, FINE.offset(at_ms))
            old = os.pread(fd, 8, COARSE.offset(at_ms))
            period_ms = COARSE.every_s * 1000
            if len(old) < 8 or int.from_bytes(old, "little") // period_ms != at_ms // period_ms:
                os.pwrite(fd, slot, COARSE.offset(at_ms))
        finally:
            os.close(fd)

    def read(self, sandbox_id: SandboxId, now: datetime) -> list[Sample]:
        """What is kept, oldest first: a day at most, the last hour in full. Unknown: nothing."""
        try:
            raw = self._path(sandbox_id).read_bytes()[:FILE_BYTES]
        except FileNotFoundError:
            return []
        raw = raw.ljust(FILE_BYTES, b"\0")
        now_ms = int(now.timestamp() * 1000)
        fine = sorted(_valid(raw, FINE, now_ms))
        first = fine[0][0] if fine else now_ms + 1
        coarse = sorted(slot for slot in _valid(raw, COARSE, now_ms) if slot[0] < first)
        return [_sample(slot) for slot in coarse + fine]

    def keep_only(self, sandbox_ids: set[SandboxId]) -> None:
        """Remove the files of all other sandboxes."""
        for path in self._directory.iterdir():
            if path.name.removesuffix(_SUFFIX) not in sandbox_ids:
                with suppress(FileNotFoundError):
                    path.unlink()

    def _path(self, sandbox_id: SandboxId) -> Path:
        assert is_id(sandbox_id, "sbx")  # it becomes a file's name
        return self._directory / f"{sandbox_id}{_SUFFIX}"


def _numbers(at_ms: int, sample: Sample) -> tuple[int, ...]:
    return (
        at_ms,
        sample.cpu_ms,
        sample.memory_bytes,
        sample.memory_cache_bytes,
        sample.processes,
        _UNKNOWN if sample.disk_bytes is None else sample.disk_bytes,
        sample.network_rx_bytes,
        sample.network_tx_bytes,
    )


def _sample(slot: tuple[int, ...]) -> Sample:
    at_ms, cpu_ms, memory, cache, processes, disk, rx, tx = slot
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return Sample(at, cpu_ms, memory, cache, processes, None if disk == _UNKNOWN else disk, rx, tx)


def _valid(raw: bytes, ring: Ring, now_ms: int) -> Iterator[tuple[int, ...]]:
    """The slots that hold a sample of the ring's span: not one from its last round, nor one from the future."""
    begin = ring.first_slot * _SLOT.size
    for slot in _SLOT.iter_unpack(raw[begin : begin + ring.slots * _SLOT.size]):
        if now_ms - ring.span_ms < slot[0] <= now_ms:
            yield slot

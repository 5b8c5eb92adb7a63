"""The history of what sandboxes use: kept in order, bounded, over deaths of the node and torn writes."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from node_fakes import FakeImages, FakeLayers, FakeNetwork, FakeRuntime, FakeTrees, Faults, Machine

from skerry.model.errors import NotFound
from skerry.model.ids import SandboxId, new_sandbox_id
from skerry.model.metrics import Sample
from skerry.model.sandbox import Observed
from skerry.node.parts import Parts
from skerry.node.sample_rings import FILE_BYTES, SampleRings
from skerry.node.sampler import Sampler

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)
BOX = new_sandbox_id()


def sample(at: datetime, cpu_ms: int = 0, disk: int | None = 1) -> Sample:
    return Sample(at, cpu_ms, 1 << 33, 2, 3, disk, 5, 6)


def filled(directory: Path, seconds: int) -> SampleRings:
    rings = SampleRings(directory)
    for n in range(0, seconds, 10):
        rings.add(BOX, sample(NOON + timedelta(seconds=n), n))
    return rings


def test_samples_come_back_as_they_went_in(tmp_path: Path) -> None:
    rings = SampleRings(tmp_path / "samples")
    kept = [sample(NOON, 7), sample(NOON + timedelta(seconds=10, milliseconds=5), 8, disk=None)]
    for one in kept:
        rings.add(BOX, one)
    assert SampleRings(tmp_path / "samples").read(BOX, NOON + timedelta(minutes=1)) == kept
    assert rings.read(new_sandbox_id(), NOON) == []


def test_an_hour_is_kept_in_full_and_a_day_every_two_minutes(tmp_path: Path) -> None:
    rings = filled(tmp_path, 2 * 86_400)
    now = NOON + timedelta(days=2)
    history = rings.read(BOX, now)
    ages = [(now - one.at).total_seconds() for one in history]
    assert ages == sorted(ages, reverse=True)
    assert ages[-360:] == [10.0 * n for n in range(360, 0, -1)]
    assert ages[:-360] == [3600.0 + 120 * n for n in range(689, 0, -1)]
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size <= FILE_BYTES < 80_000


def test_a_gap_stays_a_gap(tmp_path: Path) -> None:
    rings = filled(tmp_path, 3600)
    later = NOON + timedelta(minutes=90)
    rings.add(BOX, sample(later))
    history = rings.read(BOX, later)
    assert [one.at for one in history if one.at > NOON + timedelta(minutes=60)] == [later]
    assert len({one.at for one in history}) == len(history)


def test_a_clock_that_was_set_back_shows_nothing_from_the_future(tmp_path: Path) -> None:
    rings = filled(tmp_path, 600)
    assert [one.cpu_ms for one in rings.read(BOX, NOON + timedelta(seconds=25))] == [0, 10, 20]


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"\xff" * 200_000, bytes(64)])
def test_a_torn_file_loses_samples_and_nothing_else(tmp_path: Path, content: bytes) -> None:
    rings = SampleRings(tmp_path)
    (tmp_path / f"{BOX}.samples").write_bytes(content)
    assert rings.read(BOX, NOON) == []
    rings.add(BOX, sample(NOON))
    assert rings.read(BOX, NOON) == [sample(NOON)]


class Sampled:
    """A sampler over fake parts, and what it is told that there is."""

    def __init__(self, directory: Path) -> None:
        faults = Faults()
        self.runtime, self.layers, self.network = FakeRuntime(faults), FakeLayers(faults), FakeNetwork(faults)
        images, trees = FakeImages(faults), FakeTrees(faults, self.layers, directory)
        parts = Parts(self.runtime, self.layers, images, self.network, Path("/sbxd"), directory, trees, None)
        self.held: list[Observed] = []
        self.rings = SampleRings(directory / "samples")
        self.sampler = Sampler(parts, self.rings, lambda: self.held)

    def hold(self, sandbox_id: SandboxId, *, running: bool = True) -> None:
        self.held.append(Observed(sandbox_id, 1, running))
        self.layers.held.add(sandbox_id)
        if running:
            self.runtime.machines[sandbox_id] = Machine()


async def test_f17_what_runs_is_sampled_and_what_is_gone_is_forgotten(tmp_path: Path) -> None:
    world = Sampled(tmp_path)
    dead, networked = new_sandbox_id(), new_sandbox_id()
    world.hold(BOX)
    world.hold(dead, running=False)
    world.hold(networked)
    world.network.held.add(networked)
    await world.sampler.sample()
    assert len((await world.sampler.metrics(BOX)).history) == 1
    told = await world.sampler.metrics(networked)
    assert told.now is not None and (told.now.network_rx_bytes, told.now.network_tx_bytes) == (1, 2)
    assert (told.now.cpu_ms, told.now.memory_bytes, told.now.disk_bytes) == (5, 100, 4096)
    assert (await world.sampler.metrics(dead)).now is None
    world.held = [seen for seen in world.held if seen.id != BOX]
    await world.sampler.sample()
    assert not list((tmp_path / "samples").glob(f"{BOX}*"))
    with pytest.raises(NotFound):
        await world.sampler.metrics(BOX)


async def test_a_sandbox_that_dies_while_it_is_measured_is_left_out(tmp_path: Path) -> None:
    world = Sampled(tmp_path)
    world.hold(BOX)
    del world.runtime.machines[BOX]
    await asyncio.wait_for(world.sampler.sample(), 10)
    assert (await world.sampler.metrics(BOX)).now is None

"""Measures what sandboxes use and keeps it: all of them in one go every few seconds, one of them when it is asked for.

Reads what the kernel counts on the host (cgroups, quotas, links). Starts nothing and asks nothing inside a sandbox.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import structlog

from skerry.model.errors import NotFound
from skerry.model.ids import SandboxId
from skerry.model.metrics import Metrics, Sample, Traffic, Usage
from skerry.model.sandbox import Observed
from skerry.node.parts import Parts
from skerry.node.sample_rings import FINE, SampleRings

INTERVAL_S = FINE.every_s

log = structlog.get_logger()


class Sampler:
    """`held` tells which sandboxes there are. `sample` is to be called every `INTERVAL_S`."""

    def __init__(self, parts: Parts, rings: SampleRings, held: Callable[[], Sequence[Observed]]) -> None:
        self._parts = parts
        self._rings = rings
        self._held = held

    async def sample(self) -> None:
        """Measure and keep every running sandbox; forget those that are gone."""
        held = self._held()
        samples = await self._measure([seen.id for seen in held if seen.running])
        await asyncio.to_thread(self._keep, samples, {seen.id for seen in held})

    async def metrics(self, sandbox_id: SandboxId) -> Metrics:
        """What one sandbox uses now, and what it used.

        Raises:
            NotFound: There is nothing of it here.
        """
        seen = next((seen for seen in self._held() if seen.id == sandbox_id), None)
        if seen is None:
            raise NotFound(f"This node has no sandbox {sandbox_id}.")
        samples = await self._measure([sandbox_id] if seen.running else [])
        history = await asyncio.to_thread(self._rings.read, sandbox_id, datetime.now(UTC))
        return Metrics(INTERVAL_S, samples.get(sandbox_id), history)

    async def _measure(self, sandbox_ids: Sequence[SandboxId]) -> Mapping[SandboxId, Sample]:
        if not sandbox_ids:
            return {}
        usage = await self._parts.runtime.usage(sandbox_ids)
        now = datetime.now(UTC)
        disk = await self._parts.layers.charged_bytes(sandbox_ids)
        traffic = await self._parts.network.traffic(sandbox_ids)
        return {
            # One that died meanwhile is in no cgroup any more.
            sandbox_id: _sample(now, usage[sandbox_id], disk.get(sandbox_id), traffic.get(sandbox_id, Traffic()))
            for sandbox_id in sandbox_ids
            if sandbox_id in usage
        }

    def _keep(self, samples: Mapping[SandboxId, Sample], held: set[SandboxId]) -> None:
        for sandbox_id, sample in samples.items():
            try:
                self._rings.add(sandbox_id, sample)
            except OSError as error:
                log.warning("samples of a sandbox are not kept", sandbox_id=sandbox_id, reason=str(error))
                break  # a full disk is full for all of them
        self._rings.keep_only(held)


def _sample(at: datetime, usage: Usage, disk_bytes: int | None, traffic: Traffic) -> Sample:
    return Sample(
        at,
        usage.cpu_ms,
        usage.memory_bytes,
        usage.memory_cache_bytes,
        usage.processes,
        disk_bytes,
        traffic.rx_bytes,
        traffic.tx_bytes,
    )

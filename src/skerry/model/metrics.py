"""What a sandbox uses, as counted by its host: never asked of anything inside, so nothing inside can lie about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from skerry.model.lifecycle import State


@dataclass(frozen=True, slots=True)
class Usage:
    """What the kernel charges to a sandbox's processes.

    `memory_bytes` is what it cannot take back at once, `memory_cache_bytes` are file pages that it can; the limit is on
    their sum. With a kernel of its own (gVisor) the sandbox's kernel is one of the processes, and the ones inside are
    its threads.
    """

    cpu_ms: int = 0  # since the sandbox's compute was started
    memory_bytes: int = 0
    memory_cache_bytes: int = 0
    processes: int = 0  # and threads


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes since the sandbox's link was made, as the sandbox sees them. Without a network: zeros."""

    rx_bytes: int = 0
    tx_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """All of it at one instant. `disk_bytes` is None where the host does not count it."""

    at: datetime
    cpu_ms: int
    memory_bytes: int
    memory_cache_bytes: int
    processes: int
    disk_bytes: int | None
    network_rx_bytes: int
    network_tx_bytes: int


@dataclass(frozen=True, slots=True)
class Metrics:
    """`now` is None when the sandbox does not run; `history` is in order, without gaps filled in."""

    interval_s: int
    now: Sample | None
    history: Sequence[Sample]


def cpu_percent(earlier: Sample | None, later: Sample) -> float | None:
    """Of one core, on average between two samples; None where that is not known (the compute was started anew)."""
    if earlier is None or later.cpu_ms < earlier.cpu_ms:
        return None
    elapsed_ms = (later.at - earlier.at).total_seconds() * 1000
    return None if elapsed_ms <= 0 else round(100 * (later.cpu_ms - earlier.cpu_ms) / elapsed_ms, 2)


def thinned(history: Sequence[Sample], step_s: int) -> Sequence[Sample]:
    """The last sample of each `step_s` seconds: counters lose nothing by it."""
    kept: dict[int, Sample] = {}
    for sample in history:
        kept[int(sample.at.timestamp()) // step_s] = sample
    return list(kept.values())


@dataclass(frozen=True, slots=True)
class Population:
    """What is on record, all accounts together: how many sandboxes of each state, runtime and template there are."""

    sandboxes: Mapping[tuple[State, str | None, str], int]  # destroyed ones are left out
    running_commands: int

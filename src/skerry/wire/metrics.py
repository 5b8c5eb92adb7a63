"""What a sandbox uses, on the wire (snake_case). Sizes in bytes, as the host counts them."""

from datetime import datetime

from skerry.wire.base import Answer


class MetricsSample(Answer):
    """One measurement.

    `cpu_ms` counts since the sandbox's compute was started; `cpu_percent` is of one core, since the sample before.
    `memory_bytes` is in use, `memory_cache_bytes` are pages of files that the kernel can take back: the limit is on
    both. `processes` counts threads, too. `disk_bytes` is null where the host does not count it. The network's bytes
    are those that the sandbox received and sent.
    """

    at: datetime
    cpu_ms: int
    cpu_percent: float | None = None
    memory_bytes: int
    memory_cache_bytes: int
    processes: int
    disk_bytes: int | None = None
    network_rx_bytes: int
    network_tx_bytes: int


class MetricsLimits(Answer):
    """What the sandbox may use. 1000 `cpu_millis` are one core."""

    cpu_millis: int
    memory_bytes: int
    processes: int
    disk_bytes: int


class MetricsView(Answer):
    """GET …/metrics. `now` is null when the sandbox does not run; `history` is in order of time."""

    sandbox_id: str
    interval_seconds: int
    limits: MetricsLimits
    now: MetricsSample | None
    history: list[MetricsSample]

"""/v1/sandboxes/{id}/metrics"""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from itertools import pairwise
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from skerry.api.call import Caller, answer
from skerry.control import metrics
from skerry.model.metrics import Sample, cpu_percent
from skerry.model.sandbox import Limits
from skerry.wire.metrics import MetricsLimits, MetricsSample, MetricsView

router = APIRouter(prefix="/v1/sandboxes/{sandbox_id}", tags=["sandboxes"])

_MIB = 1 << 20


@router.get("/metrics", response_model=MetricsView)
async def get_metrics(
    call: Caller,
    sandbox_id: str,
    since: datetime | None = None,
    until: datetime | None = None,
    step_seconds: Annotated[int | None, Query(ge=1, le=86_400)] = None,
) -> Response:
    """What the sandbox uses now and what it used: each 10 s for the last hour, each 2 min for the last day.

    With `step_seconds`, the last sample of each so many seconds.
    """
    sandbox, told = await metrics.get(
        call.deps, call.account_id, sandbox_id, since=since, until=until, step_s=step_seconds
    )
    now = None if told.now is None else _view(told.history[-1] if told.history else None, told.now)
    return answer(
        MetricsView(
            sandbox_id=sandbox.id,
            interval_seconds=told.interval_s,
            limits=_limits(sandbox.limits),
            now=now,
            history=_views(told.history),
        )
    )


def _views(history: Sequence[Sample]) -> list[MetricsSample]:
    return [_view(earlier, later) for earlier, later in pairwise([None, *history]) if later is not None]


def _view(earlier: Sample | None, sample: Sample) -> MetricsSample:
    return MetricsSample(**asdict(sample), cpu_percent=cpu_percent(earlier, sample))


def _limits(limits: Limits) -> MetricsLimits:
    return MetricsLimits(
        cpu_millis=limits.cpu_millis,
        memory_bytes=limits.memory_mb * _MIB,
        processes=limits.processes,
        disk_bytes=limits.disk_mb * _MIB,
    )

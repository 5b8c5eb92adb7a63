"""What this process counts about itself and tells Prometheus. No label is an id: their number is bounded.

Counting is cheap and never fails; what is told of the fleet is asked for when somebody looks.
"""

import asyncio
import platform
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

import skerry
from skerry.model.metrics import Population

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LAG_EVERY_S = 1.0
_TEMPLATES = 50  # labels of their own; what is made from others is counted together
_OTHERS = "(others)"
_LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_CREATE_S = (0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_LAG_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)


class Telemetry:
    """One per process. Its names are an interface: dashboards and alarms are built on them."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        build = Gauge("skerry_build_info", "The version that runs.", ["version", "python"], registry=registry)
        build.labels(skerry.__version__, platform.python_version()).set(1)
        self._requests = Counter(
            "skerry_http_requests", "Requests that were answered.", ["method", "route", "status"], registry=registry
        )
        self._latency = Histogram(
            "skerry_http_request_duration_seconds",
            "From the request to the beginning of its answer.",
            ["method", "route"],
            buckets=_LATENCY_S,
            registry=registry,
        )
        self._series: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._creates = Counter(
            "skerry_sandbox_creates", "Sandboxes that were to be made.", ["outcome"], registry=registry
        )
        self._create_s = Histogram(
            "skerry_sandbox_create_duration_seconds",
            "From a create to a running sandbox, templates that had to be built included.",
            buckets=_CREATE_S,
            registry=registry,
        )
        self._repairs = Counter(
            "skerry_reconcile_repairs", "What the reconciler found and mended.", ["rule", "outcome"], registry=registry
        )
        self._lag = Histogram(
            "skerry_event_loop_lag_seconds",
            "How much later than planned the event loop came to a task.",
            buckets=_LAG_S,
            registry=registry,
        )
        self._fleet = _Fleet(registry)

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        series = self._series.get((method, route, status))
        if series is None:  # finding them costs more than counting
            counter = self._requests.labels(method, route, f"{status // 100}xx")
            series = self._series[method, route, status] = counter, self._latency.labels(method, route)
        series[0].inc()
        series[1].observe(seconds)

    @asynccontextmanager
    async def create(self) -> AsyncGenerator[None]:
        """Around the making of a sandbox. An error is an outcome by the name of its class."""
        began = time.monotonic()
        try:
            yield
        except BaseException as error:
            self._creates.labels(type(error).__name__).inc()
            raise
        self._creates.labels("ready").inc()
        self._create_s.observe(time.monotonic() - began)

    def repair(self, rule: str, *, mended: bool) -> None:
        self._repairs.labels(rule, "mended" if mended else "failed").inc()

    async def watch_loop(self) -> None:
        """Measure the event loop's lag until cancelled."""
        while True:
            due = time.monotonic() + _LAG_EVERY_S
            await asyncio.sleep(_LAG_EVERY_S)
            self._lag.observe(max(0.0, time.monotonic() - due))

    def render(self, population: Population | None, pool: tuple[int, int] | None) -> bytes:
        """The exposition. None where the records or the node (its pool's size and free bytes) do not answer."""
        self._fleet.set(population, pool)
        return generate_latest(self._registry)


class _Fleet:
    """Gauges of what is: set anew each time that somebody looks."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._sandboxes = Gauge(
            "skerry_sandboxes", "Sandboxes on record.", ["state", "runtime", "template"], registry=registry
        )
        self._commands = Gauge("skerry_commands_running", "Commands that run.", registry=registry)
        self._up = Gauge("skerry_up", "Whether a part answers.", ["part"], registry=registry)
        self._pool = Gauge("skerry_pool_bytes", "The pool that holds all files.", ["kind"], registry=registry)

    def set(self, population: Population | None, pool: tuple[int, int] | None) -> None:
        self._up.labels("store").set(population is not None)
        self._up.labels("node").set(pool is not None)
        self._pool.clear()
        if pool is not None:
            self._pool.labels("total").set(pool[0])
            self._pool.labels("used").set(pool[0] - pool[1])
        self._sandboxes.clear()
        self._commands.set(float("nan") if population is None else population.running_commands)
        if population is not None:
            most = sorted(population.sandboxes.items(), key=lambda item: -item[1])
            named = list(dict.fromkeys(template for (_, _, template), _ in most))[:_TEMPLATES]
            for (state, runtime, template), count in most:
                shown = template if template in named else _OTHERS
                self._sandboxes.labels(state, runtime or "(none)", shown).inc(count)

"""A benchmark's result and how a set of samples becomes one. Knows nothing of what is measured."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    `value`, `p95` and `floor` are in `unit`. `target` is the limit that the issue or guide states, as text; `ok` is
    None where there is no target. `ratio` is value/floor for durations and sizes, and also for rates.
    """

    name: str
    runtime: str
    value: float
    unit: str
    p95: float | None
    floor: float | None
    ratio: float | None
    target: str
    ok: bool | None
    n: int

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def percentile(samples: Sequence[float], fraction: float) -> float:
    """The smallest sample that at least `fraction` of all samples do not exceed."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


def row(
    name: str,
    runtime: str,
    samples: Sequence[float],
    unit: str,
    *,
    floor: Sequence[float] = (),
    at_most: float | None = None,
    at_least: float | None = None,
    at_most_ratio: float | None = None,
) -> Row:
    """The median of `samples` against one target. For rates (`at_least`) p95 is the rate that 95 % of runs exceed."""
    value = statistics.median(samples)
    base = statistics.median(floor) if floor else None
    ratio = value / base if base else None
    checks: list[tuple[str, bool]] = []
    if at_most is not None:
        checks.append((f"≤ {at_most:g} {unit}", value <= at_most))
    if at_least is not None:
        checks.append((f"≥ {at_least:g} {unit}", value >= at_least))
    if at_most_ratio is not None and ratio is not None:
        checks.append((f"≤ {at_most_ratio:g} × floor", ratio <= at_most_ratio))
    return Row(
        name=name,
        runtime=runtime,
        value=round(value, 3),
        unit=unit,
        p95=round(percentile(samples, 0.05 if at_least is not None else 0.95), 3),
        floor=round(base, 3) if base is not None else None,
        ratio=round(ratio, 2) if ratio is not None else None,
        target=", ".join(text for text, _ in checks),
        ok=all(good for _, good in checks) if checks else None,
        n=len(samples),
    )

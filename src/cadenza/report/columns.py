"""The columns of a report: heading, figure and number format of each. Rounding happens here and nowhere before.

A new column is one entry of `point_columns`; the terminal and Markdown both show it.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from cadenza.analysis.point_summary import PointSummary
from cadenza.stats.distribution import Distribution

UNDEFINED = "–"
HIGH = ("p99", "p95", "p90")

# A column's heading: two lines, what, and which of it.
Heading = tuple[str, str]


class High(NamedTuple):
    """The high percentile that one section shows, by name: of TTFT, and of TPOT."""

    ttft: str
    tpot: str


class Column(NamedTuple):
    """One column. optional: left out where no point of the section has a value in it"""

    heading: Heading
    cell: Callable[[PointSummary], str]
    optional: bool = False


def point_columns(high: High) -> list[Column]:
    """The columns of the table of points, in order.

    A rate sets the throughput, so that there is no speedup and no efficiency; one point has nothing to drift from.
    """
    return [
        Column(("", "C"), label),
        Column(("", "tok/s"), lambda point: number(point.throughput_tok_per_s, 2)),
        Column(("speed-", "up"), lambda point: number(point.speedup, 2), optional=True),
        Column(("eff.", "%"), lambda point: number(100 * point.efficiency, 1), optional=True),
        Column(("TTFT ms", "mean"), lambda point: figure(ttft_headline(point), "mean", 1)),
        Column(("", "P50"), lambda point: figure(ttft_headline(point), "p50", 1)),
        Column(("", high.ttft.upper()), lambda point: figure(ttft_headline(point), high.ttft, 1)),
        Column(("TPOT ms", "mean"), lambda point: figure(point.tpot_ms, "mean", 2)),
        Column(("", "P50"), lambda point: figure(point.tpot_ms, "p50", 2)),
        Column(("", high.tpot.upper()), lambda point: figure(point.tpot_ms, high.tpot, 2)),
        Column(("drift", "%"), lambda point: number(point.drift_pct, 1, sign=True), optional=True),
        Column(("ok /", "sent"), lambda point: f"{point.requests.ok}/{point.requests.sent}"),
        Column(("", "verdict"), lambda point: point.verdict.value),
    ]


def interval_columns(high: High) -> list[Column]:
    """The columns of the table of intervals, in order."""
    ttft, tpot = high.ttft.upper(), high.tpot.upper()
    return [
        Column(("", "C"), label),
        Column(("", "n"), lambda point: str(ttft_headline(point).n)),
        Column(("n", "eff."), lambda point: number(ttft_headline(point).n_effective, 0)),
        Column(
            ("", "tok/s"), lambda point: between((point.throughput_interval.low, point.throughput_interval.high), 1)
        ),
        Column(("TTFT ms", "mean"), lambda point: between(ttft_headline(point).intervals.get("mean"), 1)),
        Column(("TTFT ms", ttft), lambda point: between(ttft_headline(point).intervals.get(high.ttft), 1)),
        Column(("TPOT ms", "mean"), lambda point: between(point.tpot_ms.intervals.get("mean"), 2)),
        Column(("TPOT ms", tpot), lambda point: between(point.tpot_ms.intervals.get(high.tpot), 2)),
        Column(("more for", "mean ±5 %"), lambda point: _further(point, ("mean", "mean"), 0.05)),
        Column(
            ("more for", f"{ttft if ttft == tpot else f'{ttft}/{tpot}'} ±10 %"),
            lambda point: _further(point, (high.ttft, high.tpot), 0.10),
        ),
    ]


def shown_columns(columns: Sequence[Column], points: Sequence[PointSummary]) -> list[Column]:
    """Without the optional columns in which no point has a value."""
    return [
        column for column in columns if not column.optional or any(column.cell(point) != UNDEFINED for point in points)
    ]


def label(point: PointSummary) -> str:
    """The point's load: `16`, `2/s`, or `16 @ 2/s`; with `#2` where it is measured for the second time."""
    parts = [] if point.concurrency is None else [str(point.concurrency)]
    if point.rate_per_s is not None:
        parts.append(f"{point.rate_per_s:g}/s")
    return " @ ".join(parts) + (f" #{point.repeat + 1}" if point.repeat else "")


def ttft_headline(point: PointSummary) -> Distribution:
    """User TTFT where the plan, not the answers, decides when requests are due."""
    return point.ttft_ms if point.load == "CLOSED" else point.user_ttft_ms


def headline_percentile(dists: Sequence[Distribution]) -> str:
    """**Headline percentile** of several samples: the highest of p99, p95 and p90 whose floor every sample reaches.

    Its name, as a field of `Distribution`. Samples without a value do not count. p90 where one sample is too small even
    for that, or where there is none.
    """
    held = [dist for dist in dists if dist.n]
    carried = [name for name in HIGH if held and all(name not in dist.undersampled for dist in held)]
    return carried[0] if carried else HIGH[-1]


def number(value: float, decimals: int, *, sign: bool = False) -> str:
    """The value rounded, or a dash where it is undefined."""
    if value != value:
        return UNDEFINED
    text = f"{value:{'+' if sign else ''}.{decimals}f}"
    return text.lstrip("+-") if float(text) == 0 else text


def figure(dist: Distribution, name: str, decimals: int) -> str:
    """One figure of a sample: ≥ before a lower bound, * after a percentile that its n does not support."""
    bound, star = "≥" if is_bound(dist, name) else "", "*" if is_unsupported(dist, name) else ""
    return f"{bound}{number(getattr(dist, name), decimals)}{star}"


def is_unsupported(dist: Distribution, name: str) -> bool:
    return dist.n + dist.censored > 0 and name in dist.undersampled


def is_bound(dist: Distribution, name: str) -> bool:
    return name in dist.bounds


def between(interval: tuple[float, float] | None, decimals: int) -> str:
    """Both bounds, or the one that the sample has."""
    low, high = interval or (float("nan"), float("nan"))
    if high != high:
        return UNDEFINED if low != low else f"≥ {number(low, decimals)}"
    return f"{'0' if low != low else number(low, decimals)}…{number(high, decimals)}"


def _further(point: PointSummary, names: tuple[str, str], relative: float) -> str:
    """More answers until these figures of TTFT and TPOT are known that well; 0: they are."""
    figures = zip((ttft_headline(point), point.tpot_ms), names, strict=True)
    needed = [more for dist, name in figures if dist.n and (more := dist.further(name, relative)) is not None]
    return f"{max(needed):,}" if needed else UNDEFINED

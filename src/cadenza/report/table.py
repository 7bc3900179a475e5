"""A summary as rows of text: what the terminal and Markdown share. Rounding happens here and nowhere before."""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from cadenza.record import printable
from cadenza.report.machine import Block, lay_out_machine
from cadenza.stats.distribution import Distribution
from cadenza.stats.relative import drift_class, spread_pct
from cadenza.stats.summary import PointSummary, Summary

UNDEFINED = "–"
# Two lines: what, and which of it.
HEADER = (
    ("", "C"),
    ("", "tok/s"),
    ("speed-", "up"),
    ("eff.", "%"),
    ("TTFT ms", "mean"),
    ("", "P50"),
    ("", "P99"),
    ("TPOT ms", "mean"),
    ("", "P50"),
    ("", "P99"),
    ("drift", "%"),
    ("ok /", "sent"),
    ("", "verdict"),
)


INTERVALS = "95 % intervals that respect autocorrelation"
INTERVAL_HEADER = (
    ("", "C"),
    ("", "n"),
    ("n", "eff."),
    ("", "tok/s"),
    ("TTFT ms", "mean"),
    ("TTFT ms", "P99"),
    ("TPOT ms", "mean"),
    ("TPOT ms", "P99"),
    ("more for", "mean ±5 %"),
    ("more for", "P99 ±10 %"),
)


class Section(NamedTuple):
    """One model's table, the sentences that belong under it, how sure its figures are, and what the machine did."""

    title: str
    rows: list[tuple[str, ...]]
    remarks: list[str]
    intervals: list[tuple[str, ...]]
    machine: Block | None


def lay_out(summary: Summary) -> list[Section]:
    """A section a model, in the order in which they were measured."""
    groups = groupby(summary.points, key=lambda point: point.model)
    return [_section(model, list(points), summary) for model, points in groups]


def title(summary: Summary) -> str:
    """What stands above everything; says so where no hardware was measured."""
    tool = f"{summary.tool.get('name', 'cadenza')} {summary.tool.get('version', '')}".strip()
    return f"SIMULATED by the embedded engine ({tool})" if summary.simulated else f"Measured with {tool}"


def footnotes(summary: Summary) -> list[str]:
    """What the signs in the tables mean, where they are used."""
    told = []
    if any(dist.undersampled for point in summary.points for dist in (point.ttft_ms, point.tpot_ms)):
        told.append("* below the sample floor for this percentile (P99: 662 answers): read it as the worst few seen")
    shares = [point.ceiling_share for point in summary.points if point.ceiling_share == point.ceiling_share]
    if shares:
        told.append(f"the client used {100 * max(shares):.0f} % of its calibrated ceiling at most")
    if any(point.load != "CLOSED" for point in summary.points):
        told.append("TTFT is user TTFT where requests arrive at a rate: it counts from when a request was due")
    return told


def label(point: PointSummary) -> str:
    """The point's load: `16`, `2/s`, or `16 @ 2/s`; with `#2` where it is measured for the second time."""
    parts = [] if point.concurrency is None else [str(point.concurrency)]
    if point.rate_per_s is not None:
        parts.append(f"{point.rate_per_s:g}/s")
    return " @ ".join(parts) + (f" #{point.repeat + 1}" if point.repeat else "")


def ttft_headline(point: PointSummary) -> Distribution:
    """User TTFT where the plan, not the answers, decides when requests are due."""
    return point.ttft_ms if point.load == "CLOSED" else point.user_ttft_ms


def _section(model: str, points: Sequence[PointSummary], summary: Summary) -> Section:
    return Section(
        printable(model, 80),
        [_row(point) for point in points],
        _drift(points) + _goodput(points) + _repeats(model, summary) + _remarks(points),
        [_interval_row(point) for point in points if point.ttft_ms.intervals],
        lay_out_machine(points, label),
    )


def _row(point: PointSummary) -> tuple[str, ...]:
    ttft, tpot = ttft_headline(point), point.tpot_ms
    return (
        label(point),
        number(point.throughput_tok_per_s, 2),
        number(point.speedup, 2),
        number(100 * point.efficiency, 1),
        number(ttft.mean, 1),
        number(ttft.p50, 1),
        _p99(ttft, 1),
        number(tpot.mean, 2),
        number(tpot.p50, 2),
        _p99(tpot, 2),
        number(point.drift_pct, 1, sign=True),
        f"{point.requests.ok}/{point.requests.sent}",
        point.verdict.value,
    )


def number(value: float, decimals: int, *, sign: bool = False) -> str:
    """The value rounded, or a dash where it is undefined."""
    if value != value:
        return UNDEFINED
    text = f"{value:{'+' if sign else ''}.{decimals}f}"
    return text.lstrip("+-") if float(text) == 0 else text


def _p99(dist: Distribution, decimals: int) -> str:
    return number(dist.p99, decimals) + ("*" if dist.n and "p99" in dist.undersampled else "")


def _drift(points: Sequence[PointSummary]) -> list[str]:
    """The cadence over the whole curve: the last point against the first, and the widest spread between any two."""
    curve = [point for point in points if point.concurrency and point.tpot_ms.n and not point.repeat]
    if len(curve) < 2 or len({point.rate_per_s for point in curve}) > 1:
        return []
    curve.sort(key=lambda point: point.concurrency or 0)
    if curve[-1].drift_class is None:  # the base has no cadence, so there is nothing to drift from
        return []
    first, last = curve[0], curve[-1]
    spread = spread_pct([point.tpot_ms.mean for point in curve])
    sentence = (
        f"Cadence: TPOT drifts {last.drift_ms:+.2f} ms ({last.drift_pct:.1f} %) from C = {first.concurrency} "
        f"to C = {last.concurrency}: {last.drift_class}."
    )
    if drift_class(spread) != last.drift_class or spread > abs(last.drift_pct) + 1:
        sentence += f" Over the whole curve it spans {spread:.1f} %."
    return [sentence]


def _interval_row(point: PointSummary) -> tuple[str, ...]:
    ttft, tpot = ttft_headline(point), point.tpot_ms
    throughput = point.throughput_interval
    return (
        label(point),
        str(ttft.n),
        number(ttft.n_effective, 0),
        _between((throughput.low, throughput.high), 1),
        _between(ttft.intervals["mean"], 1),
        _between(ttft.intervals["p99"], 1),
        _between(tpot.intervals.get("mean"), 2),
        _between(tpot.intervals.get("p99"), 2),
        _further(ttft, tpot, "mean", 0.05),
        _further(ttft, tpot, "p99", 0.10),
    )


def _between(interval: tuple[float, float] | None, decimals: int) -> str:
    """Both bounds, or the one that the sample has."""
    low, high = interval or (float("nan"), float("nan"))
    if high != high:
        return UNDEFINED if low != low else f"≥ {number(low, decimals)}"
    return f"{'0' if low != low else number(low, decimals)}…{number(high, decimals)}"


def _further(ttft: Distribution, tpot: Distribution, figure: str, relative: float) -> str:
    """More answers until both latencies are known that well; 0: they are."""
    needed = [more for dist in (ttft, tpot) if dist.n and (more := dist.further(figure, relative)) is not None]
    return f"{max(needed):,}" if needed else UNDEFINED


def _goodput(points: Sequence[PointSummary]) -> list[str]:
    """One sentence for the model: how many requests a second kept what was promised."""
    kept = [(label(point), point.goodput) for point in points if point.goodput is not None]
    if not kept:
        return []
    slo = kept[0][1].slo
    bounds = (("TTFT", slo.ttft_ms), ("TPOT", slo.tpot_ms), ("latency", slo.latency_ms))
    told = ", ".join(f"{name} ≤ {bound:g} ms" for name, bound in bounds if bound is not None)
    rates = "; ".join(f"{where}: {number(g.per_s, 3)}/s ({number(100 * g.share, 1)} %)" for where, g in kept)
    return [f"Goodput ({told or 'no bound'}), requests per second and share of all that ended, by C: {rates}."]


def _repeats(model: str, summary: Summary) -> list[str]:
    """A sentence a cell that was measured more than once."""
    told = []
    for cell in summary.repeats:
        if cell.model != model:
            continue
        speed, tpot = cell.throughput_tok_per_s, cell.tpot_mean_ms
        name = f"C = {cell.concurrency}" if cell.concurrency is not None else ""
        name += f" @ {cell.rate_per_s:g}/s" if cell.rate_per_s is not None else ""
        values = ", ".join(number(value, 1) for value in speed.values)
        told.append(
            f"{name.removeprefix(' @ ')}, {len(speed.values)} times: {values} tok/s, mean {number(speed.mean, 1)} "
            f"({_between((speed.low, speed.high), 1)}); last against first: throughput "
            f"{number(speed.drift_pct, 1, sign=True)} %, TPOT {number(tpot.drift_pct, 1, sign=True)} %."
        )
    return told


def _remarks(points: Sequence[PointSummary]) -> list[str]:
    """Reasons against a point, then notes; one line where several points share it."""
    where: dict[str, list[str]] = {}
    for point in points:
        for text in (*point.reasons, *point.notes):
            where.setdefault(printable(text, 400), []).append(label(point))
    return [f"C = {', '.join(labels)}: {text}" if labels != [""] else text for text, labels in where.items()]

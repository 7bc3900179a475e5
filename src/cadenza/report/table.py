"""A summary as sections of text: what the terminal and Markdown share. The columns are in `columns`."""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from cadenza.analysis.finding import Verdict
from cadenza.analysis.point_summary import PointSummary
from cadenza.analysis.summary import Summary
from cadenza.record import printable
from cadenza.report.columns import (
    HIGH,
    Heading,
    High,
    between,
    headline_percentile,
    interval_columns,
    is_bound,
    is_unsupported,
    label,
    number,
    point_columns,
    shown_columns,
    ttft_headline,
)
from cadenza.report.machine import Block, lay_out_machine, name_loads
from cadenza.stats.distribution import FLOORS, Distribution
from cadenza.stats.goodput import Goodput
from cadenza.stats.relative import drift_class, falling_note, spread_pct

INTERVALS = "95 % intervals that respect autocorrelation"


class Section(NamedTuple):
    """One model's table, the sentences that belong under it, how sure its figures are, and what the machine did.

    header, interval_header   a heading for each cell of a row of `rows` and of `intervals`
    """

    title: str
    header: tuple[Heading, ...]
    rows: list[tuple[str, ...]]
    remarks: list[str]
    interval_header: tuple[Heading, ...]
    intervals: list[tuple[str, ...]]
    machine: Block | None


def lay_out(summary: Summary) -> list[Section]:
    """A section a model, in the order in which they were measured."""
    return [_section(model, points, summary) for model, points in _groups(summary)]


def nothing_measured(summary: Summary) -> str | None:
    """The sentence that stands for a report where no measured request was sent at all; None: there was one."""
    if not summary.points:
        return "No point was begun: there is nothing to report."
    if any(point.requests.sent for point in summary.points):
        return None
    return "No measured request was sent: there are no figures to report."


def title(summary: Summary) -> str:
    """What stands above everything; says so where no hardware was measured."""
    tool = f"{summary.tool.get('name', 'cadenza')} {summary.tool.get('version', '')}".strip()
    return f"SIMULATED by the embedded engine ({tool})" if summary.simulated else f"Measured with {tool}"


def footnotes(summary: Summary) -> list[str]:
    """What the signs in the tables mean, where they are used."""
    lines = []
    columns = [column for _, points in _groups(summary) for column in _high_columns(points)]
    starred = {name for name, dists in columns if any(is_unsupported(dist, name) for dist in dists)}
    lines += [
        f"* {name.upper()} of fewer than {FLOORS[name]} requests: not statistically supported, close to the maximum"
        for name in HIGH
        if name in starred
    ]
    shown = [(dist, ("mean", "p50", name)) for name, dists in columns for dist in dists]
    if any(is_bound(dist, figure) for dist, figures in shown for figure in figures):
        lines.append("≥ a lower bound: requests that never ended could move this figure up")
    shares = [point.ceiling_share for point in summary.points if point.ceiling_share == point.ceiling_share]
    if shares:
        lines.append(f"the client used {100 * max(shares):.0f} % of its calibrated ceiling at most")
    if any(point.load != "CLOSED" for point in summary.points):
        lines.append("TTFT is user TTFT where requests arrive at a rate: it counts from when a request was due")
    return lines


def _groups(summary: Summary) -> list[tuple[str, list[PointSummary]]]:
    return [(model, list(points)) for model, points in groupby(summary.points, key=lambda point: point.model)]


def _high(points: Sequence[PointSummary]) -> High:
    """By the points whose figures may be used: an INVALID one with a few answers would take P99 from all the others."""
    usable = [point for point in points if point.verdict is not Verdict.INVALID]
    chosen = usable if any(point.ttft_ms.n for point in usable) else points
    return High(
        headline_percentile([ttft_headline(point) for point in chosen]),
        headline_percentile([point.tpot_ms for point in chosen]),
    )


def _high_columns(points: Sequence[PointSummary]) -> list[tuple[str, list[Distribution]]]:
    """The two columns of high percentiles: the name, and whose it is in each row."""
    high = _high(points)
    return [(high.ttft, [ttft_headline(point) for point in points]), (high.tpot, [point.tpot_ms for point in points])]


def _section(model: str, points: Sequence[PointSummary], summary: Summary) -> Section:
    high = _high(points)
    columns = shown_columns(point_columns(high), points)
    sure = interval_columns(high)
    cadence = _drift(points)
    return Section(
        title=printable(model, 80),
        header=tuple(column.heading for column in columns),
        rows=[tuple(column.cell(point) for column in columns) for point in points],
        remarks=cadence + _goodput(points) + _repeats(model, summary) + _remarks(points, cadence),
        interval_header=tuple(column.heading for column in sure),
        intervals=[tuple(column.cell(point) for column in sure) for point in points if point.ttft_ms.intervals],
        machine=lay_out_machine(points, label),
    )


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
        f"to C = {last.concurrency}: "
    )
    falling = falling_note(last.drift_pct, first.concurrency or 0)
    # The class is of the size: a fall is not to be read as a degradation, and even less as a merit.
    sentence += f"{last.drift_class}." if falling is None else f"{last.drift_class} in size. {falling}."
    if drift_class(spread) != last.drift_class or spread > abs(last.drift_pct) + 1:
        sentence += f" Over the whole curve it spans {spread:.1f} %."
    return [sentence]


def _goodput(points: Sequence[PointSummary]) -> list[str]:
    """One sentence for the model: how many requests a second, and which share of all, met the bounds."""
    measured = [(point, point.goodput) for point in points if point.goodput is not None]
    if not measured:
        return []
    first, slo = measured[0][0], measured[0][1].slo
    user = "" if first.load == "CLOSED" else "user "
    bounds = ((f"{user}TTFT", slo.ttft_ms), ("TPOT", slo.tpot_ms), (f"{user}latency", slo.latency_ms))
    promised = ", ".join(f"{name} ≤ {bound:g} ms" for name, bound in bounds if bound is not None) or "no bound"
    if slo.attainment is not None:
        promised += f"; attainment {100 * slo.attainment:g} %"
    return [f"Goodput ({promised}): {'; '.join(_kept(point, found) for point, found in measured)}."]


def _kept(point: PointSummary, found: Goodput) -> str:
    where = name_loads([label(point)])
    if not found.of + found.undecided:
        return f"{where}: no request to judge"
    low, high = (number(100 * share, 1) for share in found.share_range)
    counts = f"{found.good} of {found.of}" + (f", {found.undecided} undecided" if found.undecided else "")
    verdict = {None: "", True: ", attained", False: ", not attained"}[found.met]
    if found.met is None and found.slo.attainment is not None:
        verdict = ", attainment undecided"
    return (
        f"{where}: {number(found.per_s, 3)}/s, {low if low == high else f'{low} to {high}'} % met ({counts}){verdict}"
    )


def _repeats(model: str, summary: Summary) -> list[str]:
    """A sentence a cell that was measured more than once."""
    sentences = []
    for cell in summary.repeats:
        if cell.model != model:
            continue
        speed, tpot = cell.throughput_tok_per_s, cell.tpot_mean_ms
        name = f"C = {cell.concurrency}" if cell.concurrency is not None else ""
        name += f" @ {cell.rate_per_s:g}/s" if cell.rate_per_s is not None else ""
        values = ", ".join(number(value, 1) for value in speed.values)
        sentences.append(
            f"{name.removeprefix(' @ ')}, {len(speed.values)} times: {values} tok/s, mean {number(speed.mean, 1)} "
            f"({between((speed.low, speed.high), 1)}); last against first: throughput "
            f"{number(speed.drift_pct, 1, sign=True)} %, TPOT {number(tpot.drift_pct, 1, sign=True)} %."
        )
    return sentences


def _remarks(points: Sequence[PointSummary], written: Sequence[str]) -> list[str]:
    """Reasons against a point, then notes; one line where several points share it. Not what is `written` already."""
    where: dict[str, list[str]] = {}
    for point in points:
        for text in (*point.reasons, *point.notes):
            if not any(text in sentence for sentence in written):
                where.setdefault(printable(text, 400), []).append(label(point))
    return [f"{name_loads(labels)}: {text}" if labels != [""] else text for text, labels in where.items()]

"""All numbers of a run as one value, `summary.json`: a pure function of the points and their records."""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from cadenza.analysis.bottleneck import Bottleneck, find_bottleneck, gather, growth_of
from cadenza.analysis.checks import examine
from cadenza.analysis.client_checks import ceiling_share
from cadenza.analysis.finding import Check, Finding, Verdict, judge, unjudged
from cadenza.analysis.machine import Stretch, describe_machine
from cadenza.analysis.notes import list_notes
from cadenza.analysis.point_summary import NAN, InFlight, PointSummary, SummaryWindow
from cadenza.analysis.reconciliation import Reconciliation, check_server, reconcile
from cadenza.analysis.undefined import explain_undefined
from cadenza.clock import NS_PER_MS
from cadenza.readings import ReadingTable
from cadenza.record import SCHEMA, LoadLabel, Point, Record, TokenSource
from cadenza.spec import Slo
from cadenza.stats import latency, relative
from cadenza.stats.columns import Columns, Floats
from cadenza.stats.concurrency import mean_in_flight, peak_in_flight
from cadenza.stats.distribution import Distribution
from cadenza.stats.goodput import goodput
from cadenza.stats.intervals import Interval, rate_interval
from cadenza.stats.population import follow_itl, follow_latency, follow_tpot, follow_ttft
from cadenza.stats.repeats import Agreement, compare
from cadenza.stats.requests import count_requests, list_failures
from cadenza.stats.rounds import Rounds, rounds_of
from cadenza.stats.stability import assess_stability
from cadenza.stats.throughput import rate_per_s, requests_per_s, throughput_tok_per_s, tokens_per_event
from cadenza.stats.window import Window, load_window


class Repeats(msgspec.Struct, kw_only=True):
    """One cell that was measured several times: how far its figures agree, and where they went."""

    model: str
    concurrency: int | None
    rate_per_s: float | None
    points: list[int]
    throughput_tok_per_s: Agreement
    ttft_mean_ms: Agreement
    tpot_mean_ms: Agreement


class Summary(msgspec.Struct, kw_only=True):
    """A run. `simulated`: the embedded engine answered, and no hardware was measured."""

    schema: int = SCHEMA
    simulated: bool
    tool: dict[str, str]
    points: list[PointSummary]
    repeats: list[Repeats] = []


def summarise(
    points: Sequence[Point],
    records: Iterable[Record],
    *,
    simulated: bool,
    tool: dict[str, str],
    slo: Slo | None = None,
    telemetry: ReadingTable | None = None,
) -> Summary:
    """The summary of all points that have begun, from the records of all of them in any order."""
    by_point: dict[int, list[Record]] = {}
    for record in records:
        by_point.setdefault(record.point, []).append(record)
    begun = [point for point in points if point.start_ns is not None]
    done = [summarise_point(point, by_point.get(point.index, []), slo, telemetry) for point in begun]
    return relate(done, simulated=simulated, tool=tool)


def summarise_point(
    point: Point, records: Sequence[Record], slo: Slo | None = None, telemetry: ReadingTable | None = None
) -> PointSummary:
    """One point by itself; what compares it with others is added by `relate`."""
    # Records come in the order in which requests ended, which a rebuilt run keeps; the plan's order is the stable one.
    records = sorted(records, key=lambda record: record.index)
    columns = Columns.of(records)
    window = load_window(point, columns)
    requests, failures = count_requests(point, records), list_failures(records)
    server = None if telemetry is None else reconcile(telemetry, point.index, point.model, records)
    checked = examine(point, columns, window, requests, failures) + check_server(server)
    verdict, reasons = judge(checked)
    sent = columns.measured & np.isfinite(columns.sent_ms)
    rounds, per_event = rounds_of(point, columns, window), tokens_per_event(columns)
    notes = list_notes(point, records, columns, per_event)
    offered, achieved = rate_per_s(columns.intended_ms[sent]), rate_per_s(columns.sent_ms[sent])
    throughput, latencies = throughput_tok_per_s(columns, window), _latencies(columns, rounds)
    described = PointSummary(
        index=point.index,
        model=point.model,
        repeat=point.repeat,
        concurrency=point.concurrency,
        rate_per_s=point.rate_per_s,
        load=point.load,
        status=point.status,
        verdict=verdict,
        reasons=reasons,
        notes=[note.message for note in notes],
        checks=[Check(one.name, one.verdict, one.message) for one in checked],
        findings=[*checked, *notes],
        requests=requests,
        failures=failures,
        duration_s=_duration_s(columns),
        window_s=window.length_s,
        window=SummaryWindow(window.kind, window.rule, window.kind == "steady" and _is_steady(checked)),
        output_tokens=int(columns.output_tok[columns.measured & columns.ok].sum()),
        token_source=_token_source(columns),
        tokens_per_event=per_event,
        throughput_tok_per_s=throughput,
        throughput_interval=_throughput_interval(columns, window, rounds),
        requests_per_s=requests_per_s(columns, window),
        offered_per_s=offered,
        achieved_per_s=achieved,
        in_flight=InFlight(peak_in_flight(columns), mean_in_flight(columns, window.start_ms, window.end_ms)),
        ttft_ms=latencies["ttft_ms"],
        user_ttft_ms=latencies["user_ttft_ms"],
        tpot_ms=latencies["tpot_ms"],
        itl_ms=latencies["itl_ms"],
        latency_ms=latencies["latency_ms"],
        user_latency_ms=latencies["user_latency_ms"],
        dispatch_lag_ms=Distribution.of(latency.dispatch_lag_ms(columns)[sent]),
        read_lag_ms=Distribution.of(latency.read_lag_ms(columns)[sent]),
        connect_ms=Distribution.of(latency.connect_ms(columns)[sent]),
        ceiling_share=ceiling_share(point, columns),
        goodput=None if slo is None else goodput(point, columns, window, slo),
        stability=assess_stability(point, columns),
    )
    if telemetry is not None:
        described = _add_machine(described, point, telemetry, _stretch(window, columns), server)
    return msgspec.structs.replace(described, undefined=explain_undefined(described))


def _latencies(columns: Columns, rounds: Rounds) -> dict[str, Distribution]:
    """Each figure of the population, with intervals that know how many requests a round has."""
    figures = {
        "ttft_ms": follow_ttft(columns, user=False),
        "user_ttft_ms": follow_ttft(columns, user=True),
        "latency_ms": follow_latency(columns, user=False),
        "user_latency_ms": follow_latency(columns, user=True),
        "tpot_ms": follow_tpot(columns),
    }
    found = {
        name: _distribution(followed.values, followed.lost, rounds.size, rounds) for name, followed in figures.items()
    }
    gaps, open_gaps = follow_itl(columns)
    per_request = max(1, round(len(gaps) / max(1, found["latency_ms"].n)))
    return found | {"itl_ms": _distribution(gaps, open_gaps, rounds.size * per_request, rounds)}


def _distribution(values: Floats, lost: Floats, size: int, rounds: Rounds) -> Distribution:
    return Distribution.of(values, in_time_order=True, round_size=size, phases=rounds.phases, censored=lost)


def _throughput_interval(columns: Columns, window: Window, rounds: Rounds) -> Interval:
    """With slices of two rounds or more."""
    sent = int((columns.measured & np.isfinite(columns.sent_ms)).sum())
    slice_ms = 2 * rounds.size * 1000 * window.length_s / sent if sent else 0.0
    return rate_interval(columns.event_ms, columns.event_tok, window.start_ms, window.end_ms, min_slice_ms=slice_ms)


def _is_steady(findings: Sequence[Finding]) -> bool:
    return all(one.verdict in (None, Verdict.VALID) for one in findings if one.code == "steady-state")


def _add_machine(
    summary: PointSummary, point: Point, telemetry: ReadingTable, window: Stretch, server: Reconciliation | None
) -> PointSummary:
    """What the machine did meanwhile, and what by that held the point back."""
    whole = Stretch(point.start_ns or 0, np.iinfo(np.int64).max if point.end_ns is None else point.end_ns)
    machine = describe_machine(telemetry, point, whole, window, summary.throughput_tok_per_s)
    limited = next((check.message for check in summary.checks if check.verdict is Verdict.CLIENT_LIMITED), None)
    bottleneck, evidence = find_bottleneck(gather(machine, server, limited))
    return msgspec.structs.replace(
        summary,
        machine=machine,
        reconciliation=msgspec.UNSET if server is None else server,
        bottleneck=bottleneck,
        findings=[*summary.findings, *evidence],
    )


def _stretch(window: Window, columns: Columns) -> Stretch:
    """The window on the run's clock; one that has no ends holds nothing."""
    if not np.isfinite(window.end_ms - window.start_ms):
        return Stretch(0, -1)
    start, end = (columns.origin_ns + round(edge * NS_PER_MS) for edge in (window.start_ms, window.end_ms))
    return Stretch(start, end)


def relate(points: Sequence[PointSummary], *, simulated: bool, tool: dict[str, str]) -> Summary:
    """Add scaling and drift against the smallest concurrency of the same model at the same rate."""
    related = [_relate_point(point, _base(point, points)) for point in points]
    return Summary(simulated=simulated, tool=tool, points=related, repeats=_compare_repeats(related))


def _compare_repeats(points: Sequence[PointSummary]) -> list[Repeats]:
    """Of the cells that were measured more than once, in the order in which they were first measured."""
    cells: dict[tuple[str, int | None, float | None], list[PointSummary]] = {}
    for point in points:
        cells.setdefault((point.model, point.concurrency, point.rate_per_s), []).append(point)
    return [
        Repeats(
            model=model,
            concurrency=concurrency,
            rate_per_s=rate_per_s,
            points=[point.index for point in again],
            throughput_tok_per_s=compare([point.throughput_tok_per_s for point in again]),
            ttft_mean_ms=compare([point.ttft_ms.mean for point in again]),
            tpot_mean_ms=compare([point.tpot_ms.mean for point in again]),
        )
        for (model, concurrency, rate_per_s), again in cells.items()
        if len(again) > 1
    ]


def to_json(summary: Summary) -> bytes:
    """Strict JSON, the same bytes for the same summary: what is undefined is null, never NaN."""
    return msgspec.json.format(msgspec.json.encode(summary, enc_hook=float), indent=1) + b"\n"  # numpy's scalars


def _base(point: PointSummary, points: Sequence[PointSummary]) -> PointSummary | None:
    own = (point.model, point.rate_per_s, point.repeat)
    curve = [p for p in points if (p.model, p.rate_per_s, p.repeat) == own and p.concurrency]
    return min(curve, key=lambda p: p.concurrency or 0, default=None)


def _relate_point(point: PointSummary, base: PointSummary | None) -> PointSummary:
    related = _compare_with(point, base)
    if point.load is LoadLabel.CLOSED:
        return related
    undefined = related.undefined | dict.fromkeys(("speedup", "efficiency"), "the rate sets the throughput")
    return msgspec.structs.replace(related, speedup=NAN, efficiency=NAN, undefined=undefined)


def _compare_with(point: PointSummary, base: PointSummary | None) -> PointSummary:
    if base is None or point.concurrency is None or base.concurrency is None:
        return _unrelated(point, "an open loop has no concurrency to compare by")
    if base.verdict is Verdict.INVALID:
        return _unrelated(point, f"its base (C = {base.concurrency}) is INVALID")
    # Between two figures of which one is only a lower bound there is no difference to speak of.
    tpot, base_tpot = (NAN if "mean" in one.tpot_ms.bounds else one.tpot_ms.mean for one in (point, base))
    pct = relative.drift_pct(tpot, base_tpot)
    own, first = point.throughput_tok_per_s, base.throughput_tok_per_s
    falling = relative.falling_note(pct, base.concurrency)
    fresh = [] if falling is None or falling in point.notes else [unjudged("tpot-falls", falling, drift_pct=pct)]
    related = msgspec.structs.replace(
        point,
        notes=[*point.notes, *(note.message for note in fresh)],
        findings=[*point.findings, *fresh],
        speedup=relative.speedup(own, first),
        efficiency=relative.efficiency(own, first, point.concurrency, base.concurrency),
        drift_ms=relative.drift_ms(tpot, base_tpot),
        drift_pct=pct,
        drift_class=relative.drift_class(pct),
    )
    bottleneck = related.bottleneck
    if isinstance(bottleneck, Bottleneck) and (grown := growth_of(bottleneck, pct, base.concurrency)) is not None:
        bottleneck = Bottleneck(bottleneck.kind, [*bottleneck.evidence, grown.message])
        related = msgspec.structs.replace(related, bottleneck=bottleneck, findings=[*related.findings, grown])
    missing = [name for name in ("speedup", "efficiency", "drift_ms", "drift_pct") if np.isnan(getattr(related, name))]
    missing += ["drift_class"] if related.drift_class is None else []
    why = f"this point or its base (C = {base.concurrency}) has no throughput, or no TPOT that is known"
    return msgspec.structs.replace(related, undefined={**point.undefined, **dict.fromkeys(missing, why)})


def _unrelated(point: PointSummary, why: str) -> PointSummary:
    undefined = dict.fromkeys(("speedup", "efficiency", "drift_ms", "drift_pct", "drift_class"), why)
    return msgspec.structs.replace(point, undefined={**point.undefined, **undefined})


def _duration_s(columns: Columns) -> float:
    """From the first dispatch of any phase to the last end."""
    sent, done = columns.sent_ms[np.isfinite(columns.sent_ms)], columns.done_ms[np.isfinite(columns.done_ms)]
    return float(done.max() - sent.min()) / 1000 if len(sent) and len(done) else 0.0


def _token_source(columns: Columns) -> str | None:
    counted = columns.server_counted[columns.measured & columns.ok]
    if not len(counted):
        return None
    if counted.all():
        return TokenSource.USAGE.value
    return "mixed" if counted.any() else TokenSource.EVENTS.value

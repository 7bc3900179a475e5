"""All numbers of a run as one value, `summary.json`: a pure function of the points and their records."""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from cadenza.clock import NS_PER_MS
from cadenza.record import SCHEMA, LoadLabel, Outcome, Point, PointStatus, Record, TokenSource
from cadenza.spec import Slo
from cadenza.stats import latency, relative
from cadenza.stats.bottleneck import Bottleneck, add_growth, find_bottleneck, gather
from cadenza.stats.checks import examine
from cadenza.stats.client_checks import ceiling_share
from cadenza.stats.columns import Bools, Columns
from cadenza.stats.concurrency import mean_in_flight, peak_in_flight
from cadenza.stats.distribution import Distribution
from cadenza.stats.goodput import Goodput, goodput
from cadenza.stats.intervals import Interval, rate_interval
from cadenza.stats.machine import Machine, Stretch, describe_machine
from cadenza.stats.reconcile import Reconciliation, check_server, reconcile
from cadenza.stats.repeats import Agreement, compare
from cadenza.stats.requests import Failure, Requests, count_requests, list_failures
from cadenza.stats.streaming import notes_streaming
from cadenza.stats.throughput import rate_per_s, requests_per_s, throughput_tok_per_s, tokens_per_event
from cadenza.stats.tracks import Telemetry
from cadenza.stats.verdict import Check, Verdict, judge
from cadenza.stats.window import Window, ended_inside, steady_window, whole_window

NAN = float("nan")
# A capped loop that sends less than this share of what is due has a queue that does not come back down.
KEEPS_UP = 0.95


class WindowTold(msgspec.Struct, frozen=True):
    """Which window the point's figures are of; `steady`: nothing in it moves any more."""

    kind: str
    rule: str
    steady: bool
    cut: int


class InFlight(msgspec.Struct, frozen=True):
    """Requests in flight: the peak of the whole point, the mean in the window."""

    peak: int
    mean: float


class WholeRun(msgspec.Struct, frozen=True, kw_only=True):
    """The same figures over the whole measured run, ramp and drain included."""

    window_s: float
    throughput_tok_per_s: float
    requests_per_s: float
    ttft_ms: Distribution
    tpot_ms: Distribution


class PointSummary(msgspec.Struct, kw_only=True):
    """One point. Distributions are of measured `ok` requests that ended in the window; null: see `undefined`.

    machine, reconciliation, bottleneck   where the machine was watched; the second where the engine gave its page
    """

    index: int
    model: str
    repeat: int
    concurrency: int | None
    rate_per_s: float | None
    load: LoadLabel
    status: PointStatus
    verdict: Verdict
    reasons: list[str]
    notes: list[str]
    checks: list[Check]
    requests: Requests
    failures: list[Failure]
    duration_s: float
    window_s: float
    window: WindowTold
    output_tokens: int
    token_source: str | None
    tokens_per_event: float
    throughput_tok_per_s: float
    throughput_interval: Interval
    requests_per_s: float
    offered_per_s: float
    achieved_per_s: float
    speedup: float = NAN
    efficiency: float = NAN
    drift_ms: float = NAN
    drift_pct: float = NAN
    drift_class: str | None = None
    in_flight: InFlight
    ttft_ms: Distribution
    user_ttft_ms: Distribution
    tpot_ms: Distribution
    itl_ms: Distribution
    latency_ms: Distribution
    dispatch_lag_ms: Distribution
    read_lag_ms: Distribution
    connect_ms: Distribution
    ceiling_share: float
    goodput: Goodput | None
    whole_run: WholeRun
    machine: Machine | msgspec.UnsetType = msgspec.UNSET
    reconciliation: Reconciliation | msgspec.UnsetType = msgspec.UNSET
    bottleneck: Bottleneck | msgspec.UnsetType = msgspec.UNSET
    undefined: dict[str, str] = {}


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
    telemetry: Telemetry | None = None,
) -> Summary:
    """The summary of all points that have begun, from the records of all of them in any order."""
    by_point: dict[int, list[Record]] = {}
    for record in records:
        by_point.setdefault(record.point, []).append(record)
    begun = [point for point in points if point.start_ns is not None]
    done = [summarise_point(point, by_point.get(point.index, []), slo, telemetry) for point in begun]
    return relate(done, simulated=simulated, tool=tool)


def summarise_point(
    point: Point, records: Sequence[Record], slo: Slo | None = None, telemetry: Telemetry | None = None
) -> PointSummary:
    """One point by itself; what compares it with others is added by `relate`."""
    # Records come in the order in which requests ended, which a rebuilt run keeps; the plan's order is the stable one.
    records = sorted(records, key=lambda record: record.index)
    columns = Columns.of(records)
    window, whole = steady_window(point, columns), whole_window(columns)
    requests, failures = count_requests(point, records), list_failures(records)
    server = None if telemetry is None else reconcile(telemetry, point.index, point.model, records)
    checks = examine(point, columns, window, requests, failures) + check_server(server)
    verdict, reasons = judge(checks)
    inside = ended_inside(columns, window) & columns.ok
    in_order = np.flatnonzero(inside)[np.argsort(columns.sent_ms[inside], kind="stable")]
    sent = columns.measured & np.isfinite(columns.sent_ms)
    ttft = latency.ttft_ms(columns)
    tpot = latency.tpot_ms(columns)
    per_event = tokens_per_event(columns)
    offered, achieved = rate_per_s(columns.intended_ms[sent]), rate_per_s(columns.sent_ms[sent])
    point_summary = PointSummary(
        index=point.index,
        model=point.model,
        repeat=point.repeat,
        concurrency=point.concurrency,
        rate_per_s=point.rate_per_s,
        load=point.load,
        status=point.status,
        verdict=verdict,
        reasons=reasons,
        notes=[*_note_rate(point, offered, achieved), *_note_wait(point, columns, inside), *_notes(records, columns)],
        checks=checks,
        requests=requests,
        failures=failures,
        duration_s=_duration_s(columns),
        window_s=window.length_s,
        window=WindowTold(window.kind, window.rule, window.kind == "steady" and not window.changes, window.cut),
        output_tokens=int(columns.output_tok[columns.measured & columns.ok].sum()),
        token_source=_token_source(columns),
        tokens_per_event=per_event,
        throughput_tok_per_s=throughput_tok_per_s(columns, window),
        throughput_interval=rate_interval(columns.event_ms, columns.event_tok, window.start_ms, window.end_ms),
        requests_per_s=requests_per_s(columns, window),
        offered_per_s=offered,
        achieved_per_s=achieved,
        in_flight=InFlight(peak_in_flight(columns), mean_in_flight(columns, window.start_ms, window.end_ms)),
        ttft_ms=Distribution.of(ttft[in_order], in_time_order=True),
        user_ttft_ms=Distribution.of(latency.user_ttft_ms(columns)[in_order], in_time_order=True),
        tpot_ms=Distribution.of(tpot[in_order], in_time_order=True),
        itl_ms=Distribution.of(latency.itl_ms(columns, inside, in_time_order=True), in_time_order=True),
        latency_ms=Distribution.of(latency.latency_ms(columns)[in_order], in_time_order=True),
        dispatch_lag_ms=Distribution.of(latency.dispatch_lag_ms(columns)[sent]),
        read_lag_ms=Distribution.of(latency.read_lag_ms(columns)[sent]),
        connect_ms=Distribution.of(latency.connect_ms(columns)[sent]),
        ceiling_share=ceiling_share(point, columns),
        goodput=None if slo is None else goodput(point, columns, window, slo),
        whole_run=_whole_run(columns, whole),
    )
    if telemetry is not None:
        point_summary = _add_machine(point_summary, point, telemetry, _stretch(window, columns), server)
    return msgspec.structs.replace(point_summary, undefined=_undefined(point_summary))


def _add_machine(
    summary: PointSummary, point: Point, telemetry: Telemetry, window: Stretch, server: Reconciliation | None
) -> PointSummary:
    """What the machine did meanwhile, and what by that held the point back."""
    whole = Stretch(point.start_ns or 0, np.iinfo(np.int64).max if point.end_ns is None else point.end_ns)
    machine = describe_machine(telemetry, point, whole, window, summary.throughput_tok_per_s)
    limited = next((check.told for check in summary.checks if check.verdict is Verdict.CLIENT_LIMITED), None)
    return msgspec.structs.replace(
        summary,
        machine=machine,
        reconciliation=msgspec.UNSET if server is None else server,
        bottleneck=find_bottleneck(gather(machine, server, limited)),
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
    return msgspec.json.format(msgspec.json.encode(summary), indent=1) + b"\n"


def _base(point: PointSummary, points: Sequence[PointSummary]) -> PointSummary | None:
    own = (point.model, point.rate_per_s, point.repeat)
    curve = [p for p in points if (p.model, p.rate_per_s, p.repeat) == own and p.concurrency]
    return min(curve, key=lambda p: p.concurrency or 0, default=None)


def _relate_point(point: PointSummary, base: PointSummary | None) -> PointSummary:
    if base is None or point.concurrency is None or base.concurrency is None:
        return _unrelated(point, "an open loop has no concurrency to compare by")
    if base.verdict is Verdict.INVALID:
        return _unrelated(point, f"its base (C = {base.concurrency}) is INVALID")
    pct = relative.drift_pct(point.tpot_ms.mean, base.tpot_ms.mean)
    own, first = point.throughput_tok_per_s, base.throughput_tok_per_s
    related = msgspec.structs.replace(
        point,
        speedup=relative.speedup(own, first),
        efficiency=relative.efficiency(own, first, point.concurrency, base.concurrency),
        drift_ms=relative.drift_ms(point.tpot_ms.mean, base.tpot_ms.mean),
        drift_pct=pct,
        drift_class=relative.drift_class(pct),
    )
    if isinstance(related.bottleneck, Bottleneck):
        related = msgspec.structs.replace(related, bottleneck=add_growth(related.bottleneck, pct, base.concurrency))
    missing = [name for name in ("speedup", "efficiency", "drift_ms", "drift_pct") if np.isnan(getattr(related, name))]
    missing += ["drift_class"] if related.drift_class is None else []
    why = f"this point or its base (C = {base.concurrency}) has no throughput or no TPOT"
    return msgspec.structs.replace(related, undefined={**point.undefined, **dict.fromkeys(missing, why)})


def _unrelated(point: PointSummary, why: str) -> PointSummary:
    undefined = dict.fromkeys(("speedup", "efficiency", "drift_ms", "drift_pct", "drift_class"), why)
    return msgspec.structs.replace(point, undefined={**point.undefined, **undefined})


def _whole_run(columns: Columns, whole: Window) -> WholeRun:
    mine = columns.measured & columns.ok
    return WholeRun(
        window_s=whole.length_s,
        throughput_tok_per_s=throughput_tok_per_s(columns, whole),
        requests_per_s=requests_per_s(columns, whole),
        ttft_ms=Distribution.of(latency.ttft_ms(columns)[mine]),
        tpot_ms=Distribution.of(latency.tpot_ms(columns)[mine]),
    )


def _duration_s(columns: Columns) -> float:
    """From the first dispatch of any phase to the last end."""
    sent, done = columns.sent_ms[np.isfinite(columns.sent_ms)], columns.done_ms[np.isfinite(columns.done_ms)]
    return float(done.max() - sent.min()) / 1000 if len(sent) and len(done) else 0.0


def _token_source(columns: Columns) -> str | None:
    told = columns.told[columns.measured & columns.ok]
    if not len(told):
        return None
    if told.all():
        return TokenSource.USAGE.value
    return "mixed" if told.any() else TokenSource.EVENTS.value


def _note_rate(point: Point, offered: float, achieved: float) -> list[str]:
    """A cap that cannot keep up makes a queue at the client, which grows for as long as one measures."""
    if point.load is not LoadLabel.CAPPED or not achieved < KEEPS_UP * offered:
        return []
    told = f"requests left at {achieved:.3g}/s where {offered:.3g}/s were due"
    return [f"{told}: over capacity at this cap, so user TTFT grows with the length of the run"]


def _note_wait(point: Point, columns: Columns, inside: Bools) -> list[str]:
    """What a client that counts from the dispatch would have said, where that is not the same."""
    if point.load is LoadLabel.CLOSED or not inside.any():
        return []
    user, naive = latency.user_ttft_ms(columns)[inside], latency.ttft_ms(columns)[inside]
    user, naive = (kept[np.isfinite(kept)] for kept in (user, naive))
    if not len(naive) or user.mean() - naive.mean() <= max(1.0, 0.01 * naive.mean()):
        return []
    pairs = [("mean", user.mean(), naive.mean())]
    pairs += [(f"P{q}", np.percentile(user, q), np.percentile(naive, q)) for q in (50, 95)]
    told = ", ".join(f"{name} {felt:.1f} and {sent:.1f} ms" for name, felt, sent in pairs)
    return [f"user TTFT and TTFT from dispatch differ by the wait to be sent: {told}"]


def _notes(records: Sequence[Record], columns: Columns) -> list[str]:
    """Worth knowing, and no reason to doubt."""
    notes = notes_streaming(columns)
    if (per_event := tokens_per_event(columns)) > 1.005:
        notes.append(f"{per_event:.2f} tokens an event: ITL is per event, not per token")
    remarks: dict[str, int] = {}
    for record in records:
        if record.outcome is Outcome.OK and record.detail:
            remarks[record.detail] = remarks.get(record.detail, 0) + 1
    notes += [f"{n} answers: {remark}" for remark, n in sorted(remarks.items(), key=lambda item: -item[1])[:3]]
    return notes


def _undefined(point: PointSummary) -> dict[str, str]:
    """Why a figure is null."""
    reasons = {}
    for name in ("offered_per_s", "achieved_per_s"):
        if np.isnan(getattr(point, name)):
            reasons[name] = "fewer than two requests were sent at different times"
    if np.isnan(point.throughput_tok_per_s):
        reasons["throughput_tok_per_s"] = reasons["requests_per_s"] = "the window has no length"
    if point.goodput is None:
        reasons["goodput"] = "no bounds were given: `cadenza show RUN --slo ttft=500,tpot=50`, or slo in the settings"
    if np.isnan(point.ceiling_share):
        reasons["ceiling_share"] = "the machine was not calibrated, or nothing was measured in real time"
    if np.isnan(point.tokens_per_event):
        reasons["tokens_per_event"] = "no answer had its tokens counted by the server"
    if point.token_source is None:
        reasons["token_source"] = "no request succeeded"
    empty = {
        "ttft_ms": "no answer with a token ended in the window",
        "user_ttft_ms": "no answer with a token ended in the window",
        "tpot_ms": "no answer with two tokens in two events ended in the window",
        "itl_ms": "no answer with two events ended in the window",
        "latency_ms": "no answer with a token ended in the window",
        "dispatch_lag_ms": "no request was sent",
        "read_lag_ms": "no answer was stamped by the kernel",
        "connect_ms": "every connection was open already",
    }
    return reasons | {name: why for name, why in empty.items() if getattr(point, name).n == 0}

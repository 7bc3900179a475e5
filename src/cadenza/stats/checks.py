"""Can this point be believed? Every reason is one plain sentence with its number."""

from enum import StrEnum

import msgspec
import numpy as np

from cadenza.record import LoadLabel, Point, PointStatus
from cadenza.stats.columns import Columns
from cadenza.stats.concurrency import mean_in_flight, peak_in_flight
from cadenza.stats.distribution import Distribution
from cadenza.stats.latency import dispatch_lag_ms, itl_ms, ttft_ms
from cadenza.stats.requests import Failure, Requests
from cadenza.stats.window import Window

# Above this share of failures the latencies are those of the survivors, and say little about the server.
MAX_FAILED_SHARE = 0.05
# A dispatch this late, or this share of the mean TTFT, is large enough to be read as the server's.
MAX_LAG_MS, MAX_LAG_SHARE = 5.0, 0.05
# A closed loop refills a slot within its own dispatch lag; less than this in flight means that it did not.
MIN_IN_FLIGHT_SHARE = 0.95


class Verdict(StrEnum):
    """From good to bad. INVALID: do not use the numbers. CLIENT-LIMITED: they are the client's, not the server's."""

    VALID = "VALID"
    SUSPECT = "SUSPECT"
    CLIENT_LIMITED = "CLIENT-LIMITED"
    INVALID = "INVALID"


class Finding(msgspec.Struct, frozen=True):
    """One reason, and the verdict that it alone would give."""

    verdict: Verdict
    reason: str


_RANK = list(Verdict)


def judge(findings: list[Finding]) -> tuple[Verdict, list[str]]:
    """The worst verdict of all, and the reasons, worst first."""
    ordered = sorted(findings, key=lambda finding: -_RANK.index(finding.verdict))
    return (ordered[0].verdict if ordered else Verdict.VALID), [finding.reason for finding in ordered]


def examine(
    point: Point, columns: Columns, window: Window, requests: Requests, failures: list[Failure]
) -> list[Finding]:
    """All that speaks against the point."""
    return [
        *_check_counts(point, requests, failures),
        *_check_indices(columns),
        *_check_load(point, columns, window),
        *_check_client(point, columns),
        *_check_stamps(columns),
        *_check_tokens(columns),
    ]


def _check_counts(point: Point, requests: Requests, failures: list[Failure]) -> list[Finding]:
    """Conservation: planned = sent + dropped, sent = Σ outcomes; then how many of them went wrong."""
    found = []
    told = sum(requests.outcomes.values())
    if requests.planned != requests.sent + requests.dropped or requests.sent != told:
        counts = f"{requests.planned} planned, {requests.sent} sent, {requests.dropped} dropped, {told} with an outcome"
        found.append(Finding(Verdict.INVALID, f"requests are missing: {counts}"))
    if point.status is PointStatus.FAILED:
        found.append(Finding(Verdict.INVALID, "the measurement itself failed before the point was complete"))
    elif point.status is not PointStatus.COMPLETE:
        ended = requests.ok + requests.failed
        found.append(Finding(Verdict.SUSPECT, f"interrupted after {ended} of {requests.planned} requests"))
    worst = f"{failures[0].n} × {failures[0].outcome}" if failures else ""
    if failures and failures[0].detail:
        worst += f" ({failures[0].detail})"
    if not requests.ok:
        found.append(Finding(Verdict.INVALID, f"no request succeeded: {worst}" if worst else "no request was sent"))
    elif failed := sum(failure.n for failure in failures):
        judged = failed + requests.ok  # not what we cancelled: of those nobody knows how they would have ended
        share = failed / judged
        counts = f"{failed} of {judged} requests failed ({100 * share:.1f} %): {worst}"
        if share > MAX_FAILED_SHARE:
            found.append(Finding(Verdict.INVALID, f"{counts}; the latencies are those of the survivors only"))
        else:
            found.append(Finding(Verdict.SUSPECT, counts))
    return found


def _check_indices(columns: Columns) -> list[Finding]:
    """A request has one record: one counted twice could hide one that is missing."""
    twice = len(columns) - len(np.unique(columns.index))
    return [Finding(Verdict.INVALID, f"{twice} requests have more than one record")] if twice else []


def _check_load(point: Point, columns: Columns, window: Window) -> list[Finding]:
    """In flight never above C, and in a closed loop C on average; a window that is a steady state."""
    found = []
    slots = point.concurrency
    if window.kind == "whole" and len(columns):
        found.append(Finding(Verdict.SUSPECT, f"no steady state: {window.rule}"))
    if slots is None:
        return found
    if (peak := peak_in_flight(columns)) > slots:
        found.append(Finding(Verdict.INVALID, f"{peak} requests were in flight where {slots} were asked for"))
    if point.load is LoadLabel.CLOSED and window.kind == "steady":
        mean = mean_in_flight(columns, window.start_ms, window.end_ms)
        if mean < MIN_IN_FLIGHT_SHARE * slots:
            found.append(
                Finding(Verdict.SUSPECT, f"{mean:.2f} requests were in flight on average where {slots} were asked for")
            )
    return found


def _check_client(point: Point, columns: Columns) -> list[Finding]:
    """The client's own lateness. Under a cap a late dispatch is the queue that the cap is for."""
    if point.load is LoadLabel.CAPPED:
        return []
    sent = columns.measured & np.isfinite(columns.sent_ms)
    firsts = ttft_ms(columns)[sent & columns.ok]
    firsts = firsts[np.isfinite(firsts)]
    if not sent.any() or not len(firsts):
        return []
    lags = Distribution.of(dispatch_lag_ms(columns)[sent])
    # One hiccup among few requests is not the client's pace: the highest percentile that the sample carries.
    name = next((name for name in ("p99", "p95", "p90") if name not in lags.undersampled), "p50")
    lag: float = getattr(lags, name)
    limit = max(MAX_LAG_MS, MAX_LAG_SHARE * float(firsts.mean()))
    if lag <= limit:
        return []
    told = f"the client sent late: dispatch lag {name} {lag:.1f} ms, allowed {limit:.1f} ms"
    return [Finding(Verdict.CLIENT_LIMITED, told)]


def _check_stamps(columns: Columns) -> list[Finding]:
    """Every stamp follows what caused it, so that latency − TTFT is the sum of gaps none of which is negative."""
    every = np.ones(len(columns), dtype=bool)
    early = (
        int(np.sum(dispatch_lag_ms(columns) < 0))
        + int(np.sum(ttft_ms(columns) < 0))
        + int(np.sum(itl_ms(columns, every) < 0))
        + int(np.sum(columns.done_ms < columns.last_ms))
    )
    if not early:
        return []
    return [Finding(Verdict.INVALID, f"{early} stamps lie before what caused them: the clock went back")]


def _check_tokens(columns: Columns) -> list[Finding]:
    """Every event carries at least a token, so events cannot outnumber the tokens that the server counted."""
    known = columns.measured & columns.ok & columns.told
    events = np.diff(columns.event_start)
    over = known & (events > columns.output_tok)
    if not over.any():
        return []
    counts = f"{int(events[over].sum())} events against {int(columns.output_tok[over].sum())} tokens"
    return [
        Finding(
            Verdict.SUSPECT,
            f"in {int(over.sum())} answers more events carried text than the server counted tokens: {counts}",
        )
    ]

"""All checks of a point: is nothing lost, was the load what it should be, do the stamps and counts agree?"""

import math

import numpy as np

from cadenza.analysis.client_checks import check_client
from cadenza.analysis.extrapolation import check_extrapolation
from cadenza.analysis.load_checks import check_load
from cadenza.analysis.streaming import check_streaming
from cadenza.analysis.verdict import Check, Verdict, check
from cadenza.record import Point, PointStatus
from cadenza.stats.columns import Columns
from cadenza.stats.concurrency import little
from cadenza.stats.latency import dispatch_lag_ms, itl_ms, latency_ms, ttft_ms
from cadenza.stats.requests import Failure, Requests
from cadenza.stats.window import Window

# Above this share of failures the latencies are those of the survivors, and say little about the server.
MAX_FAILED_SHARE = 0.05
# Prompts further from the length aimed at than this load the server otherwise than the name of the run says.
MAX_PROMPT_SHARE = 0.2


def examine(point: Point, columns: Columns, window: Window, requests: Requests, failures: list[Failure]) -> list[Check]:
    """Every check, passed or not, in the order in which `cadenza check` tells them."""
    return [
        *_check_counts(point, requests, failures),
        _check_indices(columns),
        *check_load(point, columns, window),
        _check_little(columns, window),
        *check_client(point, columns),
        *check_streaming(columns),
        _check_stamps(columns),
        _check_gaps(columns),
        *_check_tokens(columns),
        *check_extrapolation(point, columns),
    ]


def _check_counts(point: Point, requests: Requests, failures: list[Failure]) -> list[Check]:
    """Conservation: planned = sent + dropped, sent = Σ outcomes; then how many of them went wrong."""
    told = sum(requests.outcomes.values())
    lost = requests.planned != requests.sent + requests.dropped or requests.sent != told
    counts = f"{requests.planned} planned, {requests.sent} sent, {requests.dropped} dropped, {told} with an outcome"
    found = [check("conservation", f"requests are missing: {counts}" if lost else counts, lost, Verdict.INVALID)]
    if point.status is PointStatus.FAILED:
        found.append(Check("complete", Verdict.INVALID, "the measurement itself failed before the point was complete"))
    elif point.status is not PointStatus.COMPLETE:
        ended = requests.ok + requests.failed
        found.append(Check("complete", Verdict.SUSPECT, f"interrupted after {ended} of {requests.planned} requests"))
    worst = f"{failures[0].n} × {failures[0].outcome}" if failures else ""
    if failures and failures[0].detail:
        worst += f" ({failures[0].detail})"
    if not requests.ok:
        why = f"no request succeeded: {worst}" if worst else "no request was sent"
        return [*found, Check("failures", Verdict.INVALID, why)]
    failed = sum(failure.n for failure in failures)
    judged = failed + requests.ok  # not what we cancelled: of those nobody knows how they would have ended
    if not failed:
        return [*found, Check("failures", Verdict.VALID, f"none of {judged} requests failed")]
    counts = f"{failed} of {judged} requests failed ({100 * failed / judged:.1f} %): {worst}"
    if failed > MAX_FAILED_SHARE * judged:
        counts += "; the latencies are those of the survivors only"
        return [*found, Check("failures", Verdict.INVALID, counts)]
    return [*found, Check("failures", Verdict.SUSPECT, counts)]


def _check_indices(columns: Columns) -> Check:
    """A request has one record: one counted twice could hide one that is missing."""
    twice = len(columns) - len(np.unique(columns.index))
    told = f"{twice} requests have more than one record" if twice else "each request has one record"
    return check("records", told, twice > 0, Verdict.INVALID)


def _check_little(columns: Columns, window: Window) -> Check:
    """L = λ W: what was in flight against the rate and the times that are reported, within their standard error."""
    residual, allowed = little(columns, window.start_ms, window.end_ms)
    if not math.isfinite(residual):
        return Check("Little's law", None, "no request was in flight in the window, or none has ended")
    off = abs(residual) > allowed
    message = f"L differs from λ W by {100 * residual:+.1f} % (allowed: {100 * allowed:.1f} %)"
    return check("Little's law", message, off, Verdict.SUSPECT)


def _check_stamps(columns: Columns) -> Check:
    """Every stamp follows what caused it."""
    every = np.ones(len(columns), dtype=bool)
    early = (
        int(np.sum(dispatch_lag_ms(columns) < 0))
        + int(np.sum(ttft_ms(columns) < 0))
        + int(np.sum(itl_ms(columns, every) < 0))
        + int(np.sum(columns.done_ms < columns.last_ms))
    )
    told = (
        f"{early} stamps lie before what caused them: the clock went back" if early else "no stamp precedes its cause"
    )
    return check("order of stamps", told, early > 0, Verdict.INVALID)


def _check_gaps(columns: Columns) -> Check:
    """Latency − TTFT is the sum of the gaps, request by request."""
    every = np.ones(len(columns), dtype=bool)
    gaps = float(itl_ms(columns, every).sum())
    spans = latency_ms(columns) - ttft_ms(columns)
    told = float(spans[np.isfinite(spans)].sum())
    off = abs(told - gaps) > 1e-6 * max(1.0, abs(told))
    return check("gaps", f"latency − TTFT sums to {told:.1f} ms, the gaps to {gaps:.1f} ms", off, Verdict.INVALID)


def _check_tokens(columns: Columns) -> list[Check]:
    """Every event carries at least a token, so events cannot outnumber the tokens that the server counted."""
    known = columns.measured & columns.ok & columns.server_counted
    if not known.any():
        return [
            Check("tokens", None, "the server gave no usage: tokens are counted as events, and nothing confirms it")
        ]
    events = np.diff(columns.event_start)
    over = known & (events > columns.output_tok)
    told = f"the server counted {int(columns.output_tok[known].sum())} tokens in {int(events[known].sum())} events"
    if over.any():
        counts = f"{int(events[over].sum())} events against {int(columns.output_tok[over].sum())} tokens"
        told = f"in {int(over.sum())} answers more events carried text than the server counted tokens: {counts}"
    return [check("tokens", told, bool(over.any()), Verdict.SUSPECT), *_check_prompts(columns)]


def _check_prompts(columns: Columns) -> list[Check]:
    known = columns.measured & columns.ok & np.isfinite(columns.prompt_tok) & np.isfinite(columns.aimed_tok)
    if not known.any():
        return []
    got, aimed = float(columns.prompt_tok[known].mean()), float(columns.aimed_tok[known].mean())
    off = aimed > 0 and abs(got / aimed - 1) > MAX_PROMPT_SHARE
    told = f"prompts had {got:.1f} tokens on average where {aimed:.1f} were aimed at"
    return [check("prompt length", told + (" (template, tokenizer)" if off else ""), off, Verdict.SUSPECT)]

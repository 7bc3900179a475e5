"""All checks of a point: is nothing lost, was the load what it should be, do the stamps and counts agree?"""

import math

import numpy as np

from cadenza.analysis.client_checks import check_client
from cadenza.analysis.extrapolation import check_extrapolation
from cadenza.analysis.finding import Finding, Verdict, check, unjudged, valid
from cadenza.analysis.load_checks import check_load
from cadenza.analysis.streaming import check_streaming
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


def examine(
    point: Point, columns: Columns, window: Window, requests: Requests, failures: list[Failure]
) -> list[Finding]:
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


def _check_counts(point: Point, requests: Requests, failures: list[Failure]) -> list[Finding]:
    """Conservation: planned = sent + dropped, sent = Σ outcomes; then how many of them went wrong."""
    accounted = sum(requests.outcomes.values())
    lost = requests.planned != requests.sent + requests.dropped or requests.sent != accounted
    numbers = {
        "planned": requests.planned,
        "sent": requests.sent,
        "dropped": requests.dropped,
        "with_outcome": accounted,
    }
    counts = (
        f"{requests.planned} planned, {requests.sent} sent, {requests.dropped} dropped, {accounted} with an outcome"
    )
    message = f"requests are missing: {counts}" if lost else counts
    findings = [check("conservation", message, lost, Verdict.INVALID, **numbers)]
    if point.status is PointStatus.FAILED:
        failed_early = "the measurement itself failed before the point was complete"
        findings.append(Finding("point-failed", Verdict.INVALID, failed_early))
    elif point.status is not PointStatus.COMPLETE:
        ended = requests.ok + requests.failed
        message = f"interrupted after {ended} of {requests.planned} requests"
        numbers = {"ended": ended, "planned": requests.planned}
        findings.append(Finding("point-interrupted", Verdict.SUSPECT, message, dict(numbers)))
    worst = f"{failures[0].n} × {failures[0].outcome}" if failures else ""
    if failures and failures[0].detail:
        worst += f" ({failures[0].detail})"
    if not requests.ok:
        why = f"no request succeeded: {worst}" if worst else "no request was sent"
        failed = sum(failure.n for failure in failures)
        return [*findings, Finding("no-success", Verdict.INVALID, why, {"failed": failed})]
    failed = sum(failure.n for failure in failures)
    judged = failed + requests.ok  # not what we cancelled: of those nobody knows how they would have ended
    if not failed:
        return [*findings, valid("failures", f"none of {judged} requests failed", failed=0, judged=judged)]
    counts = f"{failed} of {judged} requests failed ({100 * failed / judged:.1f} %): {worst}"
    verdict = Verdict.SUSPECT
    if failed > MAX_FAILED_SHARE * judged:
        counts += "; the latencies are those of the survivors only"
        verdict = Verdict.INVALID
    shares = {"failed": failed, "judged": judged, "failed_share": failed / judged}
    return [*findings, Finding("failures", verdict, counts, shares)]


def _check_indices(columns: Columns) -> Finding:
    """A request has one record: one counted twice could hide one that is missing."""
    twice = len(columns) - len(np.unique(columns.index))
    message = f"{twice} requests have more than one record" if twice else "each request has one record"
    return check("duplicate-records", message, twice > 0, Verdict.INVALID, duplicates=twice)


def _check_little(columns: Columns, window: Window) -> Finding:
    """L = λ W: what was in flight against the rate and the times that are reported, within their standard error."""
    residual, allowed = little(columns, window.start_ms, window.end_ms)
    if not math.isfinite(residual):
        return unjudged("littles-law", "no request was in flight in the window, or none has ended")
    off = abs(residual) > allowed
    message = f"L differs from λ W by {100 * residual:+.1f} % (allowed: {100 * allowed:.1f} %)"
    return check("littles-law", message, off, Verdict.SUSPECT, residual_share=residual, allowed_share=allowed)


def _check_stamps(columns: Columns) -> Finding:
    """Every stamp follows what caused it."""
    every = np.ones(len(columns), dtype=bool)
    early = (
        int(np.sum(dispatch_lag_ms(columns) < 0))
        + int(np.sum(ttft_ms(columns) < 0))
        + int(np.sum(itl_ms(columns, every) < 0))
        + int(np.sum(columns.done_ms < columns.last_ms))
    )
    wrong = f"{early} stamps lie before what caused them: the clock went back"
    message = wrong if early else "no stamp precedes its cause"
    return check("stamp-order", message, early > 0, Verdict.INVALID, early_stamps=early)


def _check_gaps(columns: Columns) -> Finding:
    """Latency − TTFT is the sum of the gaps, request by request."""
    every = np.ones(len(columns), dtype=bool)
    gaps = float(itl_ms(columns, every).sum())
    spans = latency_ms(columns) - ttft_ms(columns)
    total = float(spans[np.isfinite(spans)].sum())
    off = abs(total - gaps) > 1e-6 * max(1.0, abs(total))
    message = f"latency − TTFT sums to {total:.1f} ms, the gaps to {gaps:.1f} ms"
    return check("gap-sum", message, off, Verdict.INVALID, latency_less_ttft_ms=total, gaps_ms=gaps)


def _check_tokens(columns: Columns) -> list[Finding]:
    """Every event carries at least a token, so events cannot outnumber the tokens that the server counted."""
    known = columns.measured & columns.ok & columns.server_counted
    if not known.any():
        return [unjudged("no-usage", "the server gave no usage: tokens are counted as events, and nothing confirms it")]
    events = np.diff(columns.event_start)
    over = known & (events > columns.output_tok)
    chosen = over if over.any() else known
    numbers = {"tokens": int(columns.output_tok[chosen].sum()), "events": int(events[chosen].sum())}
    if not over.any():
        message = f"the server counted {numbers['tokens']} tokens in {numbers['events']} events"
        return [valid("token-count", message, **numbers), *_check_prompts(columns)]
    numbers["answers"] = int(over.sum())
    message = (
        f"in {numbers['answers']} answers more events carried text than the server counted tokens: "
        f"{numbers['events']} events against {numbers['tokens']} tokens"
    )
    return [Finding("more-events-than-tokens", Verdict.SUSPECT, message, dict(numbers)), *_check_prompts(columns)]


def _check_prompts(columns: Columns) -> list[Finding]:
    known = columns.measured & columns.ok & np.isfinite(columns.prompt_tok) & np.isfinite(columns.aimed_tok)
    if not known.any():
        return []
    got, aimed = float(columns.prompt_tok[known].mean()), float(columns.aimed_tok[known].mean())
    off = aimed > 0 and abs(got / aimed - 1) > MAX_PROMPT_SHARE
    message = f"prompts had {got:.1f} tokens on average where {aimed:.1f} were aimed at"
    message += " (template, tokenizer)" if off else ""
    return [check("prompt-length", message, off, Verdict.SUSPECT, prompt_tok=got, aimed_tok=aimed)]

"""What is worth knowing of a point and is no reason to doubt it."""

from collections.abc import Sequence

import numpy as np

from cadenza.analysis.extrapolation import note_unknown
from cadenza.analysis.finding import Finding, unjudged
from cadenza.analysis.streaming import notes_streaming
from cadenza.record import LoadLabel, Outcome, Point, Record
from cadenza.stats import latency
from cadenza.stats.columns import Columns
from cadenza.stats.throughput import rate_per_s

# A capped loop that sends less than this share of what is due has a queue that does not come back down.
KEEPS_UP = 0.95


def list_notes(point: Point, records: Sequence[Record], columns: Columns, per_event: float) -> list[Finding]:
    """Every note, the most important first; `per_event` is the mean number of tokens of an event."""
    return [
        *_note_rate(point, columns),
        *_note_wait(point, columns),
        *_remarks(records, per_event),
        *notes_streaming(columns),
        *note_unknown(point, columns),
    ]


def _note_rate(point: Point, columns: Columns) -> list[Finding]:
    """A cap that cannot keep up makes a queue at the client, which grows for as long as one measures."""
    sent = columns.measured & np.isfinite(columns.sent_ms)
    offered, achieved = rate_per_s(columns.intended_ms[sent]), rate_per_s(columns.sent_ms[sent])
    if point.load is not LoadLabel.CAPPED or not achieved < KEEPS_UP * offered:
        return []
    message = f"requests left at {achieved:.3g}/s where {offered:.3g}/s were due"
    message += ": over capacity at this cap, so user TTFT grows with the length of the run"
    return [unjudged("over-cap", message, achieved_per_s=achieved, offered_per_s=offered)]


def _note_wait(point: Point, columns: Columns) -> list[Finding]:
    """What a client that counts from the dispatch would have reported, where it differs."""
    inside = columns.measured & columns.ok
    if point.load is LoadLabel.CLOSED or not inside.any():
        return []
    user, naive = latency.user_ttft_ms(columns)[inside], latency.ttft_ms(columns)[inside]
    user, naive = (kept[np.isfinite(kept)] for kept in (user, naive))
    if not len(naive) or user.mean() - naive.mean() <= max(1.0, 0.01 * naive.mean()):
        return []
    pairs = [("mean", user.mean(), naive.mean())]
    pairs += [(f"P{q}", np.percentile(user, q), np.percentile(naive, q)) for q in (50, 95)]
    message = "user TTFT and TTFT from dispatch differ by the wait to be sent: "
    message += ", ".join(f"{name} {felt:.1f} and {sent:.1f} ms" for name, felt, sent in pairs)
    numbers = {"user_mean_ms": float(user.mean()), "dispatch_mean_ms": float(naive.mean())}
    return [unjudged("wait-before-dispatch", message, **numbers)]


def _remarks(records: Sequence[Record], per_event: float) -> list[Finding]:
    """Worth knowing, and no reason to doubt."""
    notes = []
    if per_event > 1.005:
        message = f"{per_event:.2f} tokens an event: ITL is per event, not per token"
        notes.append(unjudged("tokens-per-event", message, tokens_per_event=per_event))
    remarks: dict[str, int] = {}
    for record in records:
        if record.outcome is Outcome.OK and record.detail:
            remarks[record.detail] = remarks.get(record.detail, 0) + 1
    for remark, n in sorted(remarks.items(), key=lambda item: -item[1])[:3]:
        notes.append(unjudged("answer-remark", f"{n} answers: {remark}", answers=n))
    return notes

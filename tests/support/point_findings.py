"""A point for each finding that is made of records, with the numbers and the sentence that follow from its stamps.

Unless an example says otherwise, an answer takes 40 ms, with events at 20, 30 and 40 ms.
"""

from collections.abc import Callable

import msgspec
import numpy as np

from cadenza.analysis.finding import Finding
from cadenza.analysis.summary import relate, summarise_point
from cadenza.record import LoadLabel, Outcome, Point, PointStatus, Record, WorkerHealth
from support.columns import closed, rec

MS = 1_000_000
Numbers = dict[str, float]
# By code: findings of which one has it, its numbers, its sentence.
Examples = dict[str, tuple[Callable[[], list[Finding]], Numbers, str]]


def point_of(records: list[Record], point: Point | None = None) -> Callable[[], list[Finding]]:
    return lambda: summarise_point(point or closed(1, len(records)), records).findings


def answers(n: int = 20, lag: float = 0.0, **changes: object) -> list[Record]:
    """Back to back on one slot, each sent `lag` ms after it was due."""
    made = []
    for k in range(n):
        at = 40.0 * k + lag
        one = rec(k, at, [at + 20, at + 30, at + 40 - lag], intended=at - lag, tokens=3)
        made.append(msgspec.structs.replace(one, **changes))
    return made


def changed(place: int, **changes: object) -> list[Record]:
    """`answers`, of which one is another."""
    return [msgspec.structs.replace(one, **changes) if one.index == place else one for one in answers()]


def plan(load: LoadLabel, rate: float, n: int, slots: int | None = None) -> Point:
    return Point(
        index=0,
        model="m",
        load=load,
        concurrency=slots,
        rate_per_s=rate,
        planned=n,
        status=PointStatus.COMPLETE,
        start_ns=0,
    )


def held() -> Point:
    point = closed(1, 20)
    point.cooldown_s = 60.0
    return point


def worker(**changes: float) -> Point:
    point = closed(1, 20)
    point.workers = [msgspec.structs.replace(WorkerHealth(worker=0, wall_s=10.0, cpu_s=9.5), **changes)]
    point.ceiling_events_per_s = 7.5
    return point


def stream(index: int, at: float, first: float = 20.0, tpot: float = 10.0, events: int = 11) -> Record:
    return rec(index, at, [at + first + tpot * j for j in range(events)], tokens=events)


def slots_in_step(n: int, slots: int) -> list[Record]:
    return [stream(k, 200.0 * (k // slots)) for k in range(n)]


def with_silence(begin_ms: float, end_ms: float) -> list[Record]:
    """A request each 50 ms, a token each 5 ms for 100 ms; what falls into the silence comes at its end."""
    made = []
    for k in range(20):
        events = [50.0 * k + 5 * j for j in range(1, 21)]
        made.append(rec(k, 50.0 * k, [end_ms if begin_ms < at < end_ms else at for at in events]))
    return made


def falling_load(fast: int) -> list[Record]:
    """8 slots that end without a cooldown; 10 ms a token, and 8 ms in the last `fast` of 96 answers."""
    made: list[Record] = []
    free = [13.0 * slot for slot in range(8)]
    for k in range(96):
        at = min(free)
        made.append(rec(k, at, [at + 20 + (8.0 if k >= 96 - fast else 10.0) * j for j in range(11)]))
        free[free.index(at)] = at + 120
    return made


CAPPED = [rec(k, 40.0 * k, [40.0 * k + 20, 40.0 * k + 40], intended=20.0 * k) for k in range(50)]
PUNCTUAL = [rec(k, 100.0 * k, [100.0 * k + 20, 100.0 * k + 30]) for k in range(100)]
# A response of 1 s each 100 ms: the window of 1.9 s holds 1.9 of them.
LONG = [rec(k, 100.0 * k, [100.0 * k + 500, 100.0 * k + 1000]) for k in range(20)]
READ_LATE = [
    msgspec.structs.replace(rec(k, 40.0 * k, [40.0 * k + 30] * 2 + [40.0 * k + 40], tokens=3), read_lag_ns=8 * MS)
    for k in range(100)
]
LUMPED = [rec(k, 100.0 * k, [100.0 * k + 20] * 10, tokens=10) for k in range(20)]
THINKING = [
    msgspec.structs.replace(one, output_tokens=500, text_bytes=100, first_text_bytes=5)
    for one in (stream(k, 300.0 * k, events=20) for k in range(20))
]
REASONED = msgspec.structs.replace(
    stream(0, 0.0, events=5), output_tokens=20, reasoning_tokens=15, text_bytes=100, first_text_bytes=5
)
UNKNOWN_FIRST = [rec(k, 600.0 * k, [600.0 * k + 20 + 40 * j for j in range(13)], tokens=49) for k in range(20)]

POINTS: Examples = {
    "conservation": (
        point_of(answers(), closed(1, 21)),
        {"planned": 21, "sent": 20, "dropped": 0, "with_outcome": 20},
        "requests are missing: 21 planned, 20 sent, 0 dropped, 20 with an outcome",
    ),
    "point-failed": (
        point_of(answers(), closed(1, 40, PointStatus.FAILED)),
        {},
        "the measurement itself failed before the point was complete",
    ),
    "point-interrupted": (
        point_of(answers(), closed(1, 40, PointStatus.INTERRUPTED)),
        {"ended": 20, "planned": 40},
        "interrupted after 20 of 40 requests",
    ),
    "no-success": (
        point_of(answers(outcome=Outcome.HTTP_ERROR, detail="HTTP 503: busy")),
        {"failed": 20},
        "no request succeeded: 20 × http_error (HTTP 503: busy)",
    ),
    "failures": (
        point_of(changed(3, outcome=Outcome.HTTP_ERROR, detail="HTTP 503: busy")),
        {"failed": 1, "judged": 20, "failed_share": 0.05},
        "1 of 20 requests failed (5.0 %): 1 × http_error (HTTP 503: busy)",
    ),
    "duplicate-records": (
        point_of(changed(3, index=2)),
        {"duplicates": 1},
        "1 requests have more than one record",
    ),
    "littles-law": (
        point_of(answers(100)),
        {"residual_share": 0.0, "allowed_share": 0.05},
        "L differs from λ W by +0.0 % (allowed: 5.0 %)",
    ),
    "stamp-order": (
        point_of(changed(3, sent_ns=150 * MS)),
        {"early_stamps": 1},
        "1 stamps lie before what caused them: the clock went back",
    ),
    "gap-sum": (
        point_of(answers()),
        {"latency_less_ttft_ms": 400.0, "gaps_ms": 400.0},
        "latency − TTFT sums to 400.0 ms, the gaps to 400.0 ms",
    ),
    "no-usage": (
        point_of([rec(k, 40.0 * k, [40.0 * k + 20, 40.0 * k + 40]) for k in range(20)]),
        {},
        "the server gave no usage: tokens are counted as events, and nothing confirms it",
    ),
    "token-count": (
        point_of(answers()),
        {"tokens": 60, "events": 60},
        "the server counted 60 tokens in 60 events",
    ),
    "more-events-than-tokens": (
        point_of(answers(output_tokens=2)),
        {"answers": 20, "events": 60, "tokens": 40},
        "in 20 answers more events carried text than the server counted tokens: 60 events against 40 tokens",
    ),
    "prompt-length": (
        point_of(answers(prompt_tokens=13, aimed_prompt_tokens=10)),
        {"prompt_tok": 13.0, "aimed_tok": 10.0},
        "prompts had 13.0 tokens on average where 10.0 were aimed at (template, tokenizer)",
    ),
    "dispatch-lag": (
        point_of(answers(100, lag=6.0)),
        {"lag_ms": 6.0, "allowed_ms": 5.0},
        "the client sent late: dispatch lag p90 6.0 ms, allowed 5.0 ms",
    ),
    # 1 ms of the 39 + 1 that a slot has for an answer.
    "empty-slots": (
        point_of([rec(k, 40.0 * k + 1, [40.0 * k + 20, 40.0 * k + 40], intended=40.0 * k) for k in range(20)]),
        {"share": 1 / 40, "allowed_share": 0.02},
        "the client sent late: slots stood empty for 2.50 % of the time (allowed 2 %)",
    ),
    "dispatch-rate": (
        point_of(PUNCTUAL, plan(LoadLabel.OPEN, 10.0, 100)),
        {"achieved_per_s": 10.0, "offered_per_s": 10.0},
        "requests left at 10/s where 10/s were due (100.00 %)",
    ),
    "kernel-stamps": (
        point_of(answers()),
        {"without": 20, "answers": 20},
        "20 of 20 answers were stamped by the client's reads, not by the kernel: a busy client's lateness is in their "
        "latencies",
    ),
    # One of the two gaps of an answer is 0, the other one 10 ms.
    "read-lag": (
        point_of(READ_LATE, closed(1, 100)),
        {"lag_ms": 8.0, "gap_ms": 10.0, "shared_stamp_share": 0.5},
        "the client read late: read lag p90 8.00 ms of a gap of 10.00 ms; 50.00 % of events share a stamp",
    ),
    "worker-cpu": (
        point_of(answers(), worker()),
        {"worker": 0, "share": 0.95, "allowed_share": 0.9},
        "worker 0 used 95 % of a core (allowed 90 %)",
    ),
    "loop-lag": (
        point_of(answers(), worker(away_ms=3.1)),
        {"worker": 0, "longest_ms": 3.1},
        "worker 0: longest gap between polls 3.1 ms",
    ),
    "shared-core": (
        point_of(answers(), worker(waited_s=2.5)),
        {"worker": 0, "share": 0.25, "allowed_share": 0.2},
        "worker 0 waited for its core 25 % of the time (allowed 20 %): something else runs there",
    ),
    "clock-steps": (
        point_of(answers(), worker(clock_steps=2)),
        {"worker": 0, "steps": 2},
        "the calendar clock jumped 2 times: kernel stamps around it cannot be placed",
    ),
    # 60 events in the 10 s that the worker worked.
    "client-ceiling": (
        point_of(answers(), worker()),
        {"events_per_s": 6.0, "ceiling_events_per_s": 7.5, "share": 0.8},
        "6 events/s are 80 % of the 8 that the client can read",
    ),
}

LOAD: Examples = {
    "window": (
        point_of(answers()),
        {"window_s": 0.76},
        "the load was held for 0.8 s: first dispatch with all slots filled to last dispatch",
    ),
    "no-window": (
        point_of(answers(4), closed(5, 4)),
        {},
        "no steady state: whole run, ramp and drain included: 0 answers ended while the load was held, 5 are needed; "
        "--requests 10 would do",
    ),
    "steady-state": (
        point_of([stream(k, 400.0 * k, tpot=10.0 if k < 100 else 20.0) for k in range(200)]),
        {"before_ms": 10.0, "after_ms": 20.0, "change_share": 1.0},
        "no steady state: TPOT step: 10 to 20 ms (+100 %)",
    ),
    # 1,050 ms in 200 steps of 5.25 ms: the events at 300 and 700 ms are in steps 57 and 133, with 75 between them.
    "silence": (
        point_of(with_silence(300, 700), closed(2, 20)),
        {"silent_s": 75 * 1.05 / 200, "silent_share": 0.375},
        "while requests waited, the server sent nothing for 0.4 s (37.5 % of the point)",
    ),
    "censored": (
        point_of(changed(19, outcome=Outcome.CANCELLED)),
        {"censored": 1, "measured": 20},
        "1 of 20 measured requests had not ended when the load did: figures that they could move are lower bounds (≥)",
    ),
    "followed": (
        point_of(answers(), held()),
        {"measured": 20},
        "all 20 measured requests were followed to their end",
    ),
    # 8 of 96 answers have 8 ms a token, not 10.
    "load-not-held": (
        point_of(falling_load(8), closed(8, 96)),
        {"difference_ms": 2 * 8 / 96},
        "the load was not held until the last measured request had ended: without the requests that saw it fall, mean "
        "TPOT differs by +0.167 ms",
    ),
    "backlog-grows": (
        point_of(CAPPED, plan(LoadLabel.CAPPED, 50.0, 50, 1)),
        {"arriving_per_s": 50.0, "completed_per_s": 25.0, "window_responses": 0.98 / 0.53},
        "UNSTABLE: 50 requests/s arrive, the server completes 25/s while requests wait: the backlog grows, and "
        "latencies with the length of the run",
    ),
    "window-short": (
        point_of(LONG, plan(LoadLabel.OPEN, 10.0, 20)),
        {"arriving_per_s": 10.0, "completed_per_s": 10.0, "window_responses": 1.9, "needed_responses": 5},
        "the window is 1.9 mean user latencies long, 5 are needed to see whether the backlog grows: measure longer; "
        "10 requests/s arrive, the server completes 10/s while requests wait",
    ),
    # 9.9 s of 30 ms each.
    "backlog-stable": (
        point_of(PUNCTUAL, plan(LoadLabel.OPEN, 10.0, 100)),
        {"arriving_per_s": 10.0, "window_responses": 330.0},
        "10 requests/s arrive, and the backlog does not grow; the window is 330.0 mean user latencies long",
    ),
    "lockstep": (
        point_of(slots_in_step(80, 8), closed(8, 80)),
        {"concentration": 1.0, "slots": 8, "allowed": float(np.sqrt(np.log(200) / 8))},
        "the 8 slots are in step: dispatch times within a round are concentrated by 1.00 (0 even, 1 all at once); draw "
        "--output-tokens from a range",
    ),
    "in-flight": (
        point_of(answers(), closed(2, 20)),
        {"peak": 1, "mean": 1.0, "slots": 2},
        "1.00 requests were in flight on average where 2 were asked for",
    ),
}

STREAMS: Examples = {
    "answer-text": (
        point_of(changed(3, event_ns=[])),
        {"empty": 1, "answers": 20},
        "1 of 20 answers carried no text, although the server counted tokens: they have no latency",
    ),
    "buffered-stream": (
        point_of(LUMPED),
        {"lumped": 20, "answers": 20, "pieces": 1, "events": 10},
        "20 of 20 answers came in 1 piece of 10 events (medians): the server, or something between it and here, "
        "buffers the stream (or the client read late: the stamps are not the kernel's); TTFT, TPOT and ITL are the "
        "buffer's",
    ),
    "hidden-tokens": (
        point_of(THINKING),
        {"answers": 20, "text_bytes": 2000, "tokens": 10000},
        "in 20 answers more tokens were counted than were streamed (hidden reasoning?): 2000 bytes of text for 10000 "
        "tokens; they have no TPOT",
    ),
    # The cap of one sends 25 a second; request k waits 20 k ms, k from 0 to 49.
    "over-cap": (
        point_of(CAPPED, plan(LoadLabel.CAPPED, 50.0, 50, 1)),
        {"achieved_per_s": 25.0, "offered_per_s": 50.0},
        "requests left at 25/s where 50/s were due: over capacity at this cap, so user TTFT grows with the length of "
        "the run",
    ),
    "wait-before-dispatch": (
        point_of(CAPPED, plan(LoadLabel.CAPPED, 50.0, 50, 1)),
        {"user_mean_ms": 510.0, "dispatch_mean_ms": 20.0},
        "user TTFT and TTFT from dispatch differ by the wait to be sent: mean 510.0 and 20.0 ms, P50 510.0 and 20.0 "
        "ms, P95 951.0 and 20.0 ms",
    ),
    "tokens-per-event": (
        point_of(answers(output_tokens=6)),
        {"tokens_per_event": 2.0},
        "2.00 tokens an event: ITL is per event, not per token",
    ),
    "answer-remark": (
        point_of(answers(detail="finish_reason is not known")),
        {"answers": 20},
        "20 answers: finish_reason is not known",
    ),
    "tokens-not-streamed": (
        point_of([REASONED]),
        {"unstreamed": 15, "tokens": 20},
        "15 of 20 tokens were counted and never streamed (hidden reasoning): TPOT is of the others",
    ),
    "first-stamp-tokens": (
        point_of([rec(0, 0, [40, 40, 40, 70, 100, 130], tokens=6)]),
        {"tokens": 3.0},
        "the first stamp has 3 tokens (mean): TPOT is of those after it",
    ),
    # 480 ms over the 48 tokens after a first one, or over 12 events of one.
    "tpot-unknown": (
        point_of(UNKNOWN_FIRST),
        {"answers": 20, "of_answers": 20, "lowest_ms": 10.0, "highest_ms": 40.0},
        "20 of 20 answers have no TPOT (mean 10 to 40 ms): the tokens of their first event are not known",
    ),
}


def compared() -> list[Finding]:
    """30 ms a token alone, 15 ms with four slots."""
    pair = []
    for index, (slots, tpot) in enumerate(((1, 30.0), (4, 15.0))):
        point = closed(slots, 40)
        point.index = index
        records = [stream(k, 400.0 * (k // slots), tpot=tpot) for k in range(40)]
        pair.append(summarise_point(point, records))
    return relate(pair, simulated=False, tool={}).points[1].findings


RELATED: Examples = {
    "tpot-falls": (
        compared,
        {"drift_pct": -50.0},
        "TPOT falls by 50.0 % from C = 1: possible causes are lumps (a gateway that sends several tokens at once), a "
        "cold start at C = 1, or speculative decoding",
    ),
}

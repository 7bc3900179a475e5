"""Records as flat columns, built once: the only place in this room that knows what a record is.

Stamps become float64 milliseconds since the first intended start, NaN where a record has none: at that size a float
still resolves well below a microsecond over weeks.
"""

import math
from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from cadenza.clock import NS_PER_MS
from cadenza.record import Outcome, Phase, Record
from cadenza.stats.later_tokens import Answers, count_later

_GIVEN_UP = frozenset({Outcome.CANCELLED, Outcome.DROPPED})

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

# What a stamp is worth: events this close came at one instant, in one packet or in packets of one burst.
SAME_STAMP_MS = 0.1


class Columns(msgspec.Struct, kw_only=True, frozen=True):
    """n records of one point. Arrays are (n,) but for the events, which are flat with (n + 1,) offsets.

    index          position in the plan
    measured, cooldown   the phases; neither: warm-up
    sent_ms, intended_ms, connected_ms, first_ms, last_ms, done_ms   stamps, NaN: none
    output_tok     tokens of the answer as `token_source` counts them; 0 where nothing came
    read_lag_ms    the longest that a piece of the answer lay unread; NaN: not known, the stamps are the reads' own
    prompt_tok, aimed_tok   prompt tokens as the server counts them, and as the source aimed at; NaN: not known
    asked_tok      output tokens that were asked for; NaN: not known
    cancelled      we ended it (`cancelled`), or never sent it (`dropped`; sent_ms is then NaN)
    server_counted   output_tok is the server's own count (usage), not the events counted here
    streamed_tok   output tokens that came in events: less than output_tok where thinking was counted and not streamed
    later_tok      those of them that came after the first stamp; NaN: undefined or not known, see `later_why`
    later_why      position in `later_tokens.REASONS`; 0: later_tok is defined
    text_bytes     size of the generated text in UTF-8; NaN: not known
    event_ms       (m,) stamps of all events, request by request
    event_tok      (m,) tokens in each event: as the record says, else shared out so that they sum to output_tok
    event_start    (n + 1,) the events of request i are event_start[i] : event_start[i + 1]
    """

    origin_ns: int
    index: Ints
    measured: Bools
    cooldown: Bools
    ok: Bools
    cancelled: Bools
    sent_ms: Floats
    intended_ms: Floats
    connected_ms: Floats
    first_ms: Floats
    last_ms: Floats
    done_ms: Floats
    read_lag_ms: Floats
    prompt_tok: Floats
    aimed_tok: Floats
    asked_tok: Floats
    output_tok: Ints
    server_counted: Bools
    streamed_tok: Floats
    later_tok: Floats
    later_why: Ints
    text_bytes: Floats
    event_ms: Floats
    event_tok: Floats
    event_start: Ints

    @classmethod
    def of(cls, records: Iterable[Record]) -> "Columns":
        """The columns of `records`, in their order."""
        rows = list(records)
        origin = min((row.intended_ns for row in rows), default=0)
        counts = np.array([len(row.event_ns) for row in rows], dtype=np.int64)
        start = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        events = int(start[-1])
        event_ms = (np.fromiter((ns for row in rows for ns in row.event_ns), np.int64, events) - origin) / NS_PER_MS
        event_tok = np.empty(events)  # filled in place: a long run has millions
        for row, begin, end in zip(rows, start[:-1].tolist(), start[1:].tolist(), strict=True):
            event_tok[begin:end] = _event_tokens(row)
        answers = _answers(rows, _first_events(event_ms, start))
        later = count_later(answers)
        return cls(
            origin_ns=origin,
            index=np.array([row.index for row in rows], dtype=np.int64),
            measured=np.array([row.phase is Phase.MEASURE for row in rows], dtype=bool),
            cooldown=np.array([row.phase is Phase.COOLDOWN for row in rows], dtype=bool),
            ok=answers.ok,
            cancelled=np.array([row.outcome in _GIVEN_UP for row in rows], dtype=bool),
            sent_ms=_stamps(origin, [row.sent_ns for row in rows]),
            intended_ms=_stamps(origin, [row.intended_ns for row in rows]),
            connected_ms=_stamps(origin, [row.connected_ns for row in rows]),
            first_ms=_stamps(origin, [row.event_ns[0] if row.event_ns else None for row in rows]),
            last_ms=_stamps(origin, [row.event_ns[-1] if row.event_ns else None for row in rows]),
            done_ms=_stamps(origin, [row.done_ns for row in rows]),
            read_lag_ms=_stamps(0, [row.read_lag_ns for row in rows]),
            prompt_tok=_counts([row.prompt_tokens for row in rows]),
            aimed_tok=_counts([row.aimed_prompt_tokens for row in rows]),
            asked_tok=_counts([row.asked_output_tokens for row in rows]),
            output_tok=answers.output_tok,
            server_counted=answers.counted,
            streamed_tok=later.streamed_tok,
            later_tok=later.later_tok,
            later_why=later.why,
            text_bytes=answers.text_bytes,
            event_ms=event_ms,
            event_tok=event_tok,
            event_start=start,
        )

    def __len__(self) -> int:
        return len(self.ok)

    def event_owner(self) -> Ints:
        """(m,) the request that each event belongs to."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.event_start))


def _stamps(origin: int, stamps: list[int | None]) -> Floats:
    return np.array([np.nan if ns is None else (ns - origin) / NS_PER_MS for ns in stamps], dtype=np.float64)


def _counts(counts: list[int | None]) -> Floats:
    return np.array([np.nan if count is None else count for count in counts], dtype=np.float64)


def _first_events(event_ms: Floats, start: Ints) -> Ints:
    """(n,) events at the first stamp, those within `SAME_STAMP_MS` of the one before them included."""
    counts = np.diff(start)
    first_events = np.minimum(counts, 1)
    begins = start[:-1]
    several = np.flatnonzero(counts > 1)
    near = several[event_ms[begins[several] + 1] - event_ms[begins[several]] <= SAME_STAMP_MS]
    for i in near.tolist():  # seldom any
        later = np.flatnonzero(np.diff(event_ms[begins[i] : begins[i] + counts[i]]) > SAME_STAMP_MS)
        first_events[i] = later[0] + 1 if len(later) else counts[i]
    return first_events


def _answers(rows: list[Record], first_events: Ints) -> Answers:
    running = [_running_later(row, first) for row, first in zip(rows, first_events.tolist(), strict=True)]
    return Answers(
        ok=np.array([row.outcome is Outcome.OK for row in rows], dtype=bool),
        ended=np.array([row.finish_reason not in (None, "length") for row in rows], dtype=bool),
        counted=np.array([row.token_source == "usage" for row in rows], dtype=bool),
        output_tok=np.array([row.output_tokens or 0 for row in rows], dtype=np.int64),
        reasoning_tok=_counts([row.reasoning_tokens for row in rows]),
        reasoning_events=np.array([row.reasoning_events for row in rows], dtype=np.int64),
        events=np.array([len(row.event_ns) for row in rows], dtype=np.int64),
        first_events=first_events,
        running_tok=np.array(running, dtype=np.float64),
        text_bytes=_counts([row.text_bytes for row in rows]),
        first_text_bytes=_counts([row.first_text_bytes for row in rows]),
    )


def _running_later(row: Record, first_events: int) -> float:
    """Tokens after the first stamp by the usage in each event; NaN where it says less than a token an event."""
    events = len(row.event_ns)
    if not events or len(row.event_tokens) != events:
        return math.nan
    later = sum(row.event_tokens[first_events:])
    return float(later) if later >= events - first_events else math.nan


def _event_tokens(row: Record) -> Floats:
    """Tokens of each event; where only the total is known, equal shares of it (the events' times stay exact)."""
    events = len(row.event_ns)
    shares = np.array(row.event_tokens, dtype=np.float64) if len(row.event_tokens) == events else np.ones(events)
    total = float(shares.sum())
    if row.output_tokens and total > 0:
        shares = shares * (row.output_tokens / total)
    return shares

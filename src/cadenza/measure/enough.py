"""When a point has been measured enough: its main figures are known to ± 5 %, and its percentile has its floor.

Looked at when a tenth more requests have ended than the last time, so that looking costs nothing that matters, and so
that few evaluations are made: each is a chance to stop where a series happens to look calm.
"""

import math
from array import array
from typing import NamedTuple

import numpy as np

from cadenza.clock import NS_PER_MS
from cadenza.record import LoadLabel, Outcome, Phase, Point, Record
from cadenza.stats.columns import Bools, Floats, Ints
from cadenza.stats.distribution import FLOORS
from cadenza.stats.intervals import Interval, mean_interval, phases_seen, rate_interval, round_of
from cadenza.stats.stability import assess_load

# Half-width of the 95 % interval of each mean, as a fraction of it.
CLOSE = 0.05
# The percentile whose sample floor has to be reached.
PERCENTILE = "p95"
# Between two evaluations, as a factor of the requests that have ended.
_STEP = 1.1
# A request's tokens lie between its first and its last event; so many stamps stand for them.
_STAMPS = 8
# A backlog has to grow at two evaluations in a row, of this many times the floor: a load of 0.8 seems to now and then.
_GROWN = 2
# Slots that need more rounds than this for one more independent choice of their positions do not mix in a point's time.
_MIXING_ROUNDS = 100
_NAN = float("nan")


class _Rows(NamedTuple):
    """Warm-up and measured requests in order of due time, (n,) each; times in ms, NaN: there is none."""

    number: Floats
    due: Floats
    sent: Floats
    first: Floats
    last: Floats
    done: Floats
    tokens: Floats

    def of(self, chosen: Bools | Ints) -> "_Rows":
        """Those of a mask, or at these places."""
        return _Rows(*(column[chosen] for column in self))


class Enough:
    """Takes the records of one point, in any order, and decides when no more are needed.

    Enough: at least 130 requests have a TTFT, and the 95 % intervals of the means of TTFT and TPOT and of the
    throughput are within ± 5 %. An interval that the slots' fixed positions alone keep wide (`phases_seen`, equal
    lengths) is not waited for, since more requests do not narrow it. Enough, too: a backlog that grows, at two
    evaluations in a row of 260 requests or more, and 130 requests without one success, since neither gets better by
    going on.
    """

    def __init__(self, point: Point) -> None:
        self._closed = point.load is LoadLabel.CLOSED
        self._rate_per_s = point.rate_per_s
        self._slots = point.concurrency if self._closed else None
        self._warmup = point.warmup
        self._values = array("d")  # one row after the other, as `_Rows` has its columns
        self._origin_ns: int | None = None
        self._measured = 0
        self._look_at = FLOORS[PERCENTILE]
        self._grew = False
        self._met = False

    def add(self, record: Record) -> None:
        """One more record. Warm-up counts for the throughput only, the cooldown for nothing."""
        if record.phase is Phase.COOLDOWN or record.outcome is Outcome.DROPPED:
            return
        origin_ns = self._origin_ns
        if origin_ns is None:
            origin_ns = self._origin_ns = record.intended_ns
        is_ok = record.outcome is Outcome.OK
        events = record.event_ns if is_ok else []
        stamps = (
            record.intended_ns,
            record.sent_ns,
            events[0] if events else None,
            events[-1] if len(events) > 1 else None,
            record.done_ns,
        )
        times = [_NAN if ns is None else (ns - origin_ns) / NS_PER_MS for ns in stamps]
        tokens = _NAN if not is_ok or record.output_tokens is None else record.output_tokens
        self._values.extend((record.index, *times, tokens))
        self._measured += record.phase is Phase.MEASURE

    def is_met(self) -> bool:
        """Whether the point may stop; once True, always."""
        if not self._met and self._measured >= self._look_at:
            self._look_at = int(_STEP * self._measured) + 1
            table = np.array(self._values).reshape(-1, len(_Rows._fields)).T
            self._met = self._is_known(_Rows(*table[:, np.argsort(table[1], kind="stable")]))
        return self._met

    def _is_known(self, every: _Rows) -> bool:
        rows = every.of(every.number >= self._warmup)
        ttft = rows.first - (rows.sent if self._closed else rows.due)
        succeeded = int(np.isfinite(ttft).sum())
        if not succeeded:
            return True
        if not self._closed and len(ttft) >= _GROWN * FLOORS[PERCENTILE]:
            grew, self._grew = self._grew, self._grows(rows)
            if grew and self._grew:
                return True  # no figure of it will ever settle, and it is not VALID however long it is
        if succeeded < FLOORS[PERCENTILE]:
            return False
        tpot = np.where(rows.tokens > 1, (rows.last - rows.first) / np.maximum(rows.tokens - 1, 1), _NAN)
        span = float(np.nanmax(rows.done) - np.nanmin(rows.sent))
        in_flight = self._slots or float(np.nansum(rows.done - rows.sent)) / max(span, 1.0)
        size = round_of(in_flight, rows.tokens, is_open=not self._closed)
        phases = self._phases(rows.tokens)
        known = [
            mean_interval(values, round_size=size, phases=phases)
            for values in (ttft, tpot)
            if np.isfinite(values).any()
        ]
        return all(_is_close(interval) for interval in (*known, self._throughput(every, size)))

    def _phases(self, tokens: Floats) -> float:
        """Independent positions of the slots; infinite where they do not mix, and waiting would not help."""
        if self._slots is None:
            return math.inf
        phases = phases_seen(self._slots, tokens)
        alike = phases_seen(self._slots, np.ones_like(tokens))
        rounds = np.isfinite(tokens).sum() / self._slots
        mixes = math.isfinite(phases) and (phases / alike - 1) * _MIXING_ROUNDS >= rounds
        return phases if mixes else math.inf

    def _throughput(self, every: _Rows, size: int) -> Interval:
        """From the first measured dispatch to that of the last request before which none is still out."""
        order = np.argsort(every.number)
        out = np.flatnonzero(every.number[order] != np.arange(len(order)))
        whole = every.of(order[: out[0]] if len(out) else order)
        sent = whole.sent[whole.number >= self._warmup]
        if len(sent) < 2:
            return rate_interval(sent[:0], sent[:0], 0.0, 0.0)
        start, end = float(np.nanmin(sent)), float(np.nanmax(sent))
        places = (np.arange(_STAMPS) + 0.5) / _STAMPS
        lasting = np.where(np.isfinite(every.last), every.last - every.first, 0.0)
        stamps = (every.first[:, None] + places * lasting[:, None]).ravel()
        weights = np.repeat(every.tokens / _STAMPS, _STAMPS)
        return rate_interval(stamps, weights, start, end, min_slice_ms=2 * size * (end - start) / len(sent))

    def _grows(self, rows: _Rows) -> bool:
        """Of what has ended by now: what is still out makes a backlog larger, never smaller."""
        assert self._rate_per_s is not None
        due, done = rows.due, rows.done
        if not due[-1] > due[0]:
            return False
        user_ttft = (rows.first - due)[np.isfinite(rows.first)]
        return assess_load(due, done, (float(due[0]), float(due[-1])), self._rate_per_s, user_ttft, done - due).grows


def _is_close(interval: Interval) -> bool:
    middle = (interval.high + interval.low) / 2
    return interval.high - interval.low <= 2 * CLOSE * abs(middle)

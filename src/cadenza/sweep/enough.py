"""When a point has been measured enough: its main figures are known to ± 5 %, and its percentile has its floor.

Looked at when a tenth more requests have ended than the last time, so that looking costs nothing that matters, and so
that few looks are taken: each is a chance to stop where a series happens to look calm.
"""

import math

import numpy as np

from cadenza.clock import NS_PER_MS
from cadenza.record import LoadLabel, Outcome, Phase, Point, Record
from cadenza.stats.columns import Floats
from cadenza.stats.distribution import FLOORS
from cadenza.stats.intervals import Interval, mean_interval, phases_seen, rate_interval, round_of
from cadenza.stats.stability import assess_load

# Half-width of the 95 % interval of each mean, as a fraction of it.
CLOSE = 0.05
# The percentile whose sample floor has to be reached.
PERCENTILE = "p95"
# Between two looks, as a factor of the requests that have ended.
_STEP = 1.1
# A request's tokens lie between its first and its last event; so many stamps stand for them.
_STAMPS = 8
_NAN = float("nan")


class Enough:
    """Hears the records of one point, in any order, and says when no more are needed."""

    def __init__(self, point: Point) -> None:
        self._closed = point.load is LoadLabel.CLOSED
        self._rate_per_s = point.rate_per_s
        self._slots = point.concurrency if self._closed else None
        # Of each measured request: due, sent, first event, last event, end (ms), and output tokens.
        self._rows: list[tuple[float, float, float, float, float, float]] = []
        self._origin_ns: int | None = None
        self._look_at = FLOORS[PERCENTILE]
        self._met = False

    def add(self, record: Record) -> None:
        """One more record."""
        if record.phase is not Phase.MEASURE or record.outcome is Outcome.DROPPED:
            return
        if self._origin_ns is None:
            self._origin_ns = record.intended_ns
        events = record.event_ns if record.outcome is Outcome.OK else []
        stamps = (
            record.intended_ns,
            record.sent_ns,
            events[0] if events else None,
            events[-1] if len(events) > 1 else None,
            record.done_ns,
        )
        due, sent, first, last, done = (_NAN if ns is None else (ns - self._origin_ns) / NS_PER_MS for ns in stamps)
        self._rows.append((due, sent, first, last, done, float(record.output_tokens or 0)))

    def is_met(self) -> bool:
        """Whether the point may stop; once True, always."""
        if not self._met and len(self._rows) >= self._look_at:
            self._look_at = int(_STEP * len(self._rows)) + 1
            self._met = self._is_known(np.array(sorted(self._rows)))
        return self._met

    def _is_known(self, rows: Floats) -> bool:
        due, sent, first, last, done, tokens = rows.T
        if not self._closed and self._grows(due, first, done):
            return True  # no figure of it will ever settle, and it is not VALID however long it is
        ttft = first - (sent if self._closed else due)
        tpot = np.where(tokens > 1, (last - first) / np.maximum(tokens - 1, 1), _NAN)
        in_flight = self._slots or float(np.nansum(done - sent)) / max(float(np.nanmax(done)), 1.0)
        size = round_of(in_flight, tokens, is_open=not self._closed)
        phases = phases_seen(self._slots, tokens) if self._slots else math.inf
        known = [
            mean_interval(values, round_size=size, phases=phases)
            for values in (ttft, tpot)
            if np.isfinite(values).any()
        ]
        places = (np.arange(_STAMPS) + 0.5) / _STAMPS
        stamps = (first[:, None] + places * (np.where(np.isfinite(last), last, first) - first)[:, None]).ravel()
        weights = np.repeat(tokens / _STAMPS, _STAMPS)
        start, end = float(sent[0]), float(np.nanmax(sent))
        known.append(rate_interval(stamps, weights, start, end, min_slice_ms=2 * size * (end - start) / len(rows)))
        return all(_is_close(interval) for interval in known)

    def _grows(self, due: Floats, first: Floats, done: Floats) -> bool:
        """Of what has ended by now: what is still out makes a backlog larger, never smaller."""
        assert self._rate_per_s is not None
        user_ttft = (first - due)[np.isfinite(first)]
        window = (float(due[0]), float(due[-1]))
        return assess_load(due, done, window, self._rate_per_s, user_ttft, done - due).grows


def _is_close(interval: Interval) -> bool:
    middle = (interval.high + interval.low) / 2
    return interval.high - interval.low <= 2 * CLOSE * abs(middle)

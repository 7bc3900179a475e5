"""How many requests met their bounds (SLO), of all that were due."""

import msgspec
import numpy as np

from cadenza.record import LoadLabel, Point, PointStatus
from cadenza.spec import Slo
from cadenza.stats.columns import Bools, Columns, Floats
from cadenza.stats.latency import latency_ms, tpot_ms, ttft_ms, user_latency_ms, user_ttft_ms
from cadenza.stats.population import censored, ended_ms, population
from cadenza.stats.window import Window

NAN = float("nan")
# A stamp is a whole number of nanoseconds. Half of one keeps a request exactly at its bound good, in spite of rounding.
_HALF_NS_MS = 0.5e-6


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that met every bound of `slo`.

    per_s         good requests per second of the window
    good, of      good requests, and those that are judged: good or missed
    share         good / of
    undecided     requests that the end of an interrupted run cut off before they had missed a bound: not in `of`
    share_range   (low, high): the share if every undecided request had missed, and if every one had been good
    met           the share is at least `slo.attainment`; None: no attainment is set, nothing is judged, or the
                  undecided requests could turn it
    """

    slo: Slo
    per_s: float
    good: int
    of: int
    share: float
    undecided: int = 0
    share_range: tuple[float, float] = (NAN, NAN)
    met: bool | None = None


def meets(point: Point, columns: Columns, slo: Slo) -> Bools:
    """**Good**: (n,) an `ok` request none of whose figures is above its bound.

    TTFT and latency count from the intended start under an open or capped loop (user TTFT, user latency): a bound is on
    what a user waits. In a closed loop they count from `sent`; its intended start is when the slot fell free, and the
    two differ by the client's own dispatch lag. An answer without a TPOT cannot miss a bound on it; one without an
    event misses a bound on TTFT or latency; a failure meets nothing.
    """
    closed = point.load is LoadLabel.CLOSED
    good = columns.ok.copy()
    if slo.ttft_ms is not None:
        good &= _within(ttft_ms(columns) if closed else user_ttft_ms(columns), slo.ttft_ms)
    if slo.latency_ms is not None:
        good &= _within(latency_ms(columns) if closed else user_latency_ms(columns), slo.latency_ms)
    if slo.tpot_ms is not None:
        tpot = tpot_ms(columns)
        good &= np.isnan(tpot) | _within(tpot, slo.tpot_ms)
    return good


def undecided(point: Point, columns: Columns, slo: Slo) -> Bools:
    """**Undecided**: (n,) requests of the population that an interrupted run cut off before they had missed a bound.

    Cancelled or, queued at the client, never sent: nobody knows how they would have ended. One whose TTFT or latency
    was above its bound when it was cut off had missed, and is judged. TPOT is no such case: a mean can still fall. In a
    point that was not interrupted nothing is undecided: a request that never ended, within all the time that it was
    given, has missed.
    """
    if point.status is PointStatus.COMPLETE:
        return np.zeros(len(columns), dtype=bool)
    start_ms = _start_ms(point, columns)
    end_ms = ended_ms(columns)
    first_ms = np.where(np.isfinite(columns.first_ms), columns.first_ms, end_ms)
    open_yet = censored(columns) & np.isfinite(start_ms)
    if slo.ttft_ms is not None:
        open_yet &= _within(first_ms - start_ms, slo.ttft_ms)
    if slo.latency_ms is not None:
        open_yet &= _within(end_ms - start_ms, slo.latency_ms)
    return open_yet


def goodput(point: Point, columns: Columns, window: Window, slo: Slo) -> Goodput:
    """**Goodput**: good requests that were due (open, capped loop) or sent (closed loop) in the window / its length.

    The share is of the whole population, each request followed to its end: failures, and requests that never ended, are
    misses. NaN: the window has no length, or nothing is judged. A run that was killed has no record of what was in
    flight; those requests are not counted.
    """
    start_ms = _start_ms(point, columns)
    mine, open_yet = population(columns) & np.isfinite(start_ms), undecided(point, columns, slo)
    met = mine & meets(point, columns, slo)
    good, of, left = int(met.sum()), int((mine & ~open_yet).sum()), int(open_yet.sum())
    in_window = int((met & window.holds(start_ms)).sum())
    low, high = (good / (of + left), (good + left) / (of + left)) if of + left else (NAN, NAN)
    return Goodput(
        slo=slo,
        per_s=in_window / window.length_s if window.length_s > 0 else NAN,
        good=good,
        of=of,
        share=good / of if of else NAN,
        undecided=left,
        share_range=(low, high),
        met=_attained(low, high, slo.attainment) if of else None,
    )


def _start_ms(point: Point, columns: Columns) -> Floats:
    """When each request's time begins to count; NaN: a closed loop never sent it, so that nobody waited."""
    return columns.sent_ms if point.load is LoadLabel.CLOSED else columns.intended_ms


def _attained(low: float, high: float, attainment: float | None) -> bool | None:
    if attainment is None or low < attainment <= high:
        return None
    return low >= attainment


def _within(values_ms: Floats, bound_ms: float) -> Bools:
    """Not above the bound; NaN is not within it."""
    return np.asarray(values_ms <= bound_ms + _HALF_NS_MS)

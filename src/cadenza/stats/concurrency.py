"""How many requests were in flight, event-exact: a step function, not buckets."""

import numpy as np

from cadenza.stats.columns import Columns, Floats, Ints

# Of L: what Little's law may be off by without a reason, and the standard errors that 1 % of points exceed.
LITTLE_SHARE, LITTLE_ERRORS = 0.05, 2.6


def in_flight(columns: Columns) -> tuple[Floats, Ints]:
    """**In flight**: requests sent and not yet ended, as steps: times (k,) in ms and the level (k,) from each time on.

    Every phase and outcome counts; at one instant an end comes before a start, so a slot that is refilled at once
    never counts twice. A request without an end stays in flight.
    """
    sent = np.isfinite(columns.sent_ms)
    ended = sent & np.isfinite(columns.done_ms)
    times = np.concatenate([columns.done_ms[ended], columns.sent_ms[sent]])
    steps = np.concatenate([np.full(int(ended.sum()), -1), np.full(int(sent.sum()), 1)])
    order = np.lexsort((steps, times))
    return times[order], np.cumsum(steps[order])


def level_at(columns: Columns, times_ms: Floats) -> Ints:
    """Requests in flight at each of `times_ms` (k,), none of them before the first dispatch."""
    times, level = in_flight(columns)
    return level[np.searchsorted(times, times_ms, side="right") - 1]


def peak_in_flight(columns: Columns) -> int:
    """**Peak in flight**: the greatest level; 0 where nothing was sent."""
    _, level = in_flight(columns)
    return int(level.max(initial=0))


def mean_in_flight(columns: Columns, start_ms: float, end_ms: float) -> float:
    """**Mean in flight** over [start, end]: the level's time average. NaN: the interval is empty."""
    if not end_ms > start_ms:
        return float("nan")
    times, level = in_flight(columns)
    edges = np.concatenate([[start_ms], np.clip(times, start_ms, end_ms), [end_ms]])
    return float(np.sum(np.diff(edges) * np.concatenate([[0], level])) / (end_ms - start_ms))


def little(columns: Columns, start_ms: float, end_ms: float) -> tuple[float, float]:
    """**Little's-law residual**: (L − λ W − edges) / L over [start, end), and how much of it is allowed; fractions.

    L is the mean in flight and λ the rate of dispatch in the interval, both from the stamps of every phase and outcome.
    W is the mean time from sent to the end, however late, of the population: the measured requests that have ended.
    (Little, Oper. Res. 9, 1961.) The edges are known: what was in flight at the start belongs to L only for the rest of
    its time, and what is in flight at the end belongs to W for the rest of its time. Without them L T is the sum of the
    times of all requests sent in the interval, whatever their lengths, and however the backlog moves (El-Taha and
    Stidham, Sample-Path Analysis of Queueing Systems, 1999). What is left shows that W is not of those requests: a
    population that is not a fair sample, the long answers left out, or only those counted that ended early.

    Allowed are 5 %, and 2.6 times s √d / (L T): s the standard deviation of the population's times, d the requests that
    are of the population or sent in the interval but not both. NaN: nothing was in flight or none has ended.
    """
    level = mean_in_flight(columns, start_ms, end_ms)
    ended = np.isfinite(columns.sent_ms) & np.isfinite(columns.done_ms)
    counted = columns.measured & ended
    w = columns.done_ms[counted] - columns.sent_ms[counted]
    if not level > 0 or not w.sum() > 0:
        return float("nan"), float("nan")
    length = end_ms - start_ms
    inside = (columns.sent_ms >= start_ms) & (columns.sent_ms < end_ms)
    before, after = (_rest_ms(columns, edge) for edge in (start_ms, end_ms))
    residual = level * length - before + after - float(inside.sum()) * float(w.mean())
    scatter = LITTLE_ERRORS * float(w.std()) * np.sqrt(float((inside != counted).sum()))
    return residual / (level * length), LITTLE_SHARE + scatter / (level * length)


def _rest_ms(columns: Columns, at_ms: float) -> float:
    """What the requests that were sent before `at_ms` and ended after it had still to take, in total."""
    across = (columns.sent_ms < at_ms) & (columns.done_ms > at_ms)
    return float((columns.done_ms[across] - at_ms).sum())

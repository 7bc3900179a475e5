"""How many requests were in flight, event-exact: a step function, not buckets."""

import numpy as np

from cadenza.stats.columns import Columns, Floats, Ints


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


def little_residual(columns: Columns, start_ms: float, end_ms: float) -> float:
    """**Little's-law residual**: (L − λ W) / L over (start, end], a fraction.

    L is the mean in flight; λ the requests of any outcome that ended inside per second, W their mean time from sent to
    the end (Little, Oper. Res. 9, 1961). Requests across the edges make it differ from 0 by up to about 2 L / n; more
    means that records are missing, or that the load grew. NaN: nothing ended inside, or nothing was in flight.
    """
    inside = (columns.done_ms > start_ms) & (columns.done_ms <= end_ms) & np.isfinite(columns.sent_ms)
    level = mean_in_flight(columns, start_ms, end_ms)
    if not inside.any() or not level > 0:
        return float("nan")
    busy_ms = float((columns.done_ms[inside] - columns.sent_ms[inside]).sum())
    return (level - busy_ms / (end_ms - start_ms)) / level

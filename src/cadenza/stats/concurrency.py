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
    """**Little's-law residual**: (L − λ W) / L over [start, end), and how much of it is allowed; fractions.

    L is the mean in flight and λ the rate of dispatch in the interval, both from the stamps of every phase and outcome.
    W is the mean time from sent to the end, however late, of the population: the measured requests that have ended.
    (Little, Oper. Res. 9, 1961.) Where the population is all that was sent in the interval, λ W is what these requests
    were in flight, and the scatter of their lengths cancels; a population that is not a fair sample (the long answers
    left out, only those counted that ended early) leaves a residual.

    What is left of a healthy point are the edges: N₀ requests in flight at the start belong to L only, the rest of the
    N₁ at the end to W only. The rest R of a time W has E R = E W² / 2 E W and E R² = E W³ / 3 E W (renewal theory: Cox
    1962). Allowed are 5 %, 2.6 times √((N₀ + N₁) Var R) / (L T), T the interval, and |N₁ − N₀| E R / (L T), up to
    2.6 √(N₀ + N₁) of a Poisson number: beyond that, the backlog grows. NaN: nothing was in flight or none has ended.
    """
    level = mean_in_flight(columns, start_ms, end_ms)
    counted = columns.measured & np.isfinite(columns.sent_ms) & np.isfinite(columns.done_ms)
    w = columns.done_ms[counted] - columns.sent_ms[counted]
    if not level > 0 or not w.sum() > 0:
        return float("nan"), float("nan")
    length = end_ms - start_ms
    rate = float(np.sum((columns.sent_ms >= start_ms) & (columns.sent_ms < end_ms))) / length
    rest, square = float((w**2).mean() / w.mean()) / 2, float((w**3).mean() / w.mean()) / 3
    times, steps = in_flight(columns)
    first, last = (int(np.concatenate([[0], steps])[np.searchsorted(times, edge)]) for edge in (start_ms, end_ms))
    scatter = LITTLE_ERRORS * np.sqrt((first + last) * max(square - rest**2, 0.0))
    growth = min(abs(last - first), LITTLE_ERRORS * np.sqrt(first + last)) * rest
    return (level - rate * float(w.mean())) / level, LITTLE_SHARE + float(scatter + growth) / (level * length)

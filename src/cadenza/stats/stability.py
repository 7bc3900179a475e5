"""Does the server keep up with what arrives? Where it does not, no latency is a property of the server.

Under an overload the backlog, and with it every latency, grows for as long as one measures: a longer run has other
figures. What is due in a second is known (the plan says it), so that the question is what the server completes while
there is work waiting.
"""

import math

import msgspec
import numpy as np

from cadenza.record import LoadLabel, Point
from cadenza.stats.columns import Columns, Floats
from cadenza.stats.population import Followed, follow_latency, follow_ttft, population

# One-sided 1 % of a normal distribution: how far the backlog of a Poisson process grows by chance.
_Z = 2.33
# A window shorter than this many response times shows how a backlog begins, and not whether it ends.
MIN_RESPONSES = 5
# Unless the server, while the backlog was high, did half as much again as arrives, and answers are long by themselves
# and not by their wait: then three are enough. Chosen in simulation (docs/results/verdicts.md): at a load of 1.1 and
# above no window of three to five had more than 1.42 times; after a silence, waits are 0.58 of the latency and more.
MIN_RESPONSES_CLEAR, CLEAR_DRAIN, CLEAR_WAIT_SHARE = 3, 1.5, 1 / 3
# Where the window is longer than this many mean waits, next to nobody waits.
MIN_WAITS = 200
# A server that keeps up does more than arrives while its backlog is high. This limit and the one above were chosen in
# simulation (docs/results/verdicts.md): the least false alarms at a load of 0.6 that leave next to none VALID at 1.1.
MIN_DRAIN = 1.2
# The backlog is high where it is at its upper quartile over time, or above.
_HIGH = 0.75
# Events that are looked at, at most: of more, every k-th one counts k times.
_MAX_EVENTS = 200_000


class Stability(msgspec.Struct, frozen=True, kw_only=True):
    """How a load whose times the plan sets was met; null: undefined.

    arriving_per_s    requests due in a second, by the plan
    completed_per_s   requests' worth of work done in a second while the backlog was at its upper quartile or above: of
                      an overloaded server its capacity
    window_responses  length of the window in mean user latencies
    window_waits      length of the window in mean waits (mean user TTFT less its 5th percentile)
    growth            requests that arrived in the second half of the window less those that ended, over what chance
                      allows at 1 %
    grows             the backlog grows
    """

    arriving_per_s: float
    completed_per_s: float
    window_responses: float
    window_waits: float
    growth: float
    grows: bool

    @property
    def is_stable(self) -> bool:
        """Whether the window shows that the backlog does not grow."""
        return not self.grows and self.window_responses >= self.needed_responses

    @property
    def needed_responses(self) -> int:
        """Mean user latencies that the window has to hold: 5, or 3 where the server clearly keeps up.

        It did 1.5 times what arrives while the backlog was high, and a mean wait is a third of the latency at most.
        """
        drains = self.completed_per_s >= CLEAR_DRAIN * self.arriving_per_s
        waits_little = self.window_responses <= CLEAR_WAIT_SHARE * self.window_waits
        return MIN_RESPONSES_CLEAR if drains and waits_little else MIN_RESPONSES


def assess_stability(point: Point, columns: Columns) -> Stability | None:
    """**Stability** of an open or capped loop. None: a closed loop, or fewer than two requests were due.

    The window is that of the measured requests' intended starts, everything that was due or ended in it counts. The
    backlog **grows** where arrivals − completions of its second half exceed 2.33 · √(arrivals · c²), c² the squared
    coefficient of variation of the gaps between arrivals, at least 1; or where requests wait (the window is shorter
    than 200 mean waits) and the work done while the backlog is at its upper quartile or above is less than 1.2 times
    what arrives. Work is counted in tokens, in units of the mean answer: completions of so few requests scatter by
    their lengths, the tokens of a busy server do not. A point is stable if its backlog does not grow and the window
    holds five mean user latencies, or three where the work done while the backlog is high is 1.5 times what arrives
    and the mean wait is a third of the mean user latency at most.
    """
    due = columns.intended_ms[population(columns)]
    if point.load is LoadLabel.CLOSED or len(due) < 2 or not due.max() > due.min():
        return None
    start, end = float(due.min()), float(due.max())
    since = columns.intended_ms
    ttft = _all(follow_ttft(columns, user=True))
    taken = _all(follow_latency(columns, user=True))
    ended = columns.done_ms[~columns.cancelled & np.isfinite(columns.done_ms)]
    rate = point.rate_per_s or 1000 * (len(due) - 1) / (end - start)
    return assess_load(since, ended, (start, end), rate, ttft, taken, _work(columns))


def assess_load(
    due_ms: Floats,
    ended_ms: Floats,
    window: tuple[float, float],
    rate_per_s: float,
    ttft_ms: Floats,
    latency_ms: Floats,
    work: tuple[Floats, Floats] | None = None,
) -> Stability:
    """Of all intended starts and all ends, in any order, with the measured requests' user TTFT and user latency.

    `work`: times (k,) at which a share (k,) of a request was done, in any order; a mean request is 1. None: the ends.
    """
    start, end = window
    span = end - start
    done = (ended_ms, np.ones(len(ended_ms))) if work is None else work
    completed = _completed_per_s(_backlog(due_ms, ended_ms, window), done)
    responses = span / _mean(latency_ms)
    wait = _mean(ttft_ms) - (float(np.percentile(ttft_ms, 5)) if len(ttft_ms) else math.nan)
    waits = span / wait if wait > 0 else math.inf
    growth = _growth(due_ms, ended_ms, start + span / 2, end)
    return Stability(
        arriving_per_s=rate_per_s,
        completed_per_s=completed,
        window_responses=responses,
        window_waits=waits,
        growth=growth,
        grows=bool(growth > 1 or (waits < MIN_WAITS and completed < MIN_DRAIN * rate_per_s)),
    )


def _work(columns: Columns) -> tuple[Floats, Floats]:
    """Tokens as shares of the mean answer, and 1 for each request that ended without an event."""
    lengths = columns.output_tok[columns.ok & (columns.output_tok > 0)]
    step = max(1, len(columns.event_ms) // _MAX_EVENTS)
    shares = columns.event_tok[::step] * step / (float(lengths.mean()) if len(lengths) else 1.0)
    silent = ~columns.cancelled & np.isfinite(columns.done_ms) & np.isnan(columns.first_ms)
    times = np.concatenate([columns.event_ms[::step], columns.done_ms[silent]])
    return times, np.concatenate([shares, np.ones(int(silent.sum()))])


def _completed_per_s(backlog: tuple[Floats, Floats], work: tuple[Floats, Floats]) -> float:
    """Requests' worth of work a second while the backlog is high; NaN: it never is."""
    (times, level), (done_ms, shares) = backlog, work
    lasted = np.diff(times)
    least = max(_quantile(level, lasted, _HIGH), 1.0)
    high_ms = float(lasted[level >= least].sum())
    inside = (done_ms > times[0]) & (done_ms <= times[-1])
    # The level right before the end of an answer: it is in the system until then.
    before = level[np.clip(np.searchsorted(times, done_ms[inside], side="left") - 1, 0, len(level) - 1)]
    return 1000 * float(shares[inside][before >= least].sum()) / high_ms if high_ms > 0 else math.nan


def _backlog(due_ms: Floats, ended_ms: Floats, window: tuple[float, float]) -> tuple[Floats, Floats]:
    """Requests due and not ended: times (k + 1,) from the start of the window to its end, levels (k,) between them."""
    start, end = window
    times = np.concatenate([ended_ms, due_ms])
    steps = np.concatenate([np.full(len(ended_ms), -1.0), np.ones(len(due_ms))])
    order = np.lexsort((steps, times))
    times, level = times[order], np.cumsum(steps[order])
    inside = (times > start) & (times < end)
    began = float(level[np.searchsorted(times, start, side="right") - 1]) if times[0] <= start else 0.0
    return np.concatenate([[start], times[inside], [end]]), np.concatenate([[began], level[inside]])


def _growth(due_ms: Floats, ended_ms: Floats, start: float, end: float) -> float:
    arrived = np.sort(due_ms[(due_ms > start) & (due_ms <= end)])
    ended = int(((ended_ms > start) & (ended_ms <= end)).sum())
    if len(arrived) < 2:
        return 0.0
    gaps = np.diff(arrived)
    mean = float(gaps.mean())
    burstiness = max(1.0, float(gaps.var()) / mean**2) if mean > 0 else 1.0
    return (len(arrived) - ended) / (_Z * math.sqrt(burstiness * len(arrived)))


def _quantile(level: Floats, lasted: Floats, q: float) -> float:
    """Over time: the level that is not exceeded for a share `q` of it."""
    order = np.argsort(level, kind="stable")
    sums = np.cumsum(lasted[order])
    return float(level[order][min(np.searchsorted(sums, q * sums[-1]), len(order) - 1)])


def _all(followed: Followed) -> Floats:
    return np.concatenate([followed.values, followed.lost])


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else math.nan

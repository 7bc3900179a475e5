"""Which part of a point is measured: the steady state, by a stated rule, with the whole run beside it."""

import math
from typing import Literal

import msgspec
import numpy as np

from cadenza.record import LoadLabel, Point
from cadenza.stats import latency
from cadenza.stats.columns import Bools, Columns, Floats
from cadenza.stats.steady import Change, examine_series

# A transient is left out where that moves a mean by this share of it.
MATTERS = 0.02


class Window(msgspec.Struct, frozen=True):
    """A stretch of a point, (start, end], in ms on the columns' scale, and why it is this one.

    Open at its start: the answer that ends exactly there is what let the first request go, and belongs to the time
    before. So windows that touch share no event, and their counts add up.

    changes   what still moves inside it, in words: empty where it is a steady state
    cut       measured requests left out at its start as a transient
    """

    start_ms: float
    end_ms: float
    kind: Literal["steady", "whole"]
    rule: str
    changes: tuple[str, ...] = ()
    cut: int = 0

    def holds(self, stamps_ms: Floats) -> Bools:
        """Which stamps lie inside; NaN never does."""
        return (stamps_ms > self.start_ms) & (stamps_ms <= self.end_ms)

    @property
    def length_s(self) -> float:
        """Seconds; 0 where nothing was measured."""
        return max(0.0, self.end_ms - self.start_ms) / 1000 if math.isfinite(self.end_ms - self.start_ms) else 0.0


def whole_window(columns: Columns) -> Window:
    """**Whole run**: from the first measured request's dispatch to the end of the last one."""
    mine = columns.measured
    return Window(
        _edge(columns.sent_ms[mine], first=True),
        _edge(columns.done_ms[mine], first=False),
        "whole",
        "first dispatch to last answer",
    )


def steady_window(point: Point, columns: Columns) -> Window:
    """**Window**: the steady state, warm-up and drain cut off.

    Closed loop with C slots: from the first measured dispatch with all C slots filled (warm-up comes first and is not
    drained) to the last measured dispatch, after which the plan has run dry and the load falls. Open loop: from the
    first to the last intended start. Where fewer measured requests end inside than there are slots (two at least),
    there is no steady state to speak of: the whole run stands in for it, and the rule says so.

    Then a transient at its start is left out, and what still moves is named: see `settle`.
    """
    mine = columns.measured & np.isfinite(columns.sent_ms)
    if point.load is LoadLabel.CLOSED:
        rule = "first dispatch with all slots filled to last dispatch"
        starts = columns.sent_ms[mine]
        sent = np.sort(columns.sent_ms[np.isfinite(columns.sent_ms)])
        slots = point.concurrency or 1
        starts = starts[starts >= sent[slots - 1]] if len(sent) >= slots else starts[:0]
    else:
        rule = "first to last intended start"
        starts = columns.intended_ms[mine]
    window = Window(_edge(starts, first=True), _edge(starts, first=False), "steady", rule)
    needed = max(2, point.concurrency or 0)
    ended = int(ended_inside(columns, window).sum())
    if ended >= needed:
        return settle(point, columns, window, needed)
    rule = f"whole run, ramp and drain included: {ended} answers ended in the steady part, {needed} are needed"
    rule += _advise(point, needed)
    return msgspec.structs.replace(whole_window(columns), rule=rule)


def settle(point: Point, columns: Columns, window: Window, needed: int = 2) -> Window:
    """**Transient**: what the window loses at its start; **no steady state**: what moves in the rest of it.

    TPOT and TTFT (user TTFT where the plan sets the times) of the `ok` requests that ended inside, in the order of
    their dispatch, are each cut where MSER-5 says (`stats.steady`), if the mean of what is cut differs from that of the
    rest by 2 % or more, and by three standard errors; the window then begins at the dispatch of the first request that
    stays. What is left must show no trend (Mann-Kendall) and no shift (Pettitt), both at p < 0.01, of 5 % in TPOT or
    25 % in TTFT: TTFT scatters more, and swings without the server having changed. Decided by where a series settles,
    never by which figure is better.
    """
    inside = np.flatnonzero(ended_inside(columns, window) & columns.ok)
    inside = inside[np.argsort(columns.sent_ms[inside], kind="stable")]
    closed = point.load is LoadLabel.CLOSED
    ttft_name, ttft = ("TTFT", latency.ttft_ms(columns)) if closed else ("user TTFT", latency.user_ttft_ms(columns))
    series = (("TPOT", latency.tpot_ms(columns)[inside], 0.05), (ttft_name, ttft[inside], 0.25))
    found = [(name, values, *examine_series(values, material)) for name, values, material in series]
    cut = max((start for _, values, start, _ in found if _matters(values, start)), default=0)
    changes = tuple(_tell(name, change) for name, _, _, change in found if change is not None)
    if not cut or len(inside) - cut < needed:
        return msgspec.structs.replace(window, changes=changes)
    start_ms = float((columns.sent_ms if closed else columns.intended_ms)[inside[cut]])
    rule = f"{window.rule}, without a transient of {cut} requests"
    return msgspec.structs.replace(window, start_ms=start_ms, rule=rule, changes=changes, cut=cut)


def _matters(values: Floats, start: int) -> bool:
    """A cut that changes nothing only costs requests: MSER makes such ones on any series by chance."""
    if not start:
        return False
    gone, rest = (part[np.isfinite(part)] for part in (values[:start], values[start:]))
    if not len(gone) or not len(rest):
        return False
    error = float(rest.std()) / math.sqrt(len(gone))
    return bool(abs(gone.mean() - rest.mean()) > max(MATTERS * abs(rest.mean()), 3 * error))


def _tell(name: str, change: Change) -> str:
    percent = f"{100 * change.relative:+.0f} %, p = {change.p_value:.2g}"
    if change.kind == "shift":
        return f"{name} jumps from {change.before:.4g} to {change.after:.4g} ms within the window ({percent})"
    return f"{name} drifts from {change.before:.4g} to {change.after:.4g} ms over the window ({percent})"


def ended_inside(columns: Columns, window: Window) -> Bools:
    """**Population** of latencies: measured requests that ended inside the window, whatever their outcome."""
    return columns.measured & window.holds(columns.done_ms)


def _advise(point: Point, needed: int) -> str:
    """How many requests would do. At the last dispatch of a closed loop C are unfinished and all others have ended."""
    if point.planned is None:
        return "; a longer run would help"
    if point.load is not LoadLabel.CLOSED:
        return "; more --requests would help"
    enough = (point.concurrency or 1) + needed
    return f"; --requests {enough} would do" if point.planned < enough else ""


def _edge(stamps_ms: Floats, *, first: bool) -> float:
    finite = stamps_ms[np.isfinite(stamps_ms)]
    if not len(finite):
        return float("nan")
    return float(finite.min() if first else finite.max())

"""The stretch of a point in which its load is what was asked for: throughput and everything of the machine is of it."""

import math
from typing import Literal

import msgspec
import numpy as np

from cadenza.record import LoadLabel, Point
from cadenza.stats.columns import Bools, Columns, Floats
from cadenza.stats.population import population


class Window(msgspec.Struct, frozen=True):
    """A stretch of a point, (start, end], in ms on the columns' scale, and why it is this one.

    Open at its start: the answer that ends exactly there is what let the first request go, and belongs to the time
    before. So windows that touch share no event, and their counts add up.
    """

    start_ms: float
    end_ms: float
    kind: Literal["steady", "whole"]
    rule: str

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


def load_window(point: Point, columns: Columns) -> Window:
    """**Window**: while the load is held and measured requests fall due.

    Closed loop with C slots: from the first measured dispatch with all C slots filled (warm-up comes first and is not
    drained) to the last measured dispatch; where fewer requests end inside than there are slots (two at least), the
    whole run stands in for it, and the rule says so. Open loop: from the first to the last intended start.
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
        starts = columns.intended_ms[population(columns)]
    window = Window(_edge(starts, first=True), _edge(starts, first=False), "steady", rule)
    if point.load is not LoadLabel.CLOSED and window.length_s > 0:
        return window  # whether it is long enough is the business of `stats.stability`
    needed = max(2, point.concurrency or 0)
    ended = int((columns.ok & window.holds(columns.done_ms)).sum())
    if ended >= needed:
        return window
    rule = f"whole run, ramp and drain included: {ended} answers ended while the load was held, {needed} are needed"
    return msgspec.structs.replace(whole_window(columns), rule=rule + _advise(point, needed))


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

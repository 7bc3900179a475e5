"""Which part of a run counts: the steady state by a stated rule, and the whole run beside it.

A window is open at its start and closed at its end: the answer that ends exactly where the window opens is what let
its first request go, and belongs to the time before. Windows that touch therefore share no event.
"""

import math
from typing import Literal

import msgspec
import numpy as np

from cadenza.clock import NS_PER_S
from cadenza.record import LoadLabel, Outcome, Point
from cadenza.stats.columns import ABSENT, Columns, Ints, Mask


class Window(msgspec.Struct, frozen=True):
    """A stretch of the run's clock, (start, end]; `rule` is the sentence that says why this one."""

    start_ns: int
    end_ns: int
    kind: Literal["steady", "whole"]
    rule: str

    @property
    def length_s(self) -> float:
        """Seconds; 0 where nothing was sent."""
        return (self.end_ns - self.start_ns) / NS_PER_S

    def holds(self, stamps_ns: Ints) -> Mask:
        """Which stamps lie inside, bool[n]; an `ABSENT` stamp never does."""
        return (stamps_ns > self.start_ns) & (stamps_ns <= self.end_ns) & (stamps_ns != ABSENT)


def population(columns: Columns, window: Window) -> Mask:
    """The requests that the latency metrics describe: measured, `ok`, and ended inside the window.

    Unit: bool, one a request. Start and stop: the window's, by the end of the response. A failed request has no
    latency that a user would call one; the failed share says how many are missing, and above 5 % the point is INVALID.
    No request: an empty array. Source: the project's own definition.
    """
    return columns.measured & columns.of_outcome(Outcome.OK) & window.holds(columns.ended_ns)


def steady_window(columns: Columns, point: Point) -> Window | None:
    """The steady state: warm-up and drain cut off.

    Unit: ns of the run's clock.
    Start, closed loop with C slots: the first measured dispatch at or after the moment when C requests have been
    dispatched (warm-up included, which is followed by the measured requests without a pause).
    Stop, closed loop: the last measured dispatch. There the plan runs dry, and the load falls below C. For C = 1 this
    leaves out the last request, whole and exactly.
    Start and stop, open loop, capped or not: the first and the last intended time among the measured requests that
    were sent.
    None: fewer than C dispatches, none of them measured, or a window without length.
    Source: the project's own rule; the middle third of `vllm bench`'s peers is as arbitrary and throws more away.
    """
    counted = columns.measured & columns.sent
    if point.load is LoadLabel.CLOSED:
        slots = point.concurrency or 1
        dispatched = np.sort(columns.sent_ns[columns.sent])
        stamps = columns.sent_ns[counted]
        stamps = stamps[stamps >= dispatched[slots - 1]] if len(dispatched) >= slots else stamps[:0]
        rule = f"from the first measured dispatch with {_slots(slots)} filled to the last one, after which load falls"
    else:
        stamps = columns.intended_ns[counted]
        rule = "from the first to the last intended start of the measured requests"
    if len(stamps) == 0 or stamps.min() == stamps.max():
        return None
    return Window(int(stamps.min()), int(stamps.max()), "steady", rule)


def whole_run(columns: Columns) -> Window:
    """The whole measured run, ramp and drain included.

    Unit: ns of the run's clock. Start: the first measured dispatch. Stop: the last end of a measured request.
    Nothing sent: a window from 0 to 0, in which every rate is undefined. Source: the definition.
    """
    counted = columns.measured & columns.sent
    if not counted.any():
        return Window(0, 0, "whole", "no measured request was sent")
    rule = "the whole run, from the first measured dispatch to the last end, ramp and drain included"
    return Window(int(columns.sent_ns[counted].min()), int(columns.ended_ns[counted].max()), "whole", rule)


def choose_window(columns: Columns, point: Point) -> Window:
    """The steady window where enough requests ended inside it, else the whole run with the reason.

    Enough: max(C, 2) measured requests, one for each slot; 2 in an open loop. The rule of a fallback names the number
    of requests that would be enough: those still unfinished at the window's end are needed once more.
    Source: the project's own rule.
    """
    steady, whole = steady_window(columns, point), whole_run(columns)
    needed = max(point.concurrency or 1, 2)
    ended = int((columns.measured & steady.holds(columns.ended_ns)).sum()) if steady else 0
    if steady and ended >= needed:
        return steady
    if whole.end_ns == whole.start_ns:
        return whole
    busy = _while_busy(point)
    cause = f"only {ended} of the {needed} measured requests that are needed ended {busy}, so the whole run counts"
    enough = requests_for_steady(columns, point, whole)
    advice = f"; --requests {enough} would do" if point.planned is None or enough > point.planned else ""
    return Window(whole.start_ns, whole.end_ns, "whole", f"{cause}, ramp and drain included{advice}")


def requests_for_steady(columns: Columns, point: Point, whole: Window) -> int:
    """How many measured requests a point would have needed for a steady window.

    Unit: requests. Closed loop: C + max(C, 2), since at the last dispatch C requests are unfinished and every other
    has ended. Open loop: rate × longest latency + max(C, 2), the requests that can be unfinished when the last one is
    due; the rate is the intended one, else what was sent over the whole run.
    Source: counting; Little's law for the open loop.
    """
    needed = max(point.concurrency or 1, 2)
    if point.load is LoadLabel.CLOSED:
        return (point.concurrency or 1) + needed
    counted = columns.select(columns.measured & columns.sent)
    longest_s = int((counted.ended_ns - counted.intended_ns).max(initial=0)) / NS_PER_S
    rate_per_s = point.rate_per_s or len(counted) / whole.length_s
    return math.ceil(rate_per_s * longest_s) + needed


def _slots(slots: int) -> str:
    return "the one slot" if slots == 1 else f"all {slots} slots"


def _while_busy(point: Point) -> str:
    if point.load is LoadLabel.CLOSED:
        slots = point.concurrency or 1
        return f"while {_slots(slots)} {'was' if slots == 1 else 'were'} busy"
    return "before the last one was due"

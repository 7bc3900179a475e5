"""How fast an engine's work goes: in time where it is well, not at all while it hangs, and anything in between."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

FULL = Fraction(1)
STOPPED = Fraction(0)


class Stretch(NamedTuple):
    """From `at_ns` until just before `until_ns` work goes at `pace`: ns of work in one ns, 0 to 1."""

    at_ns: int
    until_ns: int
    pace: Fraction


class Pace:
    """Work done as a function of time, both in whole ns, piecewise linear; where stretches overlap the slowest wins.

    Work of `work_ns` that begins at `t` ends at `when_ns(done_ns(t) + work_ns, t)`. What has been done grows by 1 at
    most from one ns to the next, so nothing is lost by rounding: the integral of the pace over those two ends is
    `work_ns` within 1 ns for each change of pace, and work that is done in two parts ends when it does in one.

    limit             no work goes faster than that
    from_ns, done_ns  where it begins, and what has been done by then; it is not to be asked of the time before
    """

    def __init__(
        self, stretches: Iterable[Stretch] = (), limit: Fraction = FULL, from_ns: int = 0, done_ns: int = 0
    ) -> None:
        self._stretches = [stretch for stretch in stretches if stretch.until_ns > from_ns]
        edges = {edge for stretch in self._stretches for edge in stretch[:2] if edge > from_ns}
        self._starts = [from_ns, *sorted(edges)]
        self._rates = [min(limit, self._slowest(at)) for at in self._starts]
        self._done = [done_ns]
        for (at, until), rate in zip(pairwise(self._starts), self._rates, strict=False):
            self._done.append(self._done[-1] + (until - at) * rate.numerator // rate.denominator)
        self._is_even = from_ns == done_ns and all(rate == FULL for rate in self._rates)

    def at(self, now_ns: int) -> Fraction:
        """The pace at `now_ns`."""
        return self._rates[bisect_right(self._starts, now_ns) - 1]

    def done_ns(self, now_ns: int) -> int:
        """Work done by `now_ns`, were there always some to do."""
        if self._is_even:
            return now_ns
        piece = bisect_right(self._starts, now_ns) - 1
        rate = self._rates[piece]
        return self._done[piece] + (now_ns - self._starts[piece]) * rate.numerator // rate.denominator

    def when_ns(self, done_ns: int, now_ns: int) -> int | None:
        """The first moment from `now_ns` on by which so much is done, None: there will be none."""
        if self._is_even:
            return max(done_ns, now_ns)
        piece = bisect_left(self._done, done_ns) - 1
        if piece < 0:
            return now_ns
        rate = self._rates[piece]
        if not rate:
            return None
        missing = (done_ns - self._done[piece]) * rate.denominator
        return max(self._starts[piece] - -missing // rate.numerator, now_ns)

    def goes_ns(self, now_ns: int) -> int | None:
        """The first moment from `now_ns` on at which work goes, None: there will be none."""
        piece = bisect_right(self._starts, now_ns) - 1
        if self._rates[piece]:
            return now_ns
        starts = zip(self._starts[piece:], self._rates[piece:], strict=True)
        return next((start_ns for start_ns, rate in starts if rate), None)

    def limited(self, limit: Fraction, from_ns: int) -> "Pace":
        """The same stretches from `from_ns` on, with another limit."""
        return Pace(self._stretches, limit, from_ns, self.done_ns(from_ns))

    def _slowest(self, at_ns: int) -> Fraction:
        rates = (stretch.pace for stretch in self._stretches if stretch.at_ns <= at_ns < stretch.until_ns)
        return min(rates, default=FULL)

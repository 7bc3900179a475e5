"""How long a sweep will take: from one short answer at first, then from what the points took."""

from collections.abc import Sequence

from cadenza.measure.plan import draw_requests
from cadenza.record import LoadLabel, Point
from cadenza.spec import Spec
from cadenza.store.manifest import Server

# Requests whose lengths are looked at for their mean.
_LENGTHS = 32
# What a point takes that is measured until it is enough: so many requests at least, and so many for each in flight.
_AUTO_REQUESTS, _AUTO_ROUNDS, _AUTO_OPEN_ROUNDS = 130, 16, 84
# Of a point's share of the time, what its cooldown may take of it: the rest is left for measuring.
_COOLDOWN_SHARE = 0.25


def response_s(spec: Spec, server: Server, model: str) -> float | None:
    """Seconds of the run's clock that an answer of the usual length takes with no other in flight.

    None: the trial answers did not show it. Those are timed in real time, in which an engine of another speed answers
    that much faster.
    """
    if server.trial_first_s is None or server.trial_token_s is None:
        return None
    point = Point(index=0, model=model, load=LoadLabel.CLOSED, concurrency=1, planned=_LENGTHS)
    lengths = [request.output_tokens for request in draw_requests(spec, point)]
    return spec.speed * (server.trial_first_s + server.trial_token_s * sum(lengths) / len(lengths))


class Forecast:
    """What is left of a sweep, in seconds of the run's clock, corrected by each point that is done.

    answer_s   an answer's time without load; None: nothing is known before the first point is done
    speed      how many of those seconds pass in one of real time
    """

    def __init__(self, spec: Spec, points: Sequence[Point], answer_s: float | None) -> None:
        self.speed = spec.speed
        self._points = list(points)
        self._answer_s = answer_s
        self._max_s = spec.max_time_s * spec.speed if any(point.auto for point in points) else None
        self._spent_s = 0.0
        self._factor = 1.0
        self._next = 0

    def budget_s(self, point: Point) -> float | None:
        """How long `point` may be measured where that is until it is enough; None: it is not.

        Its share of the time that is left, less two answers: the last measured ones are followed to their end, and so
        are those that were sent meanwhile.
        """
        share_s = self._share_s(point)
        if share_s is None:
            return None
        cooldown_s = 2 * self._factor * (self._answer_s or 0.0)
        return share_s - min(_COOLDOWN_SHARE * share_s, cooldown_s)

    def point_s(self, point: Point) -> float | None:
        """Warm-up, measured part and cooldown of `point`; None: not known."""
        share_s, needed_s = self._share_s(point), self._needed_s(point)
        if share_s is None or needed_s is None:
            return needed_s if share_s is None else share_s
        return min(needed_s, share_s)

    def left_s(self, first: int) -> float | None:
        """Of all points from number `first` on; None: not known."""
        seconds = [self.point_s(point) for point in self._points[first:]]
        known = [value for value in seconds if value is not None]
        return sum(known) if len(known) == len(seconds) else None

    def done(self, point: Point, took_s: float) -> None:
        """`point`, the next one in order, took so long: the points after it are expected to be as much off."""
        needed_s, share_s = self._needed_s(point), self._share_s(point)
        self._spent_s += took_s
        self._next += 1
        if not needed_s or point.rate_per_s is not None or point.duration_s is not None:
            return  # the plan, and not the server, decides how long it takes
        off = took_s / needed_s
        if share_s is not None and took_s >= share_s:
            off = max(1.0, off)  # it ended before its intervals were narrow enough
        self._factor *= off

    def _share_s(self, point: Point) -> float | None:
        """An equal share of the time that is left, for each point that is measured until it is enough."""
        if not point.auto or self._max_s is None:
            return None
        sharing = sum(other.auto for other in self._points[self._next :])
        return max(0.0, self._max_s - self._spent_s) / max(1, sharing)

    def _needed_s(self, point: Point) -> float | None:
        """Whatever the time allows."""
        if self._answer_s is None and point.rate_per_s is None and point.duration_s is None:
            return None
        answer_s = self._factor * (self._answer_s or 0.0)
        if point.duration_s is not None:
            return point.duration_s + answer_s
        slots = point.concurrency or 1
        if point.rate_per_s is not None:
            enough = max(_AUTO_REQUESTS, _AUTO_OPEN_ROUNDS * point.rate_per_s * answer_s)
            return (point.warmup + (point.planned or enough)) / point.rate_per_s + answer_s
        planned = point.planned or max(_AUTO_REQUESTS, _AUTO_ROUNDS * slots)
        return (point.warmup + planned) * answer_s / slots + answer_s

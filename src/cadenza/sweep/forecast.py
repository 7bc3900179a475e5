"""How long a sweep will take: from one short answer at first, then from what the points took."""

from collections.abc import Sequence

from cadenza.record import LoadLabel, Point
from cadenza.spec import Spec
from cadenza.store.manifest import Server
from cadenza.sweep.plan import draw_requests

# Requests whose lengths are looked at for their mean.
_LENGTHS = 32
# What a point takes that is measured until it is enough: so many requests at least, and rounds of C.
_AUTO_REQUESTS, _AUTO_ROUNDS = 130, 16


def response_s(spec: Spec, server: Server, model: str) -> float | None:
    """Seconds, by the run's clock, that an answer of the usual length takes with no other in flight; None: not known.

    The trial was timed by a clock of its own, in real time.
    """
    if server.trial_first_s is None or server.trial_token_s is None:
        return None
    point = Point(index=0, model=model, load=LoadLabel.CLOSED, concurrency=1, planned=_LENGTHS)
    lengths = [request.output_tokens for request in draw_requests(spec, point)]
    return spec.speed * (server.trial_first_s + server.trial_token_s * sum(lengths) / len(lengths))


class Forecast:
    """What is left of a sweep, in seconds of the run's clock, corrected by each point that is done.

    answer_s   an answer's time without load; None: nothing is known before the first point is done
    """

    def __init__(self, spec: Spec, points: Sequence[Point], answer_s: float | None) -> None:
        self._points = list(points)
        self._answer_s = answer_s
        self._max_s = spec.max_time_s * spec.speed if any(point.auto for point in points) else None
        self._spent_s = 0.0
        self._factor = 1.0

    def budget_s(self, point: Point) -> float | None:
        """How long `point` may be measured where that is until it is enough: its share of the time that is left."""
        if not point.auto or self._max_s is None:
            return None
        left = sum(other.auto for other in self._points if other.index >= point.index)
        return max(0.0, self._max_s - self._spent_s) / max(1, left)

    def point_s(self, point: Point) -> float | None:
        """Warm-up, measured part and cooldown of `point`."""
        answer_s = self._answer_s
        if point.duration_s is not None:
            return point.duration_s + (answer_s or 0.0)
        if answer_s is None:
            return self.budget_s(point)
        answer_s *= self._factor
        slots = point.concurrency or 1
        planned = point.planned or max(_AUTO_REQUESTS, _AUTO_ROUNDS * slots)
        if point.rate_per_s is not None:
            seconds = (point.warmup + planned) / point.rate_per_s + answer_s
        else:
            seconds = (point.warmup + planned) * answer_s / slots + answer_s
        budget_s = self.budget_s(point)
        return seconds if budget_s is None else min(seconds, budget_s)

    def left_s(self, first: int) -> float | None:
        """Of all points from number `first` on."""
        seconds = [self.point_s(point) for point in self._points[first:]]
        known = [value for value in seconds if value is not None]
        return sum(known) if len(known) == len(seconds) else None

    def done(self, point: Point, took_s: float) -> None:
        """`point` took so long."""
        expected_s = self.point_s(point)
        self._spent_s += took_s
        if expected_s and not point.auto and point.rate_per_s is None:
            self._factor *= took_s / expected_s

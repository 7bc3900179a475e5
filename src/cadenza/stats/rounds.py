"""How many requests a round has: what neighbours in the series of a point's requests have in common."""

from typing import NamedTuple

from cadenza.record import LoadLabel, Point
from cadenza.stats.columns import Columns
from cadenza.stats.concurrency import mean_in_flight
from cadenza.stats.intervals import phases_seen, round_of
from cadenza.stats.window import Window


class Rounds(NamedTuple):
    """`in_flight` requests at once; after `size` requests those in flight are replaced; `phases` as `phases_seen`."""

    in_flight: int
    size: int
    phases: float


def rounds_of(point: Point, columns: Columns, window: Window) -> Rounds:
    """Of the measured requests: C in flight in a closed loop, else the mean number, at least 1."""
    lengths = columns.output_tok[columns.measured & columns.ok].astype(float)
    if point.load is LoadLabel.CLOSED:
        slots = point.concurrency or 1
        return Rounds(slots, round_of(slots, lengths), phases_seen(slots, lengths))
    level = mean_in_flight(columns, window.start_ms, window.end_ms)
    level = level if level == level else 1.0
    return Rounds(max(1, round(level)), round_of(level, lengths, is_open=True), float("inf"))

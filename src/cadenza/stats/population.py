"""Which requests a point's figures are of: the measured ones, each followed to its end, however late.

Nobody is left out for being late. What is still out when the load ends, or the run is interrupted, is censored: it has
taken so long at least, which bounds every figure that it could move.
"""

from typing import NamedTuple

import numpy as np

from cadenza.record import Point
from cadenza.stats.columns import Bools, Columns, Floats, Ints


class Followed(NamedTuple):
    """One figure of the population: `values` (k,) in the order of dispatch, `lost` (j,) lower bounds of the censored.

    places   (k,) which request of the columns each value is of
    """

    values: Floats
    lost: Floats
    places: Ints


def censored(columns: Columns) -> Bools:
    """**Censored**: (n,) measured requests that were due, and that we stopped waiting for: cancelled, or never sent.

    A request that an interrupt kept from falling due is not in the population.
    """
    return columns.measured & columns.cancelled & (columns.intended_ms <= columns.done_ms)


def population(columns: Columns) -> Bools:
    """**Population**: (n,) measured requests that ended or are censored: those due (open, capped) or sent (closed)."""
    return columns.measured & (~columns.cancelled | censored(columns))


def was_held(point: Point, columns: Columns) -> bool:
    """Whether the load went on until the last measured request had ended (runs of schema 1 have no cooldown)."""
    return point.cooldown_s is not None or bool(columns.cooldown.any())


def follow(columns: Columns, values_ms: Floats, since_ms: Floats, known: Bools) -> Followed:
    """A figure of the `ok` requests of the population, and lower bounds of the censored ones.

    values_ms   (n,) of every request, NaN where it has none; `since_ms` (n,) is when it began to count
    known       (n,) True: the value stands, although the request is censored (it had its first token)
    """
    out = censored(columns)
    kept = columns.measured & (columns.ok | (out & known)) & np.isfinite(values_ms)
    lost = out & ~known & np.isfinite(since_ms)
    places = np.flatnonzero(kept)
    places = places[np.argsort(_dispatched_ms(columns)[places], kind="stable")]
    return Followed(values_ms[places], (columns.done_ms - since_ms)[lost], places.astype(np.int64))


def _dispatched_ms(columns: Columns) -> Floats:
    return np.where(np.isfinite(columns.sent_ms), columns.sent_ms, columns.intended_ms)

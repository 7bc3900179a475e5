"""Which requests a point's figures are of: the measured ones, each followed to its end, however late.

Nobody is left out for being late. What is still out when the load ends, or the run is interrupted, is censored: it has
taken so long at least, which bounds every figure that it could move.
"""

from typing import NamedTuple

import numpy as np

from cadenza.record import Point
from cadenza.stats import latency
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

    A request that an interrupt kept from falling due is not in the population: its end is no later than its start.
    """
    return columns.measured & columns.cancelled & (columns.intended_ms < ended_ms(columns))


def ended_ms(columns: Columns) -> Floats:
    """(n,) when a request ended or was given up; the last end of any where schema 1 dropped it without a stamp."""
    ends = columns.done_ms[np.isfinite(columns.done_ms)]
    return np.where(np.isfinite(columns.done_ms), columns.done_ms, ends.max(initial=-np.inf))


def population(columns: Columns) -> Bools:
    """**Population**: (n,) measured requests that ended or are censored: those due (open, capped) or sent (closed)."""
    return columns.measured & (~columns.cancelled | censored(columns))


def was_held(point: Point, columns: Columns) -> bool:
    """Whether the load went on until the last measured request had ended (runs of schema 1 have no cooldown)."""
    return point.cooldown_s is not None or bool(columns.cooldown.any())


def follow_ttft(columns: Columns, *, user: bool) -> Followed:
    """TTFT from sent, or user TTFT from intended; of a censored request that has its first token it is known."""
    values_ms = latency.user_ttft_ms(columns) if user else latency.ttft_ms(columns)
    return _follow(columns, values_ms, _waited_ms(columns, user=user), np.isfinite(columns.first_ms))


def follow_latency(columns: Columns, *, user: bool) -> Followed:
    """Latency from sent, or user latency from intended."""
    values_ms = latency.user_latency_ms(columns) if user else latency.latency_ms(columns)
    return _follow(columns, values_ms, _waited_ms(columns, user=user), columns.ok)


def follow_tpot(columns: Columns) -> Followed:
    """TPOT. Of a censored request at least (cut off − first event) / (tokens asked for − 1): as if all the others had
    come the moment that it was given up. 0 where it had no event, or nobody knows what was asked for.
    """
    most = np.fmax(columns.asked_tok, columns.output_tok) - 1
    begun = np.isfinite(columns.first_ms) & np.isfinite(columns.asked_tok) & (most > 0)
    least_ms = np.where(begun, (ended_ms(columns) - columns.first_ms) / np.where(begun, most, 1), 0.0)
    return _follow(columns, latency.tpot_ms(columns), least_ms, columns.ok)


def follow_itl(columns: Columns) -> tuple[Floats, Floats]:
    """(gaps (k,), lower bounds (j,)) in ms: the pooled gaps of the population in order of time, and of each censored
    request the gap that it was in when it was given up.
    """
    out = censored(columns)
    gaps = latency.itl_ms(columns, columns.measured & (columns.ok | out), in_time_order=True)
    open_ms = (ended_ms(columns) - columns.last_ms)[out]
    return gaps, open_ms[np.isfinite(open_ms)]


def _waited_ms(columns: Columns, *, user: bool) -> Floats:
    return ended_ms(columns) - (columns.intended_ms if user else columns.sent_ms)


def _follow(columns: Columns, values_ms: Floats, least_ms: Floats, known: Bools) -> Followed:
    """A figure of the `ok` requests of the population, and lower bounds of the censored ones.

    values_ms, least_ms   (n,) of every request; NaN: it has none
    known                 (n,) True: the value stands, although the request is censored
    """
    out = censored(columns)
    kept = columns.measured & (columns.ok | (out & known)) & np.isfinite(values_ms)
    lost = out & ~known & np.isfinite(least_ms)
    places = np.flatnonzero(kept)
    places = places[np.argsort(_dispatched_ms(columns)[places], kind="stable")]
    return Followed(values_ms[places], least_ms[lost], places.astype(np.int64))


def _dispatched_ms(columns: Columns) -> Floats:
    return np.where(np.isfinite(columns.sent_ms), columns.sent_ms, columns.intended_ms)
